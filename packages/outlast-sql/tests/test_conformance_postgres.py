"""PostgreSQL keeps the contract, through asyncpg and through psycopg."""

import pytest
from server_support import AsyncpgHarness, PsycopgHarness

from outlast_contract import contract_suite

pytestmark = pytest.mark.sql

TestAsyncpg = contract_suite(AsyncpgHarness)
TestPsycopg = contract_suite(PsycopgHarness)
