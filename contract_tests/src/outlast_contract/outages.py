"""What owners noted while their server was away at times, and what came of it in the end."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from outlast.driver import Scope
from outlast_contract.expect import Violation
from outlast_contract.judge import Fate, Judge
from outlast_contract.owners import Event

_SHOWN: Final = 12
"""So many events of a scope are shown before the one that is wrong."""


@dataclass
class History:
    """The calls of all owners, and when the server was away.

    Attributes:
        timeout: Seconds that one call may take.
        keeps_data: Whether done writes survive the outages.
        keeps_fences: Whether claims do.
        outages: When each began, and when the server served again.
        late_since: From when on requests may have arrived late: a late claim supersedes the newest
            owner, who has to claim again (F10).
        fates: Of each scope, by the number of the call, what became of the writes that were not
            answered; filled by `check`.
        broken: The scope and the number of the call that broke a clause; filled by `check`.
    """

    timeout: float
    keeps_data: bool
    keeps_fences: bool
    events: dict[Scope, list[Event]] = field(default_factory=dict[Scope, list[Event]])
    outages: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    late_since: float = math.inf
    fates: dict[Scope, Mapping[int, Fate]] = field(default_factory=dict[Scope, Mapping[int, Fate]])
    broken: tuple[Scope, int] | None = None

    def add(self, events: Iterable[Event]) -> None:
        """Note what an owner noted."""
        for event in events:
            self.events.setdefault(event.scope, []).append(event)

    def since(self, instant: float, scope: Scope) -> list[Event]:
        """The calls on a scope that began later."""
        found: list[Event] = []
        for event in reversed(self.events.get(scope, ())):
            if event.began < instant:
                break
            found.append(event)
        return found

    def count(self, *, outcome: str = "", error: str = "", fate: Fate | None = None) -> int:
        """How many calls ended so, or turned out so in the end."""
        return sum(
            outcome in ("", event.outcome)
            and error in ("", event.error)
            and fate in (None, self.fates.get(scope, {}).get(number))
            for scope, events in self.events.items()
            for number, event in enumerate(events)
        )

    def check(self) -> None:
        """Hold everything to the contract.

        Only documented errors; no call that met a server at work failed; with fences kept, no epoch
        twice and nothing done or refused wrongly; with data kept, every read is what the done
        writes, in their order, and any of those that were not answered, leave; without, each part
        of it was at least written, and messages are in order.

        A claim that was not answered may take effect at any later time: the owner that it
        supersedes is refused, and that is right (F10).

        Raises:
            Violation: With the clause that was broken, and the calls before.
        """
        for scope, events in self.events.items():
            judge = Judge(self)
            for number, event in enumerate(events):
                try:
                    judge.judge(number, event)
                except Violation as broken:
                    self.fates[scope] = judge.fates()
                    self.broken = scope, number
                    message = f"{scope.kind} {scope.id!r}: {broken.message}\n"
                    raise Violation(message + self.told(scope, number), broken.clause) from None
            self.fates[scope] = judge.fates()

    def told(self, scope: Scope, last: int) -> str:
        """The calls on a scope that ended with call number ``last``, for people."""
        events = self.events[scope]
        first = max(0, last + 1 - _SHOWN)
        open_claims = [
            (number, event)
            for number, event in enumerate(events[:first])
            if event.name == "claim" and event.outcome == "unknown"
        ]
        chosen = dict([*open_claims[-3:], *enumerate(events[first : last + 1], first)])
        lines = [f"  {event}{self._fate(scope, number)}" for number, event in chosen.items()]
        began, ended = events[min(chosen)].began, events[last].ended
        gone = ", ".join(
            f"{start:.3f}" if start == end else f"{start:.3f} to {end:.3f}"
            for start, end in self.outages
            if start <= ended and began <= end
        )
        return "\n".join([*lines, f"  the server was away: {gone or 'never'}"])

    def _fate(self, scope: Scope, number: int) -> str:
        fate = self.fates.get(scope, {}).get(number)
        return f"; in the end: {fate}" if fate else ""

    def met_an_outage(self, event: Event) -> bool:
        """Whether the server was away at some time of the call."""
        return any(event.began <= back and gone <= event.ended for gone, back in self.outages)


__all__ = ["History"]
