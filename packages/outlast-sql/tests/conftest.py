"""Drivers that are closed after the test, and a check that nothing of them stays behind."""

import secrets
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from outlast.backends.memory import MemoryDriver
from outlast.driver import Driver
from outlast_contract.servers import Server, ServerUnavailable, start_server
from outlast_sql import SqlDriver

# Test folders are no packages; what they share is found here.
sys.path.append(str(Path(__file__).parent))
from server_support import Admin, root_of
from server_ways import ON_SERVERS, SERVERS, server_driver, server_of
from sql_support import Open, wait_until


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """C7: the threads of all connections end."""
    before = set(threading.enumerate())
    yield

    def ended() -> bool:
        return not [
            thread
            for thread in set(threading.enumerate()) - before
            if "_connection_worker_thread" in thread.name or "Connection" in type(thread).__name__
        ]

    wait_until(ended)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def open_driver(path: Path) -> AsyncIterator[Open]:
    """Open drivers on one file; each is like a process of its own."""
    opened: list[Driver] = []

    async def open_one(
        *, namespace: str = "test", timeout: float = 10.0, create: bool = True
    ) -> SqlDriver:
        driver = SqlDriver.from_url(f"sqlite:///{path}", namespace=namespace, timeout=timeout)
        opened.append(driver)
        await driver.setup(create=create)
        return driver

    yield open_one
    for driver in opened:
        await driver.aclose()


@pytest.fixture
def postgres() -> Server:
    """The PostgreSQL server that all tests share."""
    return server_of("postgres")


@pytest.fixture
def mariadb() -> Server:
    """The MariaDB server that all tests share."""
    return server_of("mariadb")


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Starts servers of the test's own: ``start(kind, *arguments)``."""
    started: list[Server] = []

    def start_one(kind: str, *arguments: str) -> Server:
        try:
            started.append(start_server(kind, *arguments))
        except ServerUnavailable as error:
            pytest.skip(f"NOT RUN: {error.reason}")
        return started[-1]

    yield start_one
    for server in started:
        server.close()


@pytest.fixture
def namespace() -> str:
    """That no other test uses."""
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture(params=["postgres", "mariadb"])
async def admin(request: pytest.FixtureRequest) -> AsyncIterator[Admin]:
    """A user who may do everything, in a database that no other test uses; ``admin.url`` leads
    there.
    """
    kind = request.param
    root = root_of(server_of(kind).url)
    name = f"t{secrets.token_hex(6)}"
    maker = await Admin.on(root)
    await maker.run(f"CREATE DATABASE {name}")
    scheme = "postgresql" if kind == "postgres" else "mariadb"
    url = f"{scheme}://{root.partition('://')[2].rpartition('/')[0]}/{name}"
    made = await Admin.on(url)
    made.url = url
    yield made
    await made.close()
    await maker.run(f"DROP DATABASE {name}{' WITH (FORCE)' if kind == 'postgres' else ''}")
    await maker.close()


@pytest.fixture
async def open_on(admin: Admin) -> AsyncIterator[Open]:
    """Opens drivers on the database of ``admin``, or on the one of a URL that is given."""
    opened: list[SqlDriver] = []

    async def open_one(
        url: str = "", *, namespace: str = "test", create: bool = True, **options: Any
    ) -> SqlDriver:
        driver = SqlDriver.from_url(url or admin.url, namespace=namespace, **options)
        opened.append(driver)
        await driver.setup(create=create)
        return driver

    yield open_one
    for driver in opened:
        await driver.aclose()


@pytest.fixture(params=["file", "in memory", "lent engine", *ON_SERVERS, "reference"])
async def driver(
    request: pytest.FixtureRequest, path: Path, namespace: str
) -> AsyncIterator[Driver]:
    """Every way to get a driver, and the core's memory driver, whose answers are the reference."""
    if request.param in SERVERS:
        async with server_driver(request.param, namespace) as opened:
            yield opened
        return
    made: Driver
    engine = None
    if request.param == "file":
        made = SqlDriver.from_url(f"sqlite:///{path}", namespace="test")
    elif request.param == "in memory":
        made = SqlDriver.from_url("sqlite://", namespace="test")
    elif request.param == "lent engine":
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        made = SqlDriver.from_engine(engine, namespace="test")
    else:
        made = MemoryDriver(namespace="test")
    await made.setup(create=True)
    yield made
    await made.aclose()
    if engine is not None:
        await engine.dispose()
