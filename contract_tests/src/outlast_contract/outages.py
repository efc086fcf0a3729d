"""What owners noted while their server was away at times, held to the contract."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from outlast.driver import Scope
from outlast.errors import (
    FencedError,
    OutcomeUnknownError,
    StaleWriteError,
    TaskNotFoundError,
    UnavailableError,
)
from outlast_contract.expect import Violation, expect
from outlast_contract.mutations import MUTATIONS, Image
from outlast_contract.owners import CANCELLED, Event

_DOCUMENTED: Final = {CANCELLED} | {
    kind.__name__
    for kind in (
        FencedError,
        OutcomeUnknownError,
        StaleWriteError,
        TaskNotFoundError,
        UnavailableError,
    )
}
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
    """

    timeout: float
    keeps_data: bool
    keeps_fences: bool
    events: dict[Scope, list[Event]] = field(default_factory=dict[Scope, list[Event]])
    outages: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    late_since: float = math.inf

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

    def count(self, *, outcome: str = "", error: str = "") -> int:
        """How many calls ended so."""
        return sum(
            outcome in ("", event.outcome) and error in ("", event.error)
            for events in self.events.values()
            for event in events
        )

    def check(self) -> None:
        """Hold everything to the contract.

        Only documented errors; no call that met a server at work failed; with fences kept, no epoch
        twice and nothing done or refused wrongly; with data kept, every read is what the done
        writes, in their order, and any of those that were not answered, leave; without, each part
        of it was at least written, and messages are in order.

        Raises:
            Violation: With the clause that was broken, and the calls before.
        """
        for events in self.events.values():
            judge = _Judge(self)
            for number, event in enumerate(events):
                try:
                    judge.judge(event)
                except Violation as broken:
                    shown = events[max(0, number - _SHOWN) : number + 1]
                    lines = "\n".join(f"  {one}" for one in shown)
                    gone = ", ".join(f"{a:.3f} to {b:.3f}" for a, b in self.outages)
                    text = f"{event.scope.kind} {event.scope.id!r}: {broken.message}\n{lines}"
                    message = f"{text}\n  the server was away: {gone or 'never'}"
                    raise Violation(message, broken.clause) from None

    def met_an_outage(self, event: Event) -> bool:
        """Whether the server was away at some time of the call."""
        return any(event.began < back and gone < event.ended for gone, back in self.outages)


class _Judge:
    """Goes through the calls on one scope."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._newest = 0
        self._is_fenced = False
        self._is_settled = True
        self._images = [Image()]
        self._sent: set[str] = set()

    def judge(self, event: Event) -> None:
        self._judge_ending(event)
        if event.is_stale:
            self._judge_stale(event)
            return
        if self._history.keeps_fences:
            self._judge_fence(event)
        if event.name in MUTATIONS:
            self._written(event)
        elif event.outcome == "done" and event.name == "claim":
            self._is_settled = True
        if event.seen is not None:
            self._judge_sight(event, event.seen)

    def _judge_ending(self, event: Event) -> None:
        expect(
            not event.error or event.error in _DOCUMENTED,
            f"{event.name} ended with {event.error}: {event.message}",
            clause="E2",
        )
        took = event.ended - event.began
        expect(
            took <= 2 * self._history.timeout,
            f"{event.name} took {took:.1f} s, with a timeout of {self._history.timeout:g} s",
            clause="E6",
        )
        expect(
            event.error not in (UnavailableError.__name__, OutcomeUnknownError.__name__)
            or self._history.met_an_outage(event),
            f"{event.name} met a server that was back, and ended with {event.error}",
            clause="C8",
        )

    def _judge_stale(self, event: Event) -> None:
        expect(
            event.outcome != "done",
            f"{event.name} of epoch {event.epoch} was done after epoch {self._newest} had been "
            "claimed",
            clause="F2",
        )
        expect(
            event.reason in ("", "superseded"),
            f"{event.name} of epoch {event.epoch} was refused as {event.reason}",
            clause="F13",
        )

    def _judge_fence(self, event: Event) -> None:
        if event.reason == "superseded" and event.ended >= self._history.late_since:
            self._is_fenced = True
            return
        expect(
            not (self._is_fenced and event.name in MUTATIONS and event.outcome == "done"),
            f"{event.name} of epoch {event.epoch} was done after a late claim had superseded it",
            clause="F2",
        )
        expect(
            not event.reason,
            f"{event.name} of epoch {event.epoch} was refused as {event.reason}, and it is the "
            "newest",
            clause="F2",
        )
        if event.name == "claim" and event.outcome == "done":
            expect(
                event.epoch > self._newest,
                f"epoch {event.epoch} was handed out after {self._newest}",
                clause="F1",
            )
            self._newest, self._is_fenced = event.epoch, False

    def _written(self, event: Event) -> None:
        self._sent.add(event.mark)
        mutation = MUTATIONS[event.name]
        if event.error == TaskNotFoundError.__name__ and self._history.keeps_data:
            expect(
                any(image.state is None for image in self._images),
                "there was no state, though one had been saved",
                clause="D1",
            )
        if event.outcome == "refused":
            return
        before = [
            image for image in self._images if image.state is not None or not mutation.needs_state
        ]
        after = [mutation.model(image, event.scope.id, event.mark) for image in before]
        self._is_settled = event.outcome == "done"
        self._images = after if self._is_settled else [*self._images, *after]

    def _judge_sight(self, event: Event, seen: Image) -> None:
        if not self._history.keeps_data:
            expect(
                _is_made_of(seen, self._sent),
                f"{event.name} returned what was not written, or not in this order: {_told(seen)}",
                clause="A3",
            )
            return
        expect(
            seen in self._images,
            f"{event.name} returned\n  {_told(seen)}\nand the writes before it leave\n  "
            + "\n  or ".join(map(_told, self._images)),
            clause="D1",
        )
        if self._is_settled:
            self._images = [seen]


def _is_made_of(image: Image, marks: set[str]) -> bool:
    """Whether each part was written once, and messages are in the order of their numbers."""
    for log in (image.api, image.user):
        ids = [tuple(map(int, message.id.split("#"))) for message in log]
        if ids != sorted(set(ids)):
            return False
    return set(_marks(image)) <= marks


def _marks(image: Image) -> list[str]:
    found = [message.id.partition("#")[0] for log in (image.api, image.user) for message in log]
    if image.state is not None:
        found.extend(image.state.config.values())
    if image.input is not None:
        found.append(image.input.message)
    if image.checkpoint is not None:
        found.append(image.checkpoint.text)
    return found


def _told(image: Image) -> str:
    """An image in short: the marks of its parts."""
    parts = {
        "state": image.state and image.state.config,
        "input": image.input and image.input.message,
        "checkpoint": image.checkpoint and image.checkpoint.text,
        "api": [message.id for message in image.api],
        "user": [message.id for message in image.user],
    }
    return ", ".join(f"{name} {part}" for name, part in parts.items() if part) or "nothing"


__all__ = ["History"]
