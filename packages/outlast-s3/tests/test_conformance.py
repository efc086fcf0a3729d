"""An S3 store keeps the contract."""

import asyncio
from collections.abc import Iterable
from hashlib import sha256

import pytest
from s3_support import HOST, KEYS, Weed

from outlast_contract import contract_suite
from outlast_contract.harness import UrlHarness

pytestmark = pytest.mark.s3

_servers: list[Weed] = []


@pytest.fixture(scope="module", autouse=True)
def running(server: Weed) -> None:
    _servers[:] = [server]


class S3Harness(UrlHarness):
    """A prefix in the bucket of the server, read with boto3."""

    def __init__(self) -> None:
        server = _servers[0]
        endpoint = f"http://{HOST}:{server.port}"
        super().__init__(f"s3://{server.bucket}/contract?endpoint_url={endpoint}", **KEYS)

    async def raw(self, namespace: str) -> Iterable[tuple[str, bytes]]:
        """All names below the prefix, and the content of the namespace."""
        folder = f"contract/{sha256(namespace.encode()).hexdigest()[:32]}/"
        objects = await asyncio.to_thread(_servers[0].objects, "contract/", folder)
        return objects.items()


TestContract = contract_suite(S3Harness)
