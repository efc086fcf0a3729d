"""Opening: wrong URLs, passwords and hosts, newer formats, weak settings (D2, M11, M12)."""

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from mongo_support import HOST, Mongod, Open, need_program, replica_set
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import ReadPreference, WriteConcern

import outlast
from outlast import TaskState
from outlast.errors import (
    ClosedError,
    ConfigurationError,
    NotSupportedError,
    OutlastError,
    UnavailableError,
    UnsupportedVersionError,
)
from outlast_mongo import MongoBackend, MongoDriver

pytestmark = pytest.mark.mongo

Raw = pymongo.database.Database[dict[str, Any]]
BOTH = pytest.mark.parametrize("driver", ["pymongo", "motor"])


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mongodb://u:se:cret@h/", "escaped"),
        ("mongodb://h:99999/", "Port"),
        ("mongodb://", "hostname"),
        ("mongodb://h/?unknown=1", "option"),
        ("mongodb://h/?w=1&w=2", "Duplicate"),
        ("mongodb://h/?connectTimeoutMS=soon", "connecttimeoutms"),
        ("mongodb://h/a.b", "no dot"),
        ("mongodb://h/?readPreference=secondaryPreferred", "secondaries"),
        ("mongodb://h/?w=0", "acknowledge"),
    ],
    ids=lambda text: text.partition("//")[2],
)
@BOTH
def test_a_url_that_does_not_fit_is_refused_before_anything_is_sent(
    url: str, says: str, driver: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"(?i){says}") as caught:
        outlast.open_backend(url, driver=driver)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"unknown": 1}, {"driver": "mongoengine"}, {"timeoutMS": "soon"}],
    ids=lambda options: next(iter(options)),
)
def test_an_option_that_does_not_fit_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        outlast.open_backend("mongodb://h/", **options)


def test_a_database_of_a_blocking_client_is_refused(raw: Raw) -> None:
    for given in (raw, raw.client, "outlast", raw["x"]):
        with pytest.raises(ConfigurationError, match="AsyncMongoClient"):
            MongoBackend(database=given)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ConfigurationError, match="either"):
        MongoBackend()
    with pytest.raises(ConfigurationError, match="either"):
        MongoBackend(url="mongodb://h/", database=raw)  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("of", ["client", "database"])
async def test_a_lent_client_that_reads_from_secondaries_is_refused(url: str, of: str) -> None:
    preferred = {"readPreference": "nearest"} if of == "client" else {}
    async with pymongo.AsyncMongoClient[dict[str, Any]](url, **preferred) as client:
        database = client.get_default_database()
        if of == "database":
            database = database.with_options(read_preference=ReadPreference.SECONDARY)
        with pytest.raises(ConfigurationError, match="secondaries"):
            MongoBackend(database=database)


@BOTH
async def test_a_wrong_password_is_a_matter_of_configuration(
    server: Mongod, name: str, driver: str
) -> None:
    url = f"mongodb://user:s3cret-word@{HOST}:{server.port}/{name}"
    backend = outlast.open_backend(url, driver=driver)
    with pytest.raises(ConfigurationError, match="user or the password") as caught:
        await backend.open()
    assert f"mongodb://user:***@{HOST}" in str(caught.value)
    shown = f"{caught.value!r} {caught.value.__cause__!r} {backend!r} {caught.value}"
    assert "s3cret-word" not in shown


@BOTH
@pytest.mark.usefixtures("broken_connections")
@pytest.mark.parametrize("how", ["nobody listens", "nobody answers", "tls where there is none"])
async def test_what_cannot_be_reached_is_said_in_time(
    server: Mongod, driver: str, how: str
) -> None:
    with socket.socket() as deaf:
        deaf.bind((HOST, 0))
        if how == "nobody answers":
            deaf.listen()
        port = server.port if "tls" in how else deaf.getsockname()[1]
        url = f"mongodb://user:s3cret-word@{HOST}:{port}/x{'?tls=true' if 'tls' in how else ''}"
        backend = outlast.open_backend(url, driver=driver, timeout=1.5)
        began = time.monotonic()
        with pytest.raises(UnavailableError, match="cannot be reached") as caught:
            await backend.open()
        assert time.monotonic() - began < 4
    assert "s3cret-word" not in str(caught.value)
    assert caught.value.applied is False
    if "tls" in how:
        assert "is TLS set the same way" in str(caught.value)


async def test_setup_false_only_verifies(open_driver: Open, raw: Raw) -> None:
    with pytest.raises(ConfigurationError, match="run: outlast setup mongodb://"):
        await open_driver(create=False)
    assert raw.list_collection_names() == []
    await open_driver()
    await open_driver(create=False)
    await open_driver(create=False, namespace="another")


async def test_a_newer_format_is_refused(open_driver: Open, raw: Raw) -> None:
    await open_driver()
    raw["outlast_schema"].update_one({}, {"$set": {"format": 99}})
    with pytest.raises(UnsupportedVersionError, match="format 99"):
        await open_driver()


async def test_sixteen_clients_may_set_up_at_once(open_driver: Open, raw: Raw) -> None:
    """X4; and no index of theirs takes documents away by their age (M8)."""
    await asyncio.gather(*(open_driver() for _ in range(16)))
    assert raw["outlast_schema"].count_documents({}) == 1
    indexes = raw["outlast_head"].index_information()
    assert len(indexes) == 4
    assert not [index for index in indexes.values() if "expireAfterSeconds" in index]
    assert list(raw["outlast_piece"].index_information()) in ([], ["_id_"])


@pytest.mark.parametrize(
    ("query", "lost"),
    [
        ("", set()),
        ("?w=majority&journal=true", set()),
        ("?w=1", {"failover"}),
        ("?w=majority&journal=false", {"server"}),
        ("?w=1&journal=false", {"server", "failover"}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
async def test_a_weak_write_concern_is_declared_and_reported(
    url: str, query: str, lost: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "outlast"):
        async with outlast.open_backend(url + query) as backend:
            await backend.persistence.save_task_state("t", TaskState(id="t"))
            survives = {"process", "server", "failover"} - lost
            assert backend.capabilities.data_survives == survives
            assert backend.capabilities.fences_survive == survives
    assert len(caplog.records) == len(lost)
    if lost:
        with pytest.raises(ConfigurationError, match="loses accepted writes"):
            await outlast.open_backend(url + query, strict=True).open()


async def test_a_write_concern_of_the_database_counts(url: str) -> None:
    async with pymongo.AsyncMongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database(write_concern=WriteConcern(w=1))
        driver = MongoDriver(database=database)
        await driver.setup(create=True)
        assert len(await driver.hazards()) == 1
        await driver.aclose()


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Mongod]]:
    """A replica set of two."""
    need_program()
    with replica_set(2) as nodes:
        yield nodes


async def test_one_of_several_members_is_not_enough(pair: list[Mongod]) -> None:
    """Reached directly, it answers reads also while it is a secondary."""
    for node in pair:
        with pytest.raises(ConfigurationError, match="directConnection"):
            await outlast.open_backend(f"{node.url}?directConnection=true").open()


@BOTH
async def test_a_replica_set_is_found_from_any_member(pair: list[Mongod], driver: str) -> None:
    async with outlast.open_backend(pair[1].url, driver=driver) as backend:
        await backend.persistence.save_task_state("t", TaskState(id="t"))
        assert await backend.persistence.load_task_state("t") is not None
    with pymongo.MongoClient[dict[str, Any]](pair[0].url) as client:
        client.drop_database("outlast")


@BOTH
async def test_a_closed_driver_says_so(open_driver: Open, driver: str) -> None:
    opened = await open_driver(driver=driver)
    await opened.aclose()
    await opened.aclose()
    for call in (opened.ping(), opened.setup(create=True)):
        with pytest.raises(ClosedError):
            await call


async def test_a_client_that_the_application_closed_is_named(url: str) -> None:
    client = pymongo.AsyncMongoClient[dict[str, Any]](url)
    async with MongoBackend(database=client.get_default_database()) as backend:
        await client.close()
        with pytest.raises(ClosedError, match="closed by the application"):
            await backend.persistence.load_task_state("t")


def test_a_client_of_another_loop_is_named(url: str) -> None:
    """M12; its own loop may still use it."""
    client = pymongo.AsyncMongoClient[dict[str, Any]](url)
    backend = MongoBackend(database=client.get_default_database())
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(client.admin.command("ping"))
        with pytest.raises(NotSupportedError, match="event loop"):
            second.run(backend.open())
        first.run(client.admin.command("ping"))
        first.run(client.close())


async def test_every_error_names_backend_and_operation(url: str) -> None:
    async with pymongo.AsyncMongoClient[dict[str, Any]](url) as client:
        backend = MongoBackend(database=client.get_default_database())
        async with backend:
            await client.drop_database(client.get_default_database())
            await client.close()
            for call in (
                backend.persistence.load_task_state("t"),
                backend.checkpoints.claim("r"),
                backend.ping(),
            ):
                with pytest.raises(OutlastError) as caught:
                    await call
                assert caught.value.backend == "mongodb"
                assert caught.value.operation


async def test_motor_takes_a_lent_database_of_any_codec(url: str) -> None:
    client: AsyncIOMotorClient[dict[str, Any]] = AsyncIOMotorClient(url, tz_aware=True)
    async with MongoBackend(database=client.get_default_database()) as backend:
        await backend.persistence.save_task_state("t", TaskState(id="t"))
        assert await backend.persistence.load_task_state("t") is not None
    client.close()
