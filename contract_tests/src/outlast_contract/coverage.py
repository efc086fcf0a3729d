"""How much of the suite was run: a report of a part of it must not pass for one of the whole."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from outlast_contract.engine import TIERS, Check, Result


@dataclass(frozen=True)
class Coverage:
    """What became of the checks that there are.

    Attributes:
        checks: How many there are.
        run: How many of them were carried out.
        left_out: Those without a result, in the order of the suite: not chosen, by tiers, clauses
            or cases, or by what a pytest run selects.
    """

    checks: int
    run: int
    left_out: tuple[Check, ...]

    @classmethod
    def of(cls, results: Iterable[Result], suite: Iterable[Check]) -> "Coverage":
        """Of the checks of a suite, and of those beside it that have a result."""
        ran = {result.check.name: result.status != "not run" for result in results}
        left_out = tuple(check for check in suite if check.name not in ran)
        return cls(len(ran) + len(left_out), sum(ran.values()), left_out)

    @property
    def not_run(self) -> int:
        """How many were chosen, but could not be carried out."""
        return self.checks - self.run - len(self.left_out)

    @cached_property
    def by_clause(self) -> Mapping[str, int]:
        """How many checks of each clause were left out."""
        return Counter(clause for check in self.left_out for clause in check.clauses)

    @property
    def text(self) -> str:
        """In one line; of what was left out, how much of which tier."""
        parts = [f"{self.run} of {self.checks} checks were run"]
        if self.not_run:
            parts.append(f"not run: {self.not_run}")
        if self.left_out:
            counts = Counter(check.tier for check in self.left_out)
            told = ", ".join(f"{counts[tier]} of tier {tier}" for tier in TIERS if counts[tier])
            parts.append(f"left out: {told}")
        return "; ".join(parts)


__all__ = ["Coverage"]
