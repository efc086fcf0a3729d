"""One server for all tests, a prefix for each, and a check that no thread stays behind."""

import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

# Test folders are no packages; what they share is found here.
sys.path.append(str(Path(__file__).parent))
from s3_support import HOST, KEYS, HttpProxy, Open, Store, available, no_thread_works, wait_until

from outlast_contract.servers import shared_server
from outlast_s3 import S3Driver
from outlast_s3._probe import _proven


@pytest.fixture(scope="session")
def server() -> Iterator[Store]:
    """The server that all tests of a run share."""
    store = Store(available(lambda: shared_server("s3")))
    yield store
    store.client.close()


@pytest.fixture
def prefix() -> str:
    """Of names that no other test uses."""
    return f"t{secrets.token_hex(6)}"


@pytest.fixture
def url(server: Store, prefix: str) -> str:
    """Of that prefix."""
    return f"s3://{server.bucket}/{prefix}?endpoint_url=http://{HOST}:{server.port}"


@pytest.fixture
async def proxy(server: Store) -> AsyncIterator[HttpProxy]:
    """Between client and server."""
    # It may stand at the address of an earlier one, whose store was found to be good.
    _proven.clear()
    async with HttpProxy(server.port).running() as running:
        yield running


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """C7."""
    yield
    wait_until(no_thread_works, 10)


@pytest.fixture
async def open_driver(server: Store, prefix: str) -> AsyncIterator[Open]:
    """Open drivers on one prefix; each is like a process of its own."""
    opened: list[S3Driver] = []

    async def open_one(
        port: int = server.port, *, namespace: str = "test", create: bool = True, **options: Any
    ) -> S3Driver:
        url = f"s3://{server.bucket}/{prefix}?endpoint_url=http://{HOST}:{port}"
        driver = S3Driver.from_url(url, namespace=namespace, **KEYS, **options)
        opened.append(driver)
        await driver.setup(create=create)
        return driver

    yield open_one
    for driver in opened:
        await driver.aclose()
