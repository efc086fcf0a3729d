"""Stored messages as requests to Anthropic's Messages API."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from outlast.errors import InvalidDataError
from outlast.model_api import ModelRequest
from outlast.models import ApiMessage
from outlast.providers._blocks import Json, blocks_of, check_params, result_text
from outlast.providers._continuation import CONTINUE_INSTRUCTION
from outlast.providers._fields import field

PROVIDER = "anthropic.messages"
RESERVED = frozenset({"messages", "model", "stream", "system", "tools"})
MAX_TOKENS = 8192
"""The API asks for a limit; this one holds unless ``max_tokens`` is given."""

_PREFILLED = re.compile(
    r"claude-(?:instant|[1-3](?:[-.]|$)|[a-z]+-4(?:-[0-5])?(?:$|[-@]\d{8}|-v\d|-latest))"
)
"""Models that go on from an unfinished assistant message: up to Claude 4.5. Later ones answer with
HTTP 400.
"""
_TOOL_USE_ID = re.compile(r"[a-zA-Z0-9_-]+")
_THINKING = frozenset({"thinking", "redacted_thinking"})


class Built(NamedTuple):
    """A request, and what of the prefix it could not carry.

    Attributes:
        body: The arguments of ``messages.create``.
        kept: White space at the end of the prefix; the model will say it again.
    """

    body: Json
    kept: str


def build_request(
    model: str, request: ModelRequest, prefix: str, defaults: Json, *, prefill: bool | None
) -> Built:
    """The arguments of ``messages.create``.

    Args:
        model: The model's name.
        request: The question.
        prefix: What the turn has said already.
        defaults: Parameters; the request's own go before.
        prefill: Whether the model goes on from an unfinished message; ``None``: by its name.

    Raises:
        InvalidDataError: A message, block or parameter that the API has no place for.
    """
    params: Json = {"max_tokens": MAX_TOKENS, **defaults, **request.params}
    check_params(params, RESERVED)
    system, turns = to_turns(request.messages)
    kept = ""
    if prefix and takes_prefill(model, params, prefill=prefill):
        sent = prefix.rstrip()  # The API refuses a last message that ends with white space.
        kept = prefix[len(sent) :]
        _add(turns, "assistant", [_text(sent)])
    elif prefix:
        _add(turns, "assistant", [_text(prefix)])
        _add(turns, "user", [_text(CONTINUE_INSTRUCTION)])
    if field(params.get("thinking"), "type") == "enabled" and not _can_think(turns):
        params["thinking"] = {"type": "disabled"}
    body: Json = {**params, "model": model, "messages": turns, "stream": True}
    if system:
        body["system"] = system
    if request.tools:
        body["tools"] = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": tool.parameters,
            }
            for tool in request.tools
        ]
    return Built(body, kept)


def takes_prefill(model: str, params: Json, *, prefill: bool | None = None) -> bool:
    """Whether a request may end with an unfinished assistant message.

    Never while the model thinks, answers in a given format, or has to call a tool.
    """
    thinking = field(params.get("thinking"), "type")
    if thinking not in (None, "disabled"):
        return False
    if field(params.get("output_config"), "format") is not None:
        return False
    if field(params.get("tool_choice"), "type") in ("any", "tool"):
        return False
    return _PREFILLED.search(model) is not None if prefill is None else prefill


def to_turns(messages: Iterable[ApiMessage]) -> tuple[list[Json], list[Json]]:
    """Stored messages as the system prompt and the turns of the conversation.

    - Messages of role ``system`` or ``developer`` at the begin are the system prompt; later ones
      become text of the user, marked as ``<system>``.
    - Messages of one side that follow each other are one turn; results of tools come first in it,
      as the API asks.
    - Text that is only white space is left out (the API refuses it), and so are turns of which
      nothing is left.
    - Blocks of other types go as they are, so that images in the API's own form pass.

    Raises:
        InvalidDataError: Naming the message and block that do not fit.
    """
    system: list[Json] = []
    turns: list[Json] = []
    for message in messages:
        blocks = [block for found in blocks_of(message) for block in _to_blocks(found, message.id)]
        match message.role:
            case "system" | "developer" if not turns:
                system += blocks
            case "system" | "developer":
                _add(turns, "user", [_mark(block) for block in blocks])
            case "user" | "tool":
                _add(turns, "user", blocks)
            case "assistant":
                while blocks and blocks[-1]["type"] in _THINKING:
                    blocks.pop()
                _add(turns, "assistant", blocks)
            case role:
                raise InvalidDataError(f"message {message.id!r}: the API has no role {role!r}")
    return system, turns


def _add(turns: list[Json], role: str, blocks: list[Json]) -> None:
    if not blocks:
        return
    if turns and turns[-1]["role"] == role:
        blocks = [*turns.pop()["content"], *blocks]
    if role == "user":
        blocks.sort(key=lambda block: block["type"] != "tool_result")
    turns.append({"role": role, "content": blocks})


def _can_think(turns: list[Json]) -> bool:
    """Whether the API lets the model think with a budget.

    While results of tools are handed in, it does only if the turn that called them begins with
    thinking. A turn that was cut has lost its own.
    """
    if len(turns) < 2 or all(block["type"] != "tool_result" for block in turns[-1]["content"]):
        return True
    return turns[-2]["content"][0]["type"] in _THINKING


def _to_blocks(block: Json, message_id: str) -> list[Json]:
    match block["type"]:
        case "text":
            return [block] if block["text"].strip() else []
        case "tool_call":
            if not isinstance(block["arguments"], dict):
                raise InvalidDataError(
                    f"message {message_id!r}: the arguments of call {block['id']!r} are no object"
                )
            call_id = _tool_use_id(block["id"])
            use = {"type": "tool_use", "id": call_id, "name": block["name"]}
            return [{**use, "input": block["arguments"]}]
        case "tool_result":
            return [_result(block)]
        case "provider":
            return [block["data"]] if block["provider"] == PROVIDER else []
        case _:
            return [block]


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _mark(block: Json) -> Json:
    if block["type"] != "text":
        return block
    return {**block, "text": f"<system>\n{block['text']}\n</system>"}


def _result(block: Json) -> Json:
    result: Json = {"type": "tool_result", "tool_use_id": _tool_use_id(block["call_id"])}
    text = result_text(block, marks_errors=True)
    if block.get("is_error"):
        # The API refuses a failure that says nothing.
        return {**result, "content": text if text.strip() else "failed", "is_error": True}
    return {**result, "content": text}


def _tool_use_id(call_id: Any) -> Any:
    """The id as the API takes it; another provider's may hold other characters."""
    if not isinstance(call_id, str) or _TOOL_USE_ID.fullmatch(call_id):
        return call_id
    return f"toolu_{hashlib.sha256(call_id.encode()).hexdigest()[:32]}"


__all__ = ["PROVIDER", "RESERVED", "Built", "build_request", "takes_prefill", "to_turns"]
