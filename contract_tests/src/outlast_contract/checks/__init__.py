"""The checks, by subject; importing this package registers all of them."""

from outlast_contract.checks import (
    cleanup,
    fencing,
    ids,
    lifecycle,
    listing,
    logs,
    records,
    registers,
    repeats,
    values,
)

__all__ = [
    "cleanup",
    "fencing",
    "ids",
    "lifecycle",
    "listing",
    "logs",
    "records",
    "registers",
    "repeats",
    "values",
]
