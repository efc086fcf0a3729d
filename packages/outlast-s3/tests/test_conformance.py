"""An S3 store keeps the contract."""

import dataclasses

import pytest
from s3_support import Store

from outlast_contract import Settings, contract_suite
from outlast_contract.harness import Harness
from outlast_contract.servers import shared_server
from outlast_contract.stores import harness_for

pytestmark = [pytest.mark.s3, pytest.mark.server]


@pytest.fixture(scope="module", autouse=True)
def running(server: Store) -> None:
    """Skips all where there is no server."""


def shared() -> Harness:
    """The server that all tests of a run share, read with boto3."""
    server = shared_server("s3")
    harness = harness_for(server.url, **server.options)()
    harness.server_kind = "s3"
    return harness


if Settings.from_environment().thorough:  # Thousands of tests, which take long to collect, too.
    TestContract = contract_suite(shared)
else:
    # boto3 takes a millisecond or two of the processor for each request, whatever is in it.
    LESS = dataclasses.replace(Settings.from_environment().shortened(), rounds=2, contenders=4)
    TestContract = contract_suite(shared, tiers=["contract", "race"], settings=LESS, cases=1)
    TestFaults = contract_suite(
        shared, tiers=["faults"], settings=LESS, cases=1, lacks=["server faults"]
    )
