"""PostgreSQL keeps the contract, through asyncpg and through psycopg."""

import pytest
from server_support import AsyncpgHarness, PsycopgHarness

from outlast_contract import Settings, contract_suite

pytestmark = [pytest.mark.sql, pytest.mark.server]

if Settings.from_environment().thorough:  # Thousands of tests, which take long to collect, too.
    TestAsyncpg = contract_suite(AsyncpgHarness)
    TestPsycopg = contract_suite(PsycopgHarness)
else:
    TestAsyncpg = contract_suite(AsyncpgHarness, lacks=["http", "server faults"])
    # What another library does differently is the way to the server.
    LESS = Settings.from_environment().shortened()
    TestPsycopg = contract_suite(PsycopgHarness, tiers=["contract"], settings=LESS, cases=1)
