"""Copying and merging JSON values without recursion, so that depth costs no stack."""

# Values of any type are what this module is about:
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

import msgspec

ValueT = TypeVar("ValueT")

_BOUND = 2**63


def copy_json(value: ValueT) -> ValueT:
    """A copy that shares no list and no dict with ``value``."""
    if type(value) not in (dict, list):
        return value
    root: list[Any] = [value]
    stack: list[Any] = [root]
    while stack:
        container: Any = stack.pop()
        keys: Any = container if type(container) is dict else range(len(container))
        for key in keys:
            item = container[key]
            if type(item) is dict or type(item) is list:
                copied: Any = item.copy()
                container[key] = copied
                stack.append(copied)
    return cast("ValueT", root[0])


def copy_if_usual(value: Any, depth: int = 20) -> Any:
    """A copy of a dict or list whose values any store can keep, in one pass; ``None`` if that takes
    a closer look.

    Args:
        value: The dict or list.
        depth: How many levels may be below it.
    """
    is_dict = type(value) is dict
    copy: Any = value.copy()
    key: Any
    item: Any
    for key, item in value.items() if is_dict else enumerate(value):
        if is_dict and (type(key) is not str or not key.isascii()):
            return None
        kind: Any = type(item)
        if kind is str:
            if not item.isascii():
                return None
        elif kind is int:
            if not -_BOUND < item < _BOUND:
                return None
        elif kind is dict or kind is list:
            inner = copy_if_usual(item, depth - 1) if depth else None
            if inner is None:
                return None
            copy[key] = inner
        elif kind is float:
            if item - item != 0.0:
                return None
        elif item is not None and kind is not bool:
            return None
    return copy


def deep_merge(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored, changed by what is given.

    Dicts merge key by key at every depth; anything else that is given replaces what is stored,
    lists as a whole. A given ``None`` leaves what is stored. Neither argument is changed, and the
    result shares nothing with them.
    """
    result = copy_json(dict(stored))
    stack: list[tuple[dict[str, Any], Mapping[str, Any]]] = [(result, given)]
    while stack:
        target, source = stack.pop()
        for key, value in source.items():
            if value is None:
                continue
            old = target.get(key)
            if isinstance(value, dict) and isinstance(old, dict):
                stack.append((old, cast("dict[str, Any]", value)))
            else:
                target[key] = copy_json(value)
    return result


def with_lists(value: Any) -> Any:
    """A copy with lists in the place of tuples and sets, which JSON does not have."""
    if isinstance(value, tuple | list | set | frozenset):
        return [with_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: with_lists(item) for key, item in value.items()}
    return value


def as_blocks(message: Any, attachments: Iterable[Any] = ()) -> list[Any]:
    """What a user said, as neutral blocks: a block stays, everything else becomes its text."""
    items = message if isinstance(message, list) else [message]
    return [_as_block(item) for item in [*items, *attachments]]


def _as_block(item: Any) -> Any:
    if isinstance(item, dict) and "type" in item:
        return item
    text = item if isinstance(item, str) else msgspec.json.encode(item).decode()
    return {"type": "text", "text": text}


def is_nothing(content: Any) -> bool:
    """Whether a message's content has neither text nor a block."""
    if isinstance(content, list):
        return all(_is_blank(block) for block in content)
    return _is_blank(content)


def _is_blank(block: Any) -> bool:
    if isinstance(block, dict) and block.get("type") == "provider":
        return True  # Beside text or a call it is kept; alone it says nothing.
    if isinstance(block, dict) and block.get("type") == "text":
        block = block.get("text")
    if isinstance(block, str):
        return not block.strip()
    return block is None or block in ([], {})


__all__ = ["as_blocks", "copy_if_usual", "copy_json", "deep_merge", "is_nothing", "with_lists"]
