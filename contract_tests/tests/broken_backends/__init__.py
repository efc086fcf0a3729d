"""Backends with one defect each, to show that the suite finds it, and by which clause."""

from broken_backends import (
    crowds,
    fences,
    files,
    filings,
    floors,
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
    "crowds",
    "fences",
    "files",
    "filings",
    "floors",
    "identities",
    "lifecycles",
    "listings",
    "logs",
    "pagings",
    "registers",
    "stored",
]
