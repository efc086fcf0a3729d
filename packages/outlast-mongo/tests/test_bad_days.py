"""Servers that cannot be reached or refuse: said in time, without secrets, and with what to do."""

import asyncio
import contextlib
import gc
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pymongo
import pytest
from mongo_support import HOST, Proxy, admin, hurry, node_url, server_of, was_cut_short

import outlast
from outlast import ApiMessage, TaskState
from outlast.errors import (
    ConfigurationError,
    OutcomeUnknownError,
    OutlastError,
    UnavailableError,
)
from outlast_contract.servers import Server, start_server
from outlast_contract.stopwatch import Stopwatch
from outlast_mongo import MongoBackend

pytestmark = pytest.mark.mongo

BOTH = pytest.mark.parametrize("driver", ["pymongo", "motor"])
SECRET = "s3cret-word"


@pytest.fixture
async def reported() -> AsyncIterator[list[Any]]:
    """What the loop was told of errors that nobody took; looked at once all is collected."""
    loop, found = asyncio.get_running_loop(), list[Any]()
    loop.set_exception_handler(lambda _, context: found.append(context))
    yield found
    gc.collect()
    await asyncio.sleep(0)
    assert found == []


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server that asks for a password, with users of several kinds."""
    with server_of(lambda: start_server("mongodb-standalone", "--auth")) as server:
        create = {"createUser": "root", "pwd": SECRET, "roles": ["root"]}
        admin(server, create)
        with pymongo.MongoClient[dict[str, Any]](_as(server, "root", "admin")) as client:
            for user, role in (("writer", "readWrite"), ("reader", "read")):
                client["agents"].command("createUser", user, pwd=SECRET, roles=[role])
            actions = ["find", "insert", "update", "remove"]
            resource = {"db": "agents", "collection": ""}
            client["agents"].command(
                "createRole",
                "bare",
                privileges=[{"resource": resource, "actions": actions}],
                roles=[],
            )
            client["agents"].command("createUser", "bare", pwd=SECRET, roles=["bare"])
        yield server


def _as(server: Server, user: str, name: str = "agents", password: str = SECRET) -> str:
    source = "admin" if user == "root" else "agents"
    url = node_url(server, 0, name, authSource=source)
    return url.replace("://", f"://{user}:{password}@")


async def _refused(url: str, watch: Stopwatch | None = None, **options: Any) -> OutlastError:
    """What opening ends with, in time and without the password."""
    backend = outlast.open_backend(url, **options)
    with watch or Stopwatch() as measured:
        with pytest.raises(OutlastError) as caught:
            await backend.open()
        assert measured.seconds < 2.5
    cause = caught.value.__cause__
    shown = f"{caught.value!r} {caught.value} {cause!r} {cause} {backend!r}"
    assert SECRET not in shown
    assert caught.value.applied is False
    return caught.value


@BOTH
@pytest.mark.parametrize(
    ("user", "password"), [("writer", "wrong"), ("nobody", SECRET)], ids=["password", "user"]
)
@pytest.mark.usefixtures("reported")
async def test_a_wrong_password_or_user_is_a_matter_of_configuration(
    guarded: Server, driver: str, user: str, password: str
) -> None:
    error = await _refused(_as(guarded, user, password=password), driver=driver)
    assert isinstance(error, ConfigurationError)
    assert "user or the password" in str(error)
    assert f"mongodb://{user}:***@{HOST}" in str(error)


async def test_no_password_where_one_is_needed_is_a_matter_of_configuration(
    guarded: Server,
) -> None:
    error = await _refused(node_url(guarded, 0, "agents"))
    assert isinstance(error, ConfigurationError)
    assert "permission" in str(error)


@BOTH
async def test_a_database_that_the_user_may_not_use_is_named(guarded: Server, driver: str) -> None:
    error = await _refused(_as(guarded, "writer", "secrets"), driver=driver)
    assert isinstance(error, ConfigurationError)
    assert "'secrets'" in str(error)
    assert "permission" in str(error)


async def test_a_user_who_may_only_read_is_told_so(guarded: Server) -> None:
    error = await _refused(_as(guarded, "reader"))
    assert isinstance(error, ConfigurationError)
    assert "permission" in str(error)


async def test_a_user_who_may_make_no_index_works_where_all_is_set_up(guarded: Server) -> None:
    """Indexes are a step of their own, of whoever sets the database up, and never unique."""
    url = _as(guarded, "bare")
    error = await _refused(url, setup=False)
    assert "not set up" in str(error)
    error = await _refused(url)
    assert "permission" in str(error)
    async with outlast.open_backend(_as(guarded, "writer")):
        pass
    for setup in (True, False):
        async with outlast.open_backend(url, setup=setup) as backend:
            claim = await backend.persistence.claim_task("t")
            message = ApiMessage(id=f"m{setup}", role="user", content="x")
            await backend.persistence.append_api_message("t", message, claim=claim)
            assert message in await backend.persistence.load_api_messages("t")


@BOTH
@pytest.mark.usefixtures("reported", "broken_connections")
@pytest.mark.parametrize(
    "how", ["nobody listens", "nobody answers", "tls where there is none", "no such host"]
)
async def test_what_cannot_be_reached_is_said_in_time(
    server: Server, driver: str, how: str
) -> None:
    with socket.socket() as deaf:
        deaf.bind((HOST, 0))
        if how == "nobody answers":
            deaf.listen()
        host, port = HOST, deaf.getsockname()[1]
        if "tls" in how:
            host, port = server.addresses[0]
        elif "host" in how:
            host = "nowhere.invalid"
        tls = "?tls=true" if "tls" in how else ""
        url = f"mongodb://user:{SECRET}@{host}:{port}/x{tls}"
        watch = Stopwatch()
        error = await _refused(url, watch, driver=driver, timeout=2)
    assert isinstance(error, UnavailableError)
    if was_cut_short(error, watch):
        return
    assert "cannot be reached" in str(error)
    assert f"mongodb://user:***@{host}:{port}/x" in str(error)
    if "tls" in how:
        assert "is TLS set the same way" in str(error)


@BOTH
@pytest.mark.usefixtures("reported", "broken_connections")
async def test_a_server_that_went_away_is_said_in_time_by_every_call(
    server: Server, driver: str, name: str
) -> None:
    """E6: mutations may be called unknown; PyMongo does not tell what it sent before it retried."""
    async with contextlib.AsyncExitStack() as stack:
        async with Proxy(server.addresses[0][1]).running() as proxy:
            port = f":{server.addresses[0][1]}"
            url = node_url(server, 0, name).replace(port, f":{proxy.port}")
            backend = MongoBackend(url=url, driver=driver)
            await stack.enter_async_context(backend)
            tasks = backend.persistence
            claim = await tasks.claim_task("t")
        hurry(backend, 1.5)
        message = ApiMessage(id="m", role="user", content="x")
        mutations: list[Callable[[], Awaitable[object]]] = [
            lambda: tasks.save_task_state("t", TaskState(id="t"), claim=claim),
            lambda: tasks.append_api_message("u", message),
            lambda: tasks.claim_task("v"),
        ]
        reads: list[Callable[[], Awaitable[object]]] = [
            lambda: tasks.load_task_state("t"),
            tasks.list_task_states,
            backend.ping,
        ]
        for call in (*mutations, *reads):
            with Stopwatch() as watch:
                with pytest.raises(OutlastError) as caught:
                    await call()
                assert watch.seconds < 2
            words = r"cannot be reached|did not answer"
            assert re.search(words, str(caught.value)) or was_cut_short(caught.value, watch)
            expected = (UnavailableError, OutcomeUnknownError)
            assert isinstance(caught.value, expected if call in mutations else UnavailableError)
        with Stopwatch() as watch:
            await stack.aclose()
            assert watch.seconds < 3.5
