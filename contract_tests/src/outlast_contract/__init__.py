"""The contract suite of outlast: holds any storage backend to every clause of the contract.

Two doors to the same checks: `contract_suite` makes a test class for pytest out of a `Harness`, and
the command ``outlast-contract URL`` runs them against a store.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlast_contract.engine import Check, Result, Settings
    from outlast_contract.harness import Harness, UrlHarness
    from outlast_contract.report import Report
    from outlast_contract.runner import run_suite
    from outlast_contract.suite import contract_suite

__version__ = "0.1.0"

_LAZY = {
    "Check": "outlast_contract.engine",
    "Harness": "outlast_contract.harness",
    "Report": "outlast_contract.report",
    "Result": "outlast_contract.engine",
    "Settings": "outlast_contract.engine",
    "UrlHarness": "outlast_contract.harness",
    "contract_suite": "outlast_contract.suite",
    "run_suite": "outlast_contract.runner",
}


def __getattr__(name: str) -> object:
    # pytest loads the plugin in every project of an environment, and this package with it.
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Check",
    "Harness",
    "Report",
    "Result",
    "Settings",
    "UrlHarness",
    "contract_suite",
    "run_suite",
]
