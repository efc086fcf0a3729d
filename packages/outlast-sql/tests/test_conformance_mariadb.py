"""MariaDB keeps the contract."""

import pytest
from server_support import MariadbHarness

from outlast_contract import contract_suite

pytestmark = pytest.mark.sql

TestMariadb = contract_suite(MariadbHarness)
