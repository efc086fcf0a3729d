"""The memory backend keeps the contract."""

from outlast_contract import contract_suite
from outlast_contract.stores import MemoryHarness

TestContract = contract_suite(MemoryHarness)
