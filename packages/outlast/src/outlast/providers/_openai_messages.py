"""Stored messages as requests to Chat Completions."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

from outlast.errors import InvalidDataError
from outlast.model_api import ModelRequest
from outlast.models import ApiMessage
from outlast.providers._fields import field

CONTINUE_INSTRUCTION = (
    "Your last message was interrupted. Write only what comes next, beginning at the exact "
    "character where it stops: repeat nothing of it, and do not mention the interruption."
)
"""Sent behind an unfinished assistant message, since the API itself would begin a new one."""

_RESERVED = frozenset({"messages", "model", "n", "stream", "tools"})

Json = dict[str, Any]


def build_request(model: str, request: ModelRequest, prefix: str, defaults: Json) -> Json:
    """The arguments of ``chat.completions.create``.

    Raises:
        InvalidDataError: A message, block or parameter that the API has no place for.
    """
    params = {**defaults, **request.params}
    check_params(params)
    messages = to_chat_messages(request.messages)
    if prefix:
        messages.append({"role": "assistant", "content": prefix})
        messages.append({"role": "user", "content": CONTINUE_INSTRUCTION})
    body: Json = {**params, "model": model, "messages": messages, "stream": True}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            }
            for tool in request.tools
        ]
    return body


def check_params(params: Json) -> None:
    """Refuse parameters that the adapter sets itself.

    Raises:
        InvalidDataError: Naming them.
    """
    taken = sorted(_RESERVED.intersection(params))
    if taken:
        raise InvalidDataError(
            f"params must not contain {', '.join(taken)}: the adapter sets these itself"
        )


def to_chat_messages(messages: Iterable[ApiMessage]) -> list[Json]:
    """Stored messages in the API's form.

    Text blocks become the content, ``tool_call`` blocks an assistant's ``tool_calls``, and every
    ``tool_result`` block a message of role ``tool``, before what else its message holds. Blocks of
    other types go as they are, so that a user's images in the API's own form pass.

    Raises:
        InvalidDataError: Naming the message and block that do not fit.
    """
    return [item for message in messages for item in _to_chat(message)]


def _to_chat(message: ApiMessage) -> list[Json]:
    content = message.content
    if isinstance(content, str):
        return [{"role": message.role, "content": content}]
    blocks: Sequence[Any] = [content] if isinstance(content, dict) else content
    results: list[Json] = []
    calls: list[Json] = []
    parts: list[Json] = []
    for place, value in enumerate(blocks):
        where = f"message {message.id!r}, block {place}"
        block = _block(value, where)
        kind: str = block["type"]
        try:
            if kind == "text":
                parts.append({"type": "text", "text": _text(block["text"], where)})
            elif kind == "tool_call":
                calls.append(_call(block))
            elif kind == "tool_result":
                results.append(_result(block))
            else:
                parts.append(block)
        except KeyError as error:
            raise InvalidDataError(f"{where}: a {kind} block needs {error}") from None
        if kind == "tool_call" and message.role != "assistant":
            raise InvalidDataError(f"{where}: role {message.role!r} makes no tool calls")
    if parts or calls or not results:
        role = "user" if message.role == "tool" else message.role
        results.append(_speech(role, parts, calls))
    return results


def _block(value: object, where: str) -> Json:
    kind = field(value, "type")
    if not isinstance(value, dict) or not isinstance(kind, str):
        raise InvalidDataError(f"{where}: not a content block; it needs a 'type'")
    return cast("Json", value)


def _speech(role: str, parts: list[Json], calls: list[Json]) -> Json:
    spoken: Json = {"role": role}
    if all(part["type"] == "text" for part in parts):
        text = "".join(part["text"] for part in parts)
        spoken["content"] = text if text or not calls else None
    else:
        spoken["content"] = parts
    if calls:
        spoken["tool_calls"] = calls
    return spoken


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidDataError(f"{where}: text must be a str, not {type(value).__name__}")
    return value


def _call(block: Json) -> Json:
    function = {"name": block["name"], "arguments": _dump(block["arguments"])}
    return {"id": block["id"], "type": "function", "function": function}


def _result(block: Json) -> Json:
    content = block["content"]
    text = content if isinstance(content, str) else _dump(content)
    if block.get("is_error"):
        # The API has no field for it; the model has to read it.
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": block["call_id"], "content": text}


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


__all__ = ["CONTINUE_INSTRUCTION", "build_request", "check_params", "to_chat_messages"]
