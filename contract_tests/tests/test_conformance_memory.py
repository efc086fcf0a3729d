"""The memory backend keeps the contract."""

from outlast_contract import contract_suite
from outlast_contract.engine import NO_SERVER, Need
from outlast_contract.stores import MemoryHarness

# There is no server, and no other process that could see it.
LACKS: list[Need] = [*NO_SERVER, "same store in processes"]

TestContract = contract_suite(MemoryHarness, lacks=LACKS)
