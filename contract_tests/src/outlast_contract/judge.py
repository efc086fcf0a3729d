"""Goes through the calls on one scope, and says which of them the contract does not allow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import msgspec

from outlast.errors import (
    FencedError,
    OutcomeUnknownError,
    StaleWriteError,
    TaskNotFoundError,
    UnavailableError,
)
from outlast_contract.expect import expect
from outlast_contract.mutations import MUTATIONS, Image
from outlast_contract.owners import CANCELLED, Event

Fate = Literal["applied", "not applied", "cannot be told"]
"""What became of a write that was not answered, as far as later reads show it."""

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


class Circumstances(Protocol):
    """What a judge asks of a history."""

    timeout: float
    keeps_data: bool
    keeps_fences: bool
    late_since: float

    def met_an_outage(self, event: Event) -> bool:
        """Whether the server was away at some time of the call."""
        ...


@dataclass(frozen=True)
class _Possible:
    """What may be stored, and by which of the unanswered writes.

    Attributes:
        must: Those that were applied if this is what is stored.
        may: Those that may have been.
    """

    image: Image
    must: frozenset[int] = frozenset()
    may: frozenset[int] = frozenset()


class Judge:
    """Takes one call after the other, in the order in which they were made."""

    def __init__(self, history: Circumstances) -> None:
        self._history = history
        self._newest = 0
        self._is_fenced = False
        self._is_settled = True
        self._possible = [_Possible(Image())]
        self._sent: set[str] = set()
        self._unanswered: set[int] = set()
        self._claims: set[str] = set()
        self._open_claims: set[str] = set()

    def judge(self, number: int, event: Event) -> None:
        """Judge call number ``number``.

        Raises:
            Violation: With the clause that was broken.
        """
        self._judge_ending(event)
        if event.is_stale:
            self._judge_stale(event)
            return
        if self._history.keeps_fences:
            self._judge_fence(event)
        if event.name in MUTATIONS:
            self._written(number, event)
        elif event.outcome == "done" and event.name == "claim":
            self._is_settled = True
        if event.seen is not None:
            self._judge_sight(event, event.seen)

    def fates(self) -> Mapping[int, Fate]:
        """What became of each write that was not answered, by the number of the call."""
        return {
            number: "applied"
            if all(number in one.must for one in self._possible)
            else "cannot be told"
            if any(number in one.may for one in self._possible)
            else "not applied"
            for number in sorted(self._unanswered)
        }

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
        if event.name == "claim":
            self._claims.add(event.claim_id)
            if event.outcome == "unknown":
                self._open_claims.add(event.claim_id)
        if event.reason == "superseded":
            self._judge_superseded(event)
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

    def _judge_superseded(self, event: Event) -> None:
        """The newest owner is refused rightly only if a claim came late (F10): one that was never
        answered, or any of them if requests were held up.
        """
        late = event.ended >= self._history.late_since
        by = self._claims if late else self._open_claims
        what = (
            f"{event.name} of epoch {event.epoch} was refused as superseded, and it is the newest"
        )
        expect(by or late, f"{what}: every claim was answered before", clause="F2")
        if event.holder is not None:
            claim_id, epoch = event.holder
            expect(
                claim_id in by and epoch > event.epoch,
                f"{what}: the store holds epoch {epoch} of claim {claim_id[:6]}, which "
                + ("was answered before" if claim_id in self._claims else "nobody sent"),
                clause="F2",
            )
        self._is_fenced = True

    def _written(self, number: int, event: Event) -> None:
        self._sent.add(event.mark)
        mutation = MUTATIONS[event.name]
        if event.error == TaskNotFoundError.__name__ and self._history.keeps_data:
            expect(
                any(one.image.state is None for one in self._possible),
                "there was no state, though one had been saved",
                clause="D1",
            )
        if event.outcome == "refused":
            return
        self._is_settled = event.outcome == "done"
        mine: frozenset[int] = frozenset(() if self._is_settled else (number,))
        self._unanswered |= mine
        after = [
            _Possible(
                mutation.model(one.image, event.scope.id, event.mark),
                one.must | mine,
                one.may | mine,
            )
            for one in self._possible
            if one.image.state is not None or not mutation.needs_state
        ]
        self._possible = _merged(after if self._is_settled else [*self._possible, *after])

    def _judge_sight(self, event: Event, seen: Image) -> None:
        if not self._history.keeps_data:
            expect(
                _is_made_of(seen, self._sent),
                f"{event.name} returned what was not written, or not in this order: {_told(seen)}",
                clause="A3",
            )
            return
        found = [one for one in self._possible if one.image == seen]
        expect(
            found,
            f"{event.name} returned\n  {_told(seen)}\nand the writes before it leave\n  "
            + "\n  or ".join(_told(one.image) for one in self._possible),
            clause="D1",
        )
        if self._is_settled:
            self._possible = found


def _merged(possible: Iterable[_Possible]) -> list[_Possible]:
    """One of each image; what leads to it in several ways is known in part only."""
    found: dict[bytes, _Possible] = {}
    for one in possible:
        key = msgspec.json.encode(one.image, order="deterministic")
        known = found.get(key)
        if known is not None:
            one = _Possible(one.image, known.must & one.must, known.may | one.may)  # noqa: PLW2901
        found[key] = one
    return list(found.values())


def _is_made_of(image: Image, marks: set[str]) -> bool:
    """Whether each part was written once, and messages are in the order of their numbers."""
    for log in (image.api, image.user):
        ids = [_place(message.id) for message in log]
        if ids != sorted(set(ids)):
            return False
    return marks_of(image) <= marks


def _place(message_id: str) -> tuple[int, int]:
    mark, _, number = message_id.partition("#")
    return int(mark.rpartition(".")[2]), int(number)


def marks_of(image: Image) -> set[str]:
    """What was written, to tell its parts apart."""
    found = {message.id.partition("#")[0] for log in (image.api, image.user) for message in log}
    if image.state is not None:
        found.update(image.state.config.values())
    if image.input is not None:
        found.add(image.input.message)
    if image.checkpoint is not None:
        found.add(image.checkpoint.text)
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


__all__ = ["Circumstances", "Fate", "Judge", "marks_of"]
