"""MariaDB keeps the contract."""

import pytest
from server_support import MariadbHarness

from outlast_contract import Settings, contract_suite

pytestmark = [pytest.mark.sql, pytest.mark.server]

# Some of the cases of each check, and all of them in long runs.
TestMariadb = contract_suite(MariadbHarness, cases=4, lacks=["http", "server faults"])

if Settings.from_environment().thorough:  # Thousands of tests, which take long to collect, too.
    TestAllOfMariadb = pytest.mark.long(contract_suite(MariadbHarness))
