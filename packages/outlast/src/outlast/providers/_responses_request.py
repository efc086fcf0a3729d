"""Stored messages as requests to the Responses API."""

from collections.abc import Iterable

from outlast.model_api import ModelRequest
from outlast.models import ApiMessage
from outlast.providers._blocks import Json, blocks_of, check_params, dump, result_text
from outlast.providers._continuation import CONTINUE_INSTRUCTION

PROVIDER = "openai.responses"
RESERVED = frozenset({"conversation", "input", "model", "previous_response_id", "stream", "tools"})
"""The first and the fourth would add a history that the API keeps to the one that is stored."""


def build_request(model: str, request: ModelRequest, prefix: str, defaults: Json) -> Json:
    """The arguments of ``responses.create``.

    Raises:
        InvalidDataError: A message, block or parameter that the API has no place for.
    """
    params = {**defaults, **request.params}
    check_params(params, RESERVED)
    items = to_input_items(request.messages)
    if prefix:
        items.append({"role": "assistant", "content": prefix})
        items.append({"role": "user", "content": CONTINUE_INSTRUCTION})
    body: Json = {**params, "model": model, "input": items, "stream": True}
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": False,  # Strictness asks for schemas of a special form.
            }
            for tool in request.tools
        ]
    return body


def to_input_items(messages: Iterable[ApiMessage]) -> list[Json]:
    """Stored messages as input items.

    Text becomes a message, a ``tool_call`` block a ``function_call``, a ``tool_result`` block a
    ``function_call_output`` before what else its message holds. No item carries an id that the API
    has given it: items are matched by ``call_id`` alone, and nothing depends on what the API still
    keeps. Blocks of other types go as they are, as parts of their message.

    Raises:
        InvalidDataError: Naming the message and block that do not fit.
    """
    return [item for message in messages for item in _to_items(message)]


def _to_items(message: ApiMessage) -> list[Json]:
    role = "user" if message.role == "tool" else message.role
    if isinstance(message.content, str):
        return [{"role": role, "content": message.content}]
    text_type = "output_text" if role == "assistant" else "input_text"
    results: list[Json] = []
    items: list[Json] = []
    parts: list[Json] = []

    def speak() -> None:
        if all(part["type"] == text_type for part in parts):
            if text := "".join(part["text"] for part in parts):
                items.append({"role": role, "content": text})
        else:
            items.append({"role": role, "content": parts.copy()})
        parts.clear()

    for block in blocks_of(message):
        match block["type"]:
            case "text":
                parts.append({"type": text_type, "text": block["text"]})
            case "tool_call":
                speak()
                items.append(_call(block))
            case "tool_result":
                results.append(
                    {
                        "type": "function_call_output",
                        "call_id": block["call_id"],
                        "output": result_text(block),
                    }
                )
            case "provider":
                if block["provider"] == PROVIDER:
                    speak()
                    items.append(block["data"])
            case _:
                parts.append(block)
    speak()
    return [*results, *items]


def _call(block: Json) -> Json:
    return {
        "type": "function_call",
        "call_id": block["id"],
        "name": block["name"],
        "arguments": dump(block["arguments"]),
    }


__all__ = ["PROVIDER", "RESERVED", "build_request", "to_input_items"]
