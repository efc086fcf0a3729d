"""What an application sees of a model turn while it streams.

Rendering is simple: a `TextDelta` is appended, a `ToolCallDelta` and a `ToolCallReady` show a
call, a `ToolCallCancelled` takes one away, and a `StreamReset` replaces everything shown of the
turn. What is shown at the end is what is committed.
"""

from typing import Any

import msgspec

from outlast.model_api import TextDelta, ToolCallDelta


class ToolCallReady(msgspec.Struct, frozen=True):
    """A tool call's arguments are complete. Run it from the committed message, not from this event:
    until the commit, a successor may still decide otherwise.

    Attributes:
        id: The call's id.
        name: The tool.
        arguments: Parsed.
    """

    id: str
    name: str
    arguments: dict[str, Any]


class ToolCallCancelled(msgspec.Struct, frozen=True, gc=False):
    """A tool call was cut or malformed; it is not part of the turn and never runs.

    Attributes:
        id: The call's id.
        name: The tool.
        arguments: The raw text that had arrived.
    """

    id: str
    name: str
    arguments: str = ""


class StreamReset(msgspec.Struct, frozen=True, gc=False):
    """Forget what was shown of this turn: it goes on from ``text`` (empty: from the beginning)."""

    text: str = ""


StreamEvent = TextDelta | ToolCallDelta | ToolCallReady | ToolCallCancelled | StreamReset
"""What iterating over a turn yields."""


__all__ = [
    "StreamEvent",
    "StreamReset",
    "TextDelta",
    "ToolCallCancelled",
    "ToolCallDelta",
    "ToolCallReady",
]
