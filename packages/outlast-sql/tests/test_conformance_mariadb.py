"""MariaDB keeps the contract."""

import pytest
from server_support import MariadbHarness

from outlast_contract import Settings, contract_suite

pytestmark = [pytest.mark.sql, pytest.mark.server]

if Settings.from_environment().thorough:  # Thousands of tests, which take long to collect, too.
    TestMariadb = contract_suite(MariadbHarness)
else:
    # What is long is tried on PostgreSQL, by the same statements but for their dialect.
    TestMariadb = contract_suite(
        MariadbHarness,
        settings=Settings.from_environment().shortened(),
        lacks=["http", "server faults"],
    )
