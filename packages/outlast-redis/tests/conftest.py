"""Drivers on real servers, closed after the test."""

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from outlast_contract.servers import Server, ServerUnavailable, shared_server, start_server
from outlast_redis import RedisDriver

# Test folders are no packages; what they share is found here.
sys.path.append(str(Path(__file__).parent))
from redis_support import Open, client_of


def _server(make: Callable[[], Server]) -> Server:
    try:
        return make()
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")


@pytest.fixture
def shared() -> Server:
    """The Redis server that all tests share."""
    return _server(lambda: shared_server("redis"))


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Starts servers of the test's own: ``start(kind, *arguments)``."""
    started: list[Server] = []

    def start_one(kind: str = "redis", *arguments: str) -> Server:
        started.append(_server(lambda: start_server(kind, *arguments)))
        return started[-1]

    yield start_one
    for server in started:
        server.close()


@pytest.fixture
def namespace() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
async def open_driver(namespace: str) -> AsyncIterator[Open]:
    """Open drivers; each is like a process of its own."""
    opened: list[RedisDriver] = []

    async def open_one(url: str, *, create: bool = True, **options: object) -> RedisDriver:
        driver = RedisDriver.from_url(url, **{"namespace": namespace, **options})  # type: ignore[arg-type]
        opened.append(driver)
        await driver.setup(create=create)
        return driver

    yield open_one
    for driver in opened:
        await driver.aclose()


@pytest.fixture
async def driver(shared: Server, open_driver: Open) -> RedisDriver:
    """A driver on the shared server."""
    opened: RedisDriver = await open_driver(shared.url)
    return opened


@pytest.fixture
async def client(shared: Server) -> AsyncIterator[Redis]:
    """A client of the shared server, to look past the driver."""
    made = client_of(shared)
    assert isinstance(made, Redis)
    yield made
    await made.aclose()


@pytest.fixture(autouse=True)
async def no_task_stays() -> AsyncIterator[None]:
    """C7: nothing goes on behind the test."""
    yield
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in rest if "outlast" in repr(task)]
