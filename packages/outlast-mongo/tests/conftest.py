"""Servers for all tests, a database for each, and a check that nothing stays behind."""

import asyncio
import contextlib
import gc
import secrets
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from motor.motor_asyncio import AsyncIOMotorClient

# Test folders are no packages; what they share is found here.
sys.path.append(str(Path(__file__).parent))
from mongo_support import Commands, Open, Start, server_of, url_of

import outlast
from outlast_contract.servers import Server, shared_server, start_server
from outlast_mongo import MongoBackend, MongoDriver


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mongo: needs outlast-mongo and a MongoDB server")


@pytest.fixture
def server() -> Server:
    """A replica set of one, left alone by the tests that share it."""
    return server_of(lambda: shared_server("mongodb"))


@pytest.fixture
def standalone() -> Server:
    """A server of no replica set, on which the driver has no retries of its own."""
    return server_of(lambda: shared_server("mongodb-standalone"))


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers of the test's own: ``start(kind, *arguments)``."""
    with contextlib.ExitStack() as stack:
        yield lambda *what: stack.enter_context(server_of(lambda: start_server(*what)))


@pytest.fixture
def name() -> str:
    """Of a database that no other test uses."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture
def url(server: Server, name: str) -> Iterator[str]:
    """Of that database."""
    yield url_of(server, name)
    with pymongo.MongoClient[dict[str, Any]](server.url) as client:
        client.drop_database(name)


@pytest.fixture
def raw(url: str) -> Iterator[pymongo.database.Database[dict[str, Any]]]:
    """The database past the adapter."""
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        yield client.get_default_database()


@pytest.fixture(autouse=True)
async def no_task_stays() -> AsyncIterator[None]:
    """C7: background tasks of clients end when they are closed."""
    yield
    here = asyncio.current_task()
    left = [task for task in asyncio.all_tasks() if task is not here]
    _, pending = await asyncio.wait(left, timeout=5) if left else (set(), set())
    assert not pending


@pytest.fixture
def broken_connections() -> Iterator[None]:
    """For tests that cut connections: a client that is closed while it connects drops the socket.

    PyMongo leaves it to the garbage collector, which would warn in some later test.
    """
    yield
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
        gc.collect()


@pytest.fixture
async def open_driver(url: str) -> AsyncIterator[Open]:
    """Open drivers on one database; each is like a process of its own."""
    opened: list[MongoDriver] = []

    async def open_one(
        at: str = url, *, namespace: str = "test", create: bool = True, **options: Any
    ) -> MongoDriver:
        driver = MongoDriver.from_url(at, namespace=namespace, **options)
        opened.append(driver)
        await driver.setup(create=create)
        return driver

    yield open_one
    for driver in opened:
        await driver.aclose()


@pytest.fixture(params=["pymongo", "motor"])
async def watched(
    request: pytest.FixtureRequest, url: str
) -> AsyncIterator[tuple[MongoDriver, Commands]]:
    """A driver whose commands are seen, on either client."""
    commands = Commands()
    client: Any
    if request.param == "motor":
        client = AsyncIOMotorClient[dict[str, Any]](url, event_listeners=[commands])
    else:
        client = pymongo.AsyncMongoClient[dict[str, Any]](url, event_listeners=[commands])
    driver = MongoDriver(database=client.get_default_database())
    await driver.setup(create=True)
    yield driver, commands
    await driver.aclose()
    closing = client.close()
    if closing is not None:
        await closing


@pytest.fixture(params=["pymongo", "motor", "lent pymongo", "lent motor"])
async def backend(request: pytest.FixtureRequest, url: str) -> AsyncIterator[outlast.Backend]:
    """Every way to get a backend."""
    kind = request.param
    client: Any = None
    if kind == "lent pymongo":
        client = pymongo.AsyncMongoClient[dict[str, Any]](url, tz_aware=True)
    elif kind == "lent motor":
        client = AsyncIOMotorClient[dict[str, Any]](url)
    if client is None:
        made = MongoBackend(url=url, driver=kind)
    else:
        made = MongoBackend(database=client.get_default_database())
    async with made:
        yield made
    if kind == "lent pymongo":
        assert (await client.admin.command("ping"))["ok"]
        await client.close()
    elif kind == "lent motor":
        assert (await client.admin.command("ping"))["ok"]
        client.close()
