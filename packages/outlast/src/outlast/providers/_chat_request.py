"""Stored messages as requests to Chat Completions."""

from collections.abc import Iterable

from outlast.model_api import ModelRequest
from outlast.models import ApiMessage
from outlast.providers._blocks import Json, blocks_of, check_params, dump, result_text
from outlast.providers._continuation import CONTINUE_INSTRUCTION

PROVIDER = "openai.chat"
RESERVED = frozenset({"messages", "model", "n", "stream", "tools"})


def build_request(model: str, request: ModelRequest, prefix: str, defaults: Json) -> Json:
    """The arguments of ``chat.completions.create``.

    Raises:
        InvalidDataError: A message, block or parameter that the API has no place for.
    """
    params = {**defaults, **request.params}
    check_params(params, RESERVED)
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


def to_chat_messages(messages: Iterable[ApiMessage]) -> list[Json]:
    """Stored messages in the API's form.

    Text blocks become the content, ``tool_call`` blocks an assistant's ``tool_calls``, and every
    ``tool_result`` block a message of role ``tool``, before what else its message holds. Blocks of
    other types go as they are, so that a user's images in the API's own form pass. What another
    provider alone understands is left out.

    Raises:
        InvalidDataError: Naming the message and block that do not fit.
    """
    return [item for message in messages for item in _to_chat(message)]


def _to_chat(message: ApiMessage) -> list[Json]:
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: list[Json] = []
    calls: list[Json] = []
    parts: list[Json] = []
    extra: Json = {}
    for block in blocks_of(message):
        match block["type"]:
            case "text":
                parts.append({"type": "text", "text": block["text"]})
            case "tool_call":
                calls.append(_call(block))
            case "tool_result":
                content = result_text(block)
                results.append(
                    {"role": "tool", "tool_call_id": block["call_id"], "content": content}
                )
            case "provider":
                if block["provider"] == PROVIDER:
                    extra.update(block["data"])
            case _:
                parts.append(block)
    if parts or calls or not results:
        role = "user" if message.role == "tool" else message.role
        results.append({**_speech(role, parts, calls), **extra})
    return results


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


def _call(block: Json) -> Json:
    function = {"name": block["name"], "arguments": dump(block["arguments"])}
    return {"id": block["id"], "type": "function", "function": function}


__all__ = ["PROVIDER", "RESERVED", "build_request", "to_chat_messages"]
