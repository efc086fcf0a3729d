"""Backends with one defect each, to show that the suite finds it, and by which clause."""

from broken_backends import (
    fences,
    files,
    filings,
    identities,
    lifecycles,
    listings,
    logs,
    pagings,
    registers,
    stored,
)
from broken_backends.kit import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "fences",
    "files",
    "filings",
    "identities",
    "lifecycles",
    "listings",
    "logs",
    "pagings",
    "registers",
    "stored",
]
