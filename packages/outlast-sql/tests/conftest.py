"""Drivers that are closed after the test, and a check that nothing of them stays behind."""

import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from outlast.backends.memory import MemoryDriver
from outlast.driver import Driver
from outlast_sql import SqlDriver

# Test folders are no packages; what they share is found here.
sys.path.append(str(Path(__file__).parent))
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


@pytest.fixture(params=["file", "in memory", "lent engine", "reference"])
async def driver(request: pytest.FixtureRequest, path: Path) -> AsyncIterator[Driver]:
    """Every way to get a driver, and the core's memory driver, whose answers are the reference."""
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
