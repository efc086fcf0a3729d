"""What the demo and its workers say to each other, as lines of JSON through pipes."""

from typing import Any, Literal

import msgspec


class Job(msgspec.Struct, frozen=True):
    """What a worker is to do; the one line that it reads.

    Attributes:
        url: The store; may hold a password, which is why it does not come as an argument.
        namespace: The demo's own.
        model_url: Where the model's HTTP server listens.
        interval: Seconds between two checkpoints.
        holds_checkpoints: Whether no checkpoint gets through, as with a store that is slow.
    """

    url: str
    namespace: str
    model_url: str
    interval: float = 0.05
    holds_checkpoints: bool = False


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Something that happened in a worker."""


class Ready(Event, frozen=True, tag="ready"):
    """The process has started, and waits for its job."""


class Claimed(Event, frozen=True, tag="claimed"):
    """It owns a task or a run; for a run with what was found there."""

    scope: Literal["task", "run"]
    id: str
    epoch: int
    found: bool = False


class Recovered(Event, frozen=True, tag="recovered"):
    """A turn that another process had begun goes on."""

    turn: int
    plan: str
    text: int
    calls: list[str]
    dropped: list[str]


class Streaming(Event, frozen=True, tag="streaming"):
    """A delta was shown: characters of this turn so far, and deltas of this model call."""

    turn: int
    deltas: int
    text: int
    arguments: int
    call: str = ""


class Saving(Event, frozen=True, tag="saving"):
    """A checkpoint is about to be written."""

    turn: int


class Saved(Event, frozen=True, tag="saved"):
    """A checkpoint is in the store: characters and tool calls that it holds."""

    turn: int
    text: int
    calls: int
    arguments: int
    is_complete: bool


class CallReady(Event, frozen=True, tag="call_ready"):
    """A tool call is complete."""

    turn: int
    name: str


class CallCancelled(Event, frozen=True, tag="call_cancelled"):
    """An unfinished tool call is given up."""

    turn: int
    name: str
    arguments: str


class Committed(Event, frozen=True, tag="committed"):
    """A turn's message is in the conversation."""

    turn: int
    text: int
    calls: int


class ToolRun(Event, frozen=True, tag="tool_run"):
    """A tool was run."""

    name: str
    arguments: dict[str, Any]
    is_error: bool


class Refused(Event, frozen=True, tag="refused"):
    """The store refused a write."""

    what: str
    reason: str
    epoch: int
    stored_epoch: int | None


class Accepted(Event, frozen=True, tag="accepted"):
    """The store took a write that it had to refuse."""

    what: str


class Fenced(Event, frozen=True, tag="fenced"):
    """The turn has ended: another process owns the task."""

    message: str


class Finished(Event, frozen=True, tag="finished"):
    """The conversation is complete."""


class Failed(Event, frozen=True, tag="failed"):
    """The worker gives up."""

    error: str


AnyEvent = (
    Ready
    | Claimed
    | Recovered
    | Streaming
    | Saving
    | Saved
    | CallReady
    | CallCancelled
    | Committed
    | ToolRun
    | Refused
    | Accepted
    | Fenced
    | Finished
    | Failed
)

__all__ = [
    "Accepted",
    "AnyEvent",
    "CallCancelled",
    "CallReady",
    "Claimed",
    "Committed",
    "Event",
    "Failed",
    "Fenced",
    "Finished",
    "Job",
    "Ready",
    "Recovered",
    "Refused",
    "Saved",
    "Saving",
    "Streaming",
    "ToolRun",
]
