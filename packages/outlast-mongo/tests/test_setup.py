"""Opening: wrong URLs, passwords and hosts, newer formats, weak settings (D2, M11, M12)."""

import asyncio
import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from mongo_support import Open, Start, node_url, primary, server_of, url_of, was_cut_short
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
from outlast_contract.servers import Server, start_server
from outlast_contract.stopwatch import Stopwatch
from outlast_mongo import MongoBackend, MongoDriver
from outlast_mongo._links import MotorLink
from outlast_mongo._schema import _has_failovers

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
        ("mongodb://h/?readConcernLevel=local", "read concern"),
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
    "password", ["se/cret", "12/cret", "se?cret=1", "12?cret=1", "se/cr?cret=1"]
)
@pytest.mark.parametrize("query", ["", "?w=1&w=2", "?unknown=1"])
def test_a_password_that_is_not_escaped_is_not_shown(password: str, query: str) -> None:
    """E4: PyMongo takes a part of it for a port, a database or an option; the error helps."""
    with pytest.raises(ConfigurationError, match="write '/' as %2F") as caught:
        outlast.open_backend(f"mongodb://u:{password}@h/x{query}")
    assert "cret" not in str(caught.value)
    assert "u:***@h" in str(caught.value)


@pytest.mark.parametrize("option", ["tlsCAFile", "tlsCertificateKeyFile", "tlsCRLFile"])
@pytest.mark.parametrize("what", ["missing", "garbage"])
@pytest.mark.parametrize("where", ["url", "keywords"])
@BOTH
def test_a_file_that_does_not_fit_is_a_matter_of_configuration(
    tmp_path: Path, option: str, what: str, where: str, driver: str
) -> None:
    """E3: PyMongo reads it when it makes the client."""
    path = tmp_path / what
    if what == "garbage":
        path.write_text("no certificate", encoding="utf-8")
    url, options = "mongodb://u:s3cret@h/x?tls=true", {"driver": driver}
    if where == "url":
        url += f"&{option}={path}"
    else:
        options[option] = str(path)
    with pytest.raises(
        ConfigurationError, match=rf"u:\*\*\*@h/x.*check .*: {option}={path}"
    ) as caught:
        outlast.open_backend(url, **options)
    assert "s3cret" not in str(caught.value)


@BOTH
@pytest.mark.usefixtures("broken_connections")
async def test_an_untrusted_certificate_is_a_matter_of_configuration(
    start: Start, tmp_path: Path, driver: str
) -> None:
    pair = tmp_path / "pair.pem"
    signed = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    named = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(pair), "-out", "-"]
    made = subprocess.run(  # noqa: ASYNC221 - of a test
        ["openssl", "req", *signed, *named], check=True, capture_output=True
    )
    trusted = tmp_path / "certificate.pem"
    trusted.write_bytes(made.stdout)
    pair.write_bytes(pair.read_bytes() + made.stdout)
    how = ["--tlsMode", "allowTLS", "--tlsAllowConnectionsWithoutCertificates"]
    server = start(
        "mongodb-standalone", *how, f"--tlsCertificateKeyFile={pair}", f"--tlsCAFile={trusted}"
    )
    url = node_url(server, tls="true")
    with Stopwatch() as watch, pytest.raises(OutlastError) as caught:
        await outlast.open_backend(url, driver=driver, timeout=3.0).open()
    if not was_cut_short(caught.value, watch):
        assert isinstance(caught.value, ConfigurationError)
        assert re.search(r"not trusted.*tlsCAFile", str(caught.value))
    async with outlast.open_backend(f"{url}&tlsCAFile={trusted}", driver=driver) as backend:
        await backend.ping()


@BOTH
@pytest.mark.usefixtures("broken_connections")
async def test_what_cannot_be_reached_says_what_to_check(driver: str) -> None:
    with Stopwatch() as watch, pytest.raises(UnavailableError) as caught:
        await outlast.open_backend("mongodb://127.0.0.1:1/", driver=driver, timeout=1.0).open()
    says = "check that it runs, its host and port"
    assert says in str(caught.value) or was_cut_short(caught.value, watch)


@pytest.mark.parametrize(
    "options",
    [{"unknown": 1}, {"driver": "mongoengine"}, {"timeoutMS": "soon"}],
    ids=lambda options: next(iter(options)),
)
def test_an_option_that_does_not_fit_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        outlast.open_backend("mongodb://h/", **options)


@pytest.mark.parametrize("query", ["driver=motor", "driver=motor&w=1", "w=1&driver=motor"])
@pytest.mark.parametrize("path", ["/", "/x"])
def test_a_driver_may_be_named_in_the_url(path: str, query: str) -> None:
    driver = MongoDriver.from_url(f"mongodb://h{path}?{query}")
    assert isinstance(driver._link, MotorLink)
    assert ("failover" in driver.capabilities.data_survives) is ("w=1" not in query)


@pytest.mark.parametrize(
    ("query", "options", "says"),
    [
        ("driver=mongoengine", {}, "pymongo"),
        ("driver=pymongo", {"driver": "motor"}, "twice"),
        ("driver=motor&driver=motor", {}, "twice"),
    ],
)
def test_a_driver_that_is_unknown_or_named_twice_is_refused(
    query: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says):
        outlast.open_backend(f"mongodb://h/x?{query}", **options)


def test_a_database_of_a_blocking_client_is_refused(raw: Raw) -> None:
    for given in (raw, raw.client, "outlast", raw["x"]):
        with pytest.raises(ConfigurationError, match="AsyncMongoClient"):
            MongoBackend(database=given)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ConfigurationError, match="either"):
        MongoBackend()
    with pytest.raises(ConfigurationError, match="either"):
        MongoBackend(url="mongodb://h/", database=raw)


@pytest.mark.parametrize("of", ["client", "database"])
async def test_a_lent_client_that_reads_from_secondaries_is_refused(url: str, of: str) -> None:
    preferred: dict[str, Any] = {"readPreference": "nearest"} if of == "client" else {}
    async with pymongo.AsyncMongoClient[dict[str, Any]](url, **preferred) as client:
        database = client.get_default_database()
        if of == "database":
            database = database.with_options(read_preference=ReadPreference.SECONDARY)
        with pytest.raises(ConfigurationError, match="secondaries"):
            MongoBackend(database=database)


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
    # Few heads are tombstones: only those are in the index of them.
    partial = [name for name in indexes if "partialFilterExpression" in indexes[name]]
    assert partial == ["empty_1__id_1"]
    assert list(raw["outlast_piece"].index_information()) in ([], ["_id_"])


@pytest.mark.parametrize(
    ("options", "lost"),
    [
        ({}, set()),
        ({"w": "majority", "journal": "true"}, set()),
        ({"w": "1"}, {"failover"}),
        ({"w": "majority", "journal": "false"}, {"server", "failover"}),
        ({"w": "1", "journal": "false"}, {"server", "failover"}),
    ],
    ids=lambda part: "&".join(part) if isinstance(part, dict) else "",
)
@pytest.mark.parametrize("behind", ["server", "standalone"])
async def test_a_weak_write_concern_is_declared_and_reported(
    request: pytest.FixtureRequest,
    name: str,
    behind: str,
    options: dict[str, str],
    lost: set[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D2: where there are no failovers, none is warned of; reads see what was done (F4)."""
    server: Server = request.getfixturevalue(behind)
    url = url_of(server, name, **options)
    with caplog.at_level(logging.WARNING, "outlast"):
        async with outlast.open_backend(url) as backend:
            for number in range(20):
                state = TaskState(id="t", retry_count=number)
                await backend.persistence.save_task_state("t", state)
                stored = await backend.persistence.load_task_state("t")
                assert stored is not None
                assert stored.retry_count == number
            survives = {"process", "server", "failover"} - lost
            assert backend.capabilities.data_survives == survives
            assert backend.capabilities.fences_survive == survives
    matters = lost - ({"failover"} if behind == "standalone" else set())
    told = [record for record in caplog.records if record.name.startswith("outlast")]
    assert len(told) == len(matters)
    if matters:
        with pytest.raises(ConfigurationError, match="loses accepted writes"):
            await outlast.open_backend(url, strict=True).open()
    else:
        async with outlast.open_backend(url, strict=True):
            pass
    with pymongo.MongoClient[dict[str, Any]](server.url) as client:
        client.drop_database(name)


async def test_a_server_without_a_journal_is_refused(start: Start) -> None:
    """D1: what it acknowledges does not survive it, whatever the write concern says."""
    server = start("mongodb-standalone", "--nojournal")
    for options in ({}, {"w": "1"}):
        with pytest.raises(ConfigurationError, match="keeps no journal"):
            await outlast.open_backend(url_of(server, "x", **options)).open()


@pytest.mark.parametrize("w", ["3", "nearby"])
@pytest.mark.parametrize("behind", ["server", "standalone"])
async def test_a_write_concern_that_cannot_be_met_is_refused(
    request: pytest.FixtureRequest, name: str, behind: str, w: str
) -> None:
    """E2: no write would ever be done; and nothing is stored."""
    server: Server = request.getfixturevalue(behind)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"w={w}.*leave w out"):
            await outlast.open_backend(url_of(server, name, w=w)).open()
    with pymongo.MongoClient[dict[str, Any]](server.url) as client:
        assert name not in client.list_database_names()


async def test_a_write_concern_of_the_database_counts(url: str) -> None:
    async with pymongo.AsyncMongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database(write_concern=WriteConcern(w=1))
        driver = MongoDriver(database=database)
        await driver.setup(create=True)
        assert len(await driver.hazards()) == 1
        await driver.aclose()


@pytest.fixture(scope="module")
def three() -> Iterator[Server]:
    """A replica set of three."""
    with server_of(lambda: start_server("mongodb-replicas")) as started:
        yield started


async def test_one_of_several_members_is_not_enough(three: Server) -> None:
    """Reached directly, it answers reads also while it is a secondary."""
    for node in range(3):
        with pytest.raises(ConfigurationError, match="directConnection"):
            await outlast.open_backend(node_url(three, node)).open()


@BOTH
async def test_a_replica_set_is_found_from_any_member(three: Server, driver: str) -> None:
    other = (primary(three) + 1) % 3
    url = node_url(three, other, replicaSet="rs0").replace("directConnection=true&", "")
    async with outlast.open_backend(url, driver=driver) as backend:
        await backend.persistence.save_task_state("t", TaskState(id="t"))
        assert await backend.persistence.load_task_state("t") is not None


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


async def test_a_router_is_known_by_its_greeting(standalone: Server, open_driver: Open) -> None:
    """D2, F4: what is behind it may fail over. No router is at hand: this is what one adds."""
    driver = await open_driver(url_of(standalone, "x"))
    place = driver._ready()
    greeting = await place.hello()
    assert not _has_failovers(greeting, place)
    assert _has_failovers({**greeting, "msg": "isdbgrid"}, place)
