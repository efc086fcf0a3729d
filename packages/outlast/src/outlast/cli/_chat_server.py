"""The local model server that speaks Chat Completions; as a program, it serves replies from a file.

See `outlast.cli._model_server`.
"""

import argparse
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from outlast.cli._model_server import (
    Event,
    Fault,
    Json,
    ModelServer,
    Question,
    Refusal,
    Reply,
    Script,
    ScriptedCall,
    Served,
    pieces,
)
from outlast.providers.openai_chat import CONTINUE_INSTRUCTION


class ChatDialect:
    """Chat Completions, as far as the adapter speaks it."""

    def read(self, method: str, path: str, body: Json) -> Question:
        """Understand a request."""
        if method != "POST" or not path.endswith("/chat/completions"):
            raise Refusal("unknown path", 404)
        messages: list[Json] = body["messages"]
        prefix = ""
        if len(messages) > 1 and _is_prefix(messages[-2], messages[-1]):
            prefix = str(messages[-2].get("content") or "")
            messages = messages[:-2]
        spoken = sum(message.get("role") == "assistant" for message in messages)
        return Question(messages, spoken, prefix)

    def events(self, reply: Reply, question: Question, body: Json) -> Iterator[Event]:
        """The chunks of an answer."""
        head: Json = {
            "id": "chatcmpl-scripted",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body.get("model", "scripted"),
        }
        for delta in deltas(reply, question.prefix):
            yield None, {**head, "choices": [_choice(delta, None)]}
        reason = reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
        yield None, {**head, "choices": [_choice({}, reason)]}
        yield None, "[DONE]"

    def error(self, body: Json, *, in_stream: bool) -> Event:
        """The same in a stream and as an answer."""
        return None, {"error": body}


def deltas(reply: Reply, prefix: str = "") -> Iterator[Json]:
    """The deltas that follow ``prefix``, which is the begin of the reply's text."""
    yield {"role": "assistant", "content": ""}
    for piece in pieces(reply.reasoning, reply.piece):
        yield {"reasoning_content": piece}
    for piece in pieces(reply.text[len(prefix) :], reply.piece):
        yield {"content": piece}
    for index, call in enumerate(reply.tool_calls):
        head = {"index": index, "id": call.id, "type": "function"}
        yield {"tool_calls": [{**head, "function": {"name": call.name, "arguments": ""}}]}
        for piece in pieces(call.arguments, reply.piece):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _choice(delta: Json, reason: str | None) -> Json:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}


def _is_prefix(message: Json, follower: Json) -> bool:
    return message.get("role") == "assistant" and follower.get("content") == CONTINUE_INSTRUCTION


class ChatServer(ModelServer):
    """A `ModelServer` that speaks Chat Completions."""

    def __init__(self, script: Script, **options: Any) -> None:
        super().__init__(ChatDialect(), script, **options)

    @property
    def url(self) -> str:
        """The ``base_url`` for a client."""
        return f"{super().url}/v1"


def main() -> None:
    """Serve replies from a JSON file until interrupted; the first line printed is the URL."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("replies", type=Path, help='list of {"text", "tool_calls"} objects')
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between events")
    arguments = parser.parse_args()
    replies = [
        Reply(
            text=item.get("text", ""),
            tool_calls=tuple(ScriptedCall(**call) for call in item.get("tool_calls", ())),
        )
        for item in json.loads(arguments.replies.read_text(encoding="utf-8"))
    ]
    with ChatServer(replies, port=arguments.port, pace=arguments.pace) as server:
        print(server.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()


__all__ = [
    "ChatDialect",
    "ChatServer",
    "Fault",
    "Reply",
    "ScriptedCall",
    "Served",
    "deltas",
    "main",
]
