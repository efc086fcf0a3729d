"""The clauses of the contract: ids, titles, groups, and what no check of this release reaches."""

from collections.abc import Mapping
from typing import Final

GROUPS: Final[Mapping[str, str]] = {
    "F": "Fencing",
    "A": "Message logs",
    "S": "Registers",
    "L": "Listing",
    "V": "Values",
    "I": "Identities",
    "C": "Cleanup",
    "E": "Errors",
    "D": "Durability",
    "X": "Cancellation",
    "P": "Placement",
}

HEADLINES: Final[tuple[tuple[str, str], ...]] = (
    ("Fencing", "F"),
    ("Atomicity", "AS"),
    ("Cleanup", "C"),
)
"""The three lines that open a report, each with the groups of clauses that it sums up."""

CLAUSES: Final[Mapping[str, str]] = {
    "F1": "An epoch is given out once",
    "F2": "A stale owner cannot write",
    "F3": "Claiming changes no data",
    "F4": "Reads are current and never go back",
    "F5": "What a claim returns is final",
    "F6": "A late copy has no effect",
    "F7": "Deleted stays deleted",
    "F8": "Unclaimed mutations yield to claims",
    "F9": "An outside epoch can be brought along",
    "F10": "Claiming again is safe",
    "F11": "One claim guards the whole task",
    "F12": "A claimed write creates nothing",
    "F13": "A refusal says why",
    "A1": "No append is lost",
    "A2": "No append is doubled",
    "A3": "Nothing is invented",
    "A4": "The order is the order of appending",
    "A5": "Loads only grow",
    "A6": "Loads are current",
    "A7": "Replacing happens at once",
    "A8": "An id stands for one message",
    "A9": "Appending costs the same in a long log",
    "A10": "The newest n",
    "S1": "Updates merge",
    "S2": "What an update takes",
    "S3": "Saving replaces",
    "S4": "The parts of a task are independent",
    "S5": "Missing is not an error",
    "L1": "Lists are complete",
    "L2": "Exactly once",
    "L3": "Filters are exact",
    "L4": "A fixed order to go on in",
    "V1": "Nothing is shared",
    "V2": "Numbers and containers keep type and value",
    "V3": "All of Unicode is kept",
    "V4": "None is kept",
    "V5": "Nothing is cut",
    "V6": "What cannot be carried is refused",
    "V7": "Instants are UTC",
    "V8": "Records carry their format",
    "I1": "Different ids are different scopes",
    "I2": "Separators and prefixes keep ids apart",
    "I3": "Paths and patterns are ids like any other",
    "I4": "What an id is",
    "I5": "Namespaces are separate worlds",
    "C1": "delete_task removes a task and nothing else",
    "C2": "Deleting nothing is fine",
    "C3": "Nothing stays",
    "C4": "A crash leaves no visible mess",
    "C5": "Sweeping never breaks fencing",
    "C6": "Checkpoints can expire",
    "C7": "Closing is complete",
    "C8": "A failed call leaves nothing behind",
    "C9": "Maintenance is invisible",
    "E1": "Failures reach the caller",
    "E2": "The three outcomes are never confused",
    "E3": "Only outlast's errors leave a backend",
    "E4": "No secret is shown",
    "E5": "Retries are the adapter's",
    "E6": "Every call ends",
    "D1": "Durability is declared, then tested",
    "D2": "Silent loss is announced",
    "X1": "Cancellation arrives",
    "X2": "Answers are not mixed up",
    "X3": "Another loop, another process",
    "X4": "Set-up may race",
    "P1": "One step, one round trip",
}

LEVELS: Final[tuple[tuple[str, str], ...]] = (
    ("complete", "".join(GROUPS)),
    ("fencing, atomicity, cleanup", "FASC"),
    ("fencing, atomicity", "FAS"),
    ("fencing", "F"),
)
"""What a backend may call itself, best first, each with the groups of which every clause that has a
check must have been verified."""

OUT_OF_REACH: Final[Mapping[str, str]] = {
    "C9": "there is no maintenance operation to run yet",
}
"""Clauses without a check in this release, and why."""


def clause_key(clause: str) -> tuple[int, int]:
    """Sorts clause ids as the contract does: by group, then by number."""
    return list(GROUPS).index(clause[0]), int(clause[1:])


__all__ = ["CLAUSES", "GROUPS", "HEADLINES", "LEVELS", "OUT_OF_REACH", "clause_key"]
