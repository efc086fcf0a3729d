"""PostgreSQL keeps the contract, through asyncpg and through psycopg."""

import dataclasses

import pytest
from server_support import AsyncpgHarness, PsycopgHarness

from outlast_contract import Settings, contract_suite

pytestmark = [pytest.mark.sql, pytest.mark.server]

# The short classes take some of the cases of a check, the long ones all. What another library does
# differently is the way to the server.
LESS = dataclasses.replace(Settings.from_environment(), rounds=3, kills=2, listed=300, heavy=False)

TestAsyncpg = contract_suite(AsyncpgHarness, cases=4, lacks=["http", "server faults"])
TestPsycopg = contract_suite(PsycopgHarness, tiers=["contract"], settings=LESS, cases=2)

if Settings.from_environment().thorough:  # Thousands of tests, which take long to collect, too.
    TestAllOfAsyncpg = pytest.mark.long(contract_suite(AsyncpgHarness))
    TestAllOfPsycopg = pytest.mark.long(contract_suite(PsycopgHarness))
