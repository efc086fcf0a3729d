"""Stored messages, checked, on their way to a provider's terms."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from outlast.errors import InvalidDataError
from outlast.models import ApiMessage
from outlast.providers._fields import field

Json = dict[str, Any]

_NEEDS: Mapping[str, tuple[str, ...]] = {
    "text": ("text",),
    "tool_call": ("id", "name", "arguments"),
    "tool_result": ("call_id", "content"),
    "provider": ("provider", "data"),
}


def blocks_of(message: ApiMessage) -> list[Json]:
    """The content as a list of blocks; the neutral ones among them are complete.

    Raises:
        InvalidDataError: Naming the message and the block that do not fit.
    """
    content = message.content
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    blocks: Sequence[Any] = [content] if isinstance(content, dict) else content
    return [
        _checked(block, message.role, f"message {message.id!r}, block {place}")
        for place, block in enumerate(blocks)
    ]


def _checked(value: object, role: str, where: str) -> Json:
    kind = field(value, "type")
    if not isinstance(value, dict) or not isinstance(kind, str):
        raise InvalidDataError(f"{where}: not a content block; it needs a 'type'")
    block = cast("Json", value)
    for name in _NEEDS.get(kind, ()):
        if name not in block:
            raise InvalidDataError(f"{where}: a {kind} block needs {name!r}")
    if kind == "text" and not isinstance(block["text"], str):
        raise InvalidDataError(f"{where}: text must be a str, not {type(block['text']).__name__}")
    if kind == "tool_call" and role != "assistant":
        raise InvalidDataError(f"{where}: role {role!r} makes no tool calls")
    return block


def check_params(params: Json, reserved: Iterable[str]) -> None:
    """Refuse parameters that the adapter sets itself.

    Raises:
        InvalidDataError: Naming them.
    """
    taken = sorted(set(reserved).intersection(params))
    if taken:
        raise InvalidDataError(
            f"params must not contain {', '.join(taken)}: the adapter sets these itself"
        )


def dump(value: object) -> str:
    """JSON as it goes into a text field."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def result_text(block: Json, *, marks_errors: bool = False) -> str:
    """What a tool gave, as text.

    Args:
        block: A ``tool_result``.
        marks_errors: Whether the API has a field that says so; else the model has to read it.
    """
    content = block["content"]
    text = content if isinstance(content, str) else dump(content)
    return f"Error: {text}" if block.get("is_error") and not marks_errors else text


__all__ = ["Json", "blocks_of", "check_params", "dump", "result_text"]
