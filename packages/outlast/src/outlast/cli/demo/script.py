"""The conversation of the demo: what is asked, what the model streams, what the tools answer.

All of it is fixed, so the script tells which conversation must be in the store at the end, whatever
happened to the processes on the way.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from outlast.cli import _chat_server as chat
from outlast.cli._chat_server import Reply
from outlast.model_api import ModelRequest, ToolSpec
from outlast.models import ApiMessage

Json = dict[str, Any]

TASK_ID: Final = "trip-to-milan"
MODEL_NAME: Final = "scripted"
QUESTION_ID: Final = "question"
PIECE: Final = 6
"""UTF-16 code units in one delta; some deltas end within a character."""


class ScriptedCall(msgspec.Struct, frozen=True):
    """A tool call as the model makes it, and what the tool answers to exactly these arguments."""

    id: str
    name: str
    arguments: Json
    result: Json

    @property
    def text(self) -> str:
        """The arguments as they are streamed."""
        return json.dumps(self.arguments, ensure_ascii=False)


class ScriptedTurn(msgspec.Struct, frozen=True):
    """What the model says in one turn."""

    text: str
    call: ScriptedCall | None = None

    def reply(self) -> Reply:
        """The same for the model's server."""
        if self.call is None:
            return Reply(self.text, piece=PIECE)
        call = chat.ScriptedCall(self.call.id, self.call.name, self.call.text)
        return Reply(self.text, (call,), piece=PIECE)


class Conversation(msgspec.Struct, frozen=True):
    """A question, and the model's turns until it has nothing more to do."""

    question: str
    turns: tuple[ScriptedTurn, ...]

    def messages(self) -> list[ApiMessage]:
        """The conversation as it must be committed."""
        messages = [ApiMessage(QUESTION_ID, "user", self.question)]
        for number, turn in enumerate(self.turns, 1):
            content: list[Json] = [{"type": "text", "text": turn.text}]
            if turn.call is not None:
                call = turn.call
                content.append(
                    {
                        "type": "tool_call",
                        "id": call.id,
                        "name": call.name,
                        "arguments": call.arguments,
                    }
                )
            messages.append(ApiMessage(message_id(number), "assistant", content))
            if turn.call is not None:
                messages.append(tool_message(turn.call.id, turn.call.result))
        return messages

    def replies(self) -> list[Reply]:
        """What the model's server is to stream."""
        return [turn.reply() for turn in self.turns]

    def calls(self) -> list[ScriptedCall]:
        """The tool calls, in order; each must run exactly once."""
        return [turn.call for turn in self.turns if turn.call is not None]


def message_id(turn: int) -> str:
    """The id under which a turn is committed; chosen before its first attempt."""
    return f"turn-{turn}"


def run_id(turn: int) -> str:
    """The run in which a turn is streamed."""
    return f"run-{turn}"


def tool_message(call_id: str, result: object, *, is_error: bool = False) -> ApiMessage:
    """The message that answers a tool call."""
    block = {"type": "tool_result", "call_id": call_id, "content": result, "is_error": is_error}
    return ApiMessage(f"result-{call_id}", "tool", [block])


def blocks(message: ApiMessage, kind: str | None = None) -> list[Json]:
    """The blocks of a message, or those of one kind."""
    if not isinstance(message.content, list):
        return []
    found = cast("list[Json]", message.content)
    return [block for block in found if kind is None or block.get("type") == kind]


def run_tool(name: str, arguments: Mapping[str, Any]) -> tuple[object, bool]:
    """Run a tool of the script: its result, and whether that is an error."""
    for call in CONVERSATION.calls():
        if call.name == name and call.arguments == arguments:
            return call.result, False
    return (
        f"{name} does not know these arguments: {json.dumps(arguments, ensure_ascii=False)}",
        True,
    )


def request(messages: list[ApiMessage]) -> ModelRequest:
    """What the model is asked in the conversation's present state."""
    return ModelRequest(messages=messages, tools=TOOLS)


TOOLS: Final = (
    ToolSpec("search_trains", "Find trains between two stations."),
    ToolSpec("book_seat", "Book one seat and charge the fare. Every call books another seat."),
)

CONVERSATION: Final = Conversation(
    question="Book me a quiet window seat from Zürich to Milano on Friday morning, under CHF 90.",
    turns=(
        ScriptedTurn(
            text=(
                "I will look for direct trains on Friday morning first. After that I compare what "
                "each of them charges for a seat in the quiet car, and only then do I book one: a "
                "ticket at this fare cannot be given back. Zürich HB to Milano Centrale takes a "
                "little over three hours through the Gotthard 🚄, so anything that leaves between "
                "seven and nine gets you there before noon."
            ),
            call=ScriptedCall(
                id="call_search",
                name="search_trains",
                arguments={
                    "from": "Zürich HB",
                    "to": "Milano Centrale",
                    "date": "2026-05-08",
                    "leave": {"after": "07:00", "before": "09:00"},
                    "direct": True,
                    "max_fare": {"amount": 90.0, "currency": "CHF"},
                },
                result={
                    "trains": [
                        {"id": "EC 311", "leaves": "07:33", "fare": 86.0, "quiet_seats": 0},
                        {"id": "EC 313", "leaves": "08:33", "fare": 79.0, "quiet_seats": 4},
                    ]
                },
            ),
        ),
        ScriptedTurn(
            text=(
                "Two direct trains fit. EC 311 at 07:33 has no seat left in the quiet car. EC 313 "
                "leaves at 08:33, arrives at 11:50, costs CHF 79 and has four quiet seats, two of "
                "them at the window, on the side where you see the lakes. I am booking one of "
                "these now, once, for the fare that you allowed."
            ),
            call=ScriptedCall(
                id="call_book",
                name="book_seat",
                arguments={
                    "train": "EC 313",
                    "date": "2026-05-08",
                    "car": "quiet",
                    "seat": {"position": "window", "side": "left"},
                    "fare": {"amount": 79.0, "currency": "CHF"},
                    "passengers": 1,
                },
                result={"booking": "K7QX2M", "car": 4, "seat": "61A", "charged": 79.0},
            ),
        ),
        ScriptedTurn(
            text=(
                "Done: EC 313 on Friday, Zürich HB 08:33 to Milano Centrale 11:50, car 4 (quiet), "
                "seat 61A at the window. CHF 79 were charged once; the booking is K7QX2M. ☕ The "
                "dining car opens after Arth-Goldau."
            ),
        ),
    ),
)


__all__ = [
    "CONVERSATION",
    "MODEL_NAME",
    "PIECE",
    "QUESTION_ID",
    "TASK_ID",
    "TOOLS",
    "Conversation",
    "ScriptedCall",
    "ScriptedTurn",
    "message_id",
    "request",
    "run_id",
    "run_tool",
    "tool_message",
]
