"""When a worker is killed or stopped: places in the model's stream, drawn or given."""

import random
import re
from typing import Final, Literal

import msgspec

from outlast.cli._chat_server import deltas
from outlast.cli.demo.events import Saved, Streaming
from outlast.cli.demo.processes import Worker
from outlast.cli.demo.script import ScriptedTurn

Place = Literal["early", "text", "call", "complete"]

KILL_PLACES: Final[tuple[Place, ...]] = ("call", "text", "complete", "early")
STOP_PLACES: Final[tuple[Place, ...]] = ("text", "call", "complete")

PLACE_NAMES: Final[dict[Place, str]] = {
    "early": "before its first checkpoint",
    "text": "in the text",
    "call": "in a tool call's arguments",
    "complete": "before the end, its tool call complete",
}

_SPREAD: Final = 4
MAX_SECONDS: Final = 20.0


class Moment(msgspec.Struct, frozen=True):
    """A moment in a turn's stream.

    Attributes:
        turn: Which turn.
        place: Where in it.
        at: Deltas that the application has been shown.
        hold: Deltas behind which the server waits, so that the stream cannot end too early.
        seconds: Wait so long after the first delta instead.
        waits_for_checkpoint: Whether the store must hold a checkpoint of this place, too.
    """

    turn: int
    place: Place
    at: int
    hold: int
    seconds: float | None = None
    waits_for_checkpoint: bool = True

    def is_reached(self, worker: Worker) -> bool:
        """Whether a worker is there."""
        shown = worker.last(Streaming)
        if shown is None or shown.turn != self.turn or shown.deltas < self.at:
            return False
        return not self.waits_for_checkpoint or self._is_saved(worker)

    def is_settled(self, worker: Worker) -> bool:
        """Whether it is there, everything shown is saved, and no write is under way."""
        shown, saved = worker.last(Streaming), worker.last(Saved)
        return (
            self.is_reached(worker)
            and shown is not None
            and saved is not None
            and (shown.turn, shown.text, shown.arguments)
            == (saved.turn, saved.text, saved.arguments)
            and not worker.is_writing
        )

    def _is_saved(self, worker: Worker) -> bool:
        saved = worker.last(Saved)
        if saved is None or saved.turn != self.turn:
            return False
        match self.place:
            case "early":
                return True
            case "text":
                return saved.text > 0
            case "call":
                return saved.calls > 0
            case "complete":
                return saved.is_complete


def deltas_of(turn: ScriptedTurn) -> tuple[int, int]:
    """How many deltas the text of a turn is streamed in, and how many the turn."""
    made = list(deltas(turn.reply()))[1:]
    return sum("content" in delta for delta in made), len(made)


def draw(rng: random.Random, number: int, turn: ScriptedTurn, place: Place) -> Moment:
    """Draw a moment at a place of a turn."""
    text, total = deltas_of(turn)
    first, last = {
        "early": (1, text),
        "text": (2, text),
        "call": (text + 1, total - 1),
        "complete": (total, total),
    }[place]
    hold = rng.randint(first, last)
    at = max(first, hold - rng.randint(0, _SPREAD))
    return Moment(number, place, at, hold, waits_for_checkpoint=place != "early")


def showcase(number: int, turn: ScriptedTurn, place: Place, share: float) -> Moment:
    """The moment at a fixed share of a place."""
    text, total = deltas_of(turn)
    at = text + round((total - text) * share) if place == "call" else round(text * share)
    return Moment(number, place, at, at)


def parse_kill_after(value: str, number: int, turn: ScriptedTurn) -> Moment:
    """The moment that ``--kill-after`` names: ``40`` deltas, or ``1.5s``.

    Raises:
        ValueError: It names none within the turn.
    """
    text, total = deltas_of(turn)
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)\s*s", value):
        seconds = float(found[1])
        if seconds > MAX_SECONDS:
            raise ValueError(f"--kill-after {value}: at most {MAX_SECONDS:g}s")
        return Moment(number, "complete", 1, total, seconds, waits_for_checkpoint=False)
    if not value.isdecimal():
        raise ValueError(
            f"--kill-after {value}: expected deltas, such as 40, or seconds, such as 0.5s"
        )
    at = int(value)
    if not 1 <= at <= total:
        raise ValueError(f"--kill-after {value}: the turn has deltas 1 to {total}")
    place: Place = "text" if at <= text else "call" if at < total else "complete"
    return Moment(number, place, at, at, waits_for_checkpoint=False)


__all__ = [
    "KILL_PLACES",
    "MAX_SECONDS",
    "PLACE_NAMES",
    "STOP_PLACES",
    "Moment",
    "Place",
    "deltas_of",
    "draw",
    "parse_kill_after",
    "showcase",
]
