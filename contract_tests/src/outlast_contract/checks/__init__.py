"""The checks, by subject; importing this package registers all of them."""

from outlast_contract.checks import (
    cancelling,
    cleanup,
    edges,
    fencing,
    ids,
    lifecycle,
    listing,
    logs,
    overtaking,
    processes,
    races,
    records,
    registers,
    repeats,
    replies,
    values,
)

__all__ = [
    "cancelling",
    "cleanup",
    "edges",
    "fencing",
    "ids",
    "lifecycle",
    "listing",
    "logs",
    "overtaking",
    "processes",
    "races",
    "records",
    "registers",
    "repeats",
    "replies",
    "values",
]
