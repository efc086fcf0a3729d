"""The memory backend keeps the contract."""

from outlast_contract import contract_suite
from outlast_contract.engine import NO_SERVER, Need
from outlast_contract.stores import MemoryHarness

# There is no server, and no other process that could see it.
LACKS: list[Need] = [*NO_SERVER, "same store in processes"]

# Of each check all cases, in short runs too: they take no time.
TestContract = contract_suite(MemoryHarness, lacks=LACKS, cases=1000)
