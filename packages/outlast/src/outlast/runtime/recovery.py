"""How a cut model turn goes on: one decision, made from what was streamed so far."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, cast

import msgspec

from outlast.errors import InvalidDataError
from outlast.model_api import Block, TextBlock, ToolCallBlock
from outlast.models import PartialToolCall, StreamCheckpoint
from outlast.values import check_json


class RecoveryKind(StrEnum):
    """The four ways to go on."""

    CONTINUE_TEXT = "R1"
    """Text only: send it along as a prefix, and ask for the rest."""
    COMPLETE_CALLS = "R2"
    """A tool call is complete: the turn is finished as it stands, without a model call."""
    DROP_CALLS = "R3"
    """Text, and no call that is complete: drop the calls, go on from the text as in R1."""
    RESTART = "R4"
    """Nothing to go on from: begin the turn anew."""


class RecoveryPlan(msgspec.Struct, frozen=True):
    """What to do about a cut turn.

    Attributes:
        kind: Which of the four ways.
        text: What the turn keeps of its text. The committed text is this and what follows it.
        tool_calls: The complete calls; of R2 only.
        dropped: The calls that are given up: unfinished, or malformed.
    """

    kind: RecoveryKind
    text: str = ""
    tool_calls: tuple[ToolCallBlock, ...] = ()
    dropped: tuple[PartialToolCall, ...] = ()

    @property
    def calls_model(self) -> bool:
        """Whether the model is asked again."""
        return self.kind is not RecoveryKind.COMPLETE_CALLS

    @property
    def prefix(self) -> str:
        """What a model call has to be told that was said already; it goes into the request
        alone.
        """
        return self.text if self.calls_model else ""

    def content(self) -> list[Block]:
        """The blocks of the turn as it stands; with R2 they are the message to commit, apart from
        what goes back to the provider, which the process that streamed the turn adds.
        """
        return to_blocks(self.text, self.tool_calls)


def plan_recovery(checkpoint: StreamCheckpoint) -> RecoveryPlan:
    """Decide how the turn of ``checkpoint`` goes on.

    A tool call counts as complete if it has a name and its arguments parse as a JSON object that
    a store can keep: no longer text can continue such an object, while ``12`` may be the start of
    ``123``. Text that is only white space is nothing to go on from (APIs refuse it as a prefix).
    """
    complete: list[ToolCallBlock] = []
    dropped: list[PartialToolCall] = []
    for call in checkpoint.tool_calls:
        block = complete_call(call)
        if block is None:
            dropped.append(call)
        else:
            complete.append(block)
    if complete:
        return RecoveryPlan(
            RecoveryKind.COMPLETE_CALLS, checkpoint.text, tuple(complete), tuple(dropped)
        )
    if not checkpoint.text.strip():
        return RecoveryPlan(RecoveryKind.RESTART, dropped=tuple(dropped))
    kind = RecoveryKind.DROP_CALLS if dropped else RecoveryKind.CONTINUE_TEXT
    return RecoveryPlan(kind, checkpoint.text, dropped=tuple(dropped))


def complete_call(call: PartialToolCall) -> ToolCallBlock | None:
    """The call as a block, if it is complete."""
    arguments = parse_arguments(call.arguments) if call.name else None
    if arguments is None:
        return None
    return ToolCallBlock(type="tool_call", id=call.id, name=call.name, arguments=arguments)


def parse_arguments(text: str) -> dict[str, Any] | None:
    """The JSON object that ``text`` is, or ``None`` if it is anything else or cannot be stored."""
    if not text.rstrip().endswith("}"):
        return None
    try:
        value: Any = msgspec.json.decode(text)
        # As deep as it will lie in a message: content, block, arguments.
        check_json([{"arguments": value}], "arguments")
    except (msgspec.MsgspecError, InvalidDataError, UnicodeError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def to_blocks(text: str, calls: Iterable[ToolCallBlock]) -> list[Block]:
    """The content of an assistant's message: its text, if any, then its calls in order."""
    blocks: list[Block] = [TextBlock(type="text", text=text)] if text else []
    blocks.extend(calls)
    return blocks


__all__ = [
    "RecoveryKind",
    "RecoveryPlan",
    "complete_call",
    "parse_arguments",
    "plan_recovery",
    "to_blocks",
]
