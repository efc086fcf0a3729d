"""MariaDB keeps the contract."""

import pytest
from server_support import MariadbHarness

from outlast_contract import contract_suite

pytestmark = [pytest.mark.sql, pytest.mark.server]

TestMariadb = contract_suite(MariadbHarness)
