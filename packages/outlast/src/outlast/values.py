"""Validation at the edge: ids, JSON values and instants, checked before anything is sent."""

# Values of any type are what this module is about:
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from outlast.errors import InvalidDataError, InvalidIdError, shown
from outlast.models import (
    ApiMessage,
    PartialToolCall,
    Record,
    StreamCheckpoint,
    TaskInput,
    TaskState,
    TaskStatus,
    ToolInfo,
    UserMessage,
)

MAX_ID_BYTES = 512
MAX_INT_DIGITS = 1000
MAX_DEPTH = 800
"""Nesting of one JSON value; deeper ones are refused, since Python cannot compare or print them
either.
"""

_INT_BOUND = 10**MAX_INT_DIGITS
_CLAIM_ID_DIGITS = 32
_SHOWN_KEYS = 8
_HEX = frozenset("0123456789abcdef")

RecordT = TypeVar("RecordT", bound=Record)
Check = Callable[[Any, str], Any]


def check_id(value: object, argument: str) -> str:
    """Return ``value`` if it is an id (I4).

    Raises:
        InvalidIdError: Not a string, empty, over 512 UTF-8 bytes, or with lone surrogates.
    """
    if not isinstance(value, str):
        raise InvalidIdError(f"{argument} must be a str, not {type(value).__name__}")
    if not value:
        raise InvalidIdError(f"{argument} must not be empty")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise InvalidIdError(f"{argument} contains a lone surrogate: {value!r:.80}") from None
    if size > MAX_ID_BYTES:
        raise InvalidIdError(f"{argument} has {size} UTF-8 bytes; the limit is {MAX_ID_BYTES}")
    return value


def check_claim_id(value: object) -> str:
    """Return ``value`` if it is a claim_id: 32 lower-case hexadecimal digits (128 bits).

    Raises:
        InvalidIdError: It is not.
    """
    if not isinstance(value, str) or len(value) != _CLAIM_ID_DIGITS or not _HEX.issuperset(value):
        raise InvalidIdError(
            "claim_id must be 32 lower-case hexadecimal digits (128 random bits), "
            "such as secrets.token_hex(16)"
        )
    return value


def check_text(value: object, path: str) -> str:
    """Return ``value`` if it is a ``str`` that UTF-8 can carry (V3, V6)."""
    if type(value) is not str:
        raise InvalidDataError(f"{path} must be a str, not {_type_name(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidDataError(
                f"{path} contains a lone surrogate at index {error.start}; join or remove it"
            ) from None
    return value


def check_instant(value: object, path: str) -> datetime:
    """Return an aware datetime in UTC (V7)."""
    if not isinstance(value, datetime):
        raise InvalidDataError(f"{path} must be a datetime, not {_type_name(value)}")
    if value.utcoffset() is None:
        raise InvalidDataError(
            f"{path} is a naive datetime; give it a time zone, such as datetime.now(timezone.utc)"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidDataError(f"{path} is out of range in UTC: {value}") from None


def check_json(value: object, path: str) -> Any:
    """Return ``value`` if it is a JSON value that every store carries unchanged (V2, V4, V6).

    Raises:
        InvalidDataError: Naming the place, such as ``content[0]['text']``, and what was found
            there.
    """
    kind: object = type(value)
    if kind is str:
        return check_text(value, path)
    if kind is list or kind is dict:
        _check_container(value, path)
        return value
    _check_scalar(value, kind, (path, ()))
    return value


_Place = tuple[str, tuple[Any, ...]]
"""A root's path and the keys below it, as nested pairs: cheap to make, formatted only for an error.
"""


def _check_container(root: Any, path: str) -> None:
    """Walk without recursion, so that depth is refused by number and not by Python's stack."""
    stack: list[tuple[Any, tuple[Any, ...], int]] = [(root, (), 1)]
    while stack:
        value, place, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise InvalidDataError(f"{path} is nested deeper than {MAX_DEPTH} levels")
        container: object = type(value)
        is_dict = container is dict
        pairs: Iterable[tuple[Any, Any]] = value.items() if is_dict else enumerate(value)
        key: Any
        item: Any
        for key, item in pairs:
            if is_dict:
                if type(key) is not str:
                    raise InvalidDataError(
                        f"{_format(path, place)} has a key that is not a str: {shown(key)}"
                    )
                if not key.isascii():
                    check_text(key, f"a key of {_format(path, place)}")
            kind: object = type(item)
            if kind is str:
                if not item.isascii():
                    check_text(item, _format(path, (place, key)))
            elif kind is dict or kind is list:
                stack.append((item, (place, key), depth + 1))
            elif item is not None and kind is not bool:
                _check_scalar(item, kind, (path, (place, key)))


def _check_scalar(value: Any, kind: object, place: _Place) -> None:
    if value is None or kind is bool:
        return
    if kind is int:
        if -_INT_BOUND < value < _INT_BOUND:
            return
        raise InvalidDataError(
            f"{_format(*place)} is an integer of more than {MAX_INT_DIGITS} digits"
        )
    if kind is float:
        if value - value == 0.0:
            return
        raise InvalidDataError(f"{_format(*place)} is {value}; JSON carries finite numbers only")
    raise InvalidDataError(
        f"{_format(*place)} is a {_type_name(value)}; only None, bool, int, float, str, list and "
        "dict (no subclasses) can be stored unchanged"
    )


def _format(path: str, place: tuple[Any, ...]) -> str:
    keys: list[Any] = []
    while place:
        place, key = place
        keys.append(key)
    shown = "".join(f"[{key!r:.60}]" for key in reversed(keys[-_SHOWN_KEYS:]))
    middle = "[...]" if len(keys) > _SHOWN_KEYS else ""
    return f"{path}{shown[:200]}{middle}"


def _type_name(value: object) -> str:
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"


def _check_dict(value: Any, path: str) -> Any:
    kind: object = type(value)
    if kind is not dict:
        raise InvalidDataError(f"{path} must be a dict, not {_type_name(value)}")
    _check_container(value, path)
    return value


def _check_list(value: Any, path: str) -> Any:
    kind: object = type(value)
    if kind is not list:
        raise InvalidDataError(f"{path} must be a list, not {_type_name(value)}")
    _check_container(value, path)
    return value


def _check_content(value: object, path: str) -> Any:
    if type(value) not in (str, list, dict):
        raise InvalidDataError(f"{path} must be a str, list or dict, not {_type_name(value)}")
    return check_json(value, path)


def _check_status(value: object, path: str) -> TaskStatus:
    try:
        return TaskStatus(value)  # type: ignore[arg-type]  # whatever it is, the enumeration decides
    except ValueError:
        known = ", ".join(TaskStatus)
        raise InvalidDataError(f"{path} is {shown(value)}; a status is one of: {known}") from None


def _check_count(value: object, path: str) -> int:
    if type(value) is not int or value < 0:
        raise InvalidDataError(f"{path} must be an int of at least 0, not {shown(value)}")
    if value >= 2**63:
        raise InvalidDataError(f"{path} must be below 2**63")
    return value


def check_bool(value: object, path: str) -> bool:
    """Return ``value`` if it is ``True`` or ``False``; ``"false"`` and the like are neither."""
    if type(value) is not bool:
        raise InvalidDataError(f"{path} must be a bool, not {_type_name(value)}")
    return value


def _check_ids(value: Any, path: str) -> list[str]:
    kind: object = type(value)
    if kind is not list:
        raise InvalidDataError(f"{path} must be a list of ids, not {_type_name(value)}")
    return [check_id(item, f"{path}[{place}]") for place, item in enumerate(value)]


def _check_calls(value: Any, path: str) -> list[PartialToolCall]:
    kind: object = type(value)
    if kind is not list:
        raise InvalidDataError(f"{path} must be a list, not {_type_name(value)}")
    return [
        check_record(item, PartialToolCall, f"{path}[{place}]") for place, item in enumerate(value)
    ]


def _check_tool_info(value: object, path: str) -> ToolInfo:
    return check_record(value, ToolInfo, path)


def _or_none(check: Check) -> Check:
    def checked(value: object, path: str) -> Any:
        return None if value is None else check(value, path)

    return checked


def _set_to(fixed: object) -> Check:
    """The adapter keeps the field; what was given does not count."""
    return lambda value, path: fixed


def _ignored_instant(value: object, path: str) -> None:
    """The adapter keeps the field; but an instant that is none is a mistake here, too (V7)."""
    if value is not None:
        check_instant(value, path)


FIELDS: Mapping[type[Record], Mapping[str, Check]] = {
    TaskState: {
        "id": check_id,
        "status": _check_status,
        "config": _check_dict,
        "context": _check_dict,
        "start_time": _or_none(check_instant),
        "end_time": _or_none(check_instant),
        "retry_count": _check_count,
        "subtask_ids": _check_ids,
        "error": _or_none(_check_dict),
        "parent_id": _or_none(check_id),
        "updated_at": _ignored_instant,
    },
    TaskInput: {
        "message": check_json,
        "attachments": _check_list,
        "params": _check_dict,
        "stream": check_bool,
    },
    ApiMessage: {
        "id": check_id,
        "role": check_text,
        "content": _check_content,
        "source": _or_none(check_text),
        "ts": _or_none(check_instant),
        "metadata": _check_dict,
    },
    UserMessage: {
        "id": check_id,
        "type": check_text,
        "role": check_text,
        "content": check_json,
        "tool_info": _or_none(_check_tool_info),
        "ts": _or_none(check_instant),
        "visible": check_bool,
        "metadata": _check_dict,
    },
    ToolInfo: {
        "call_id": check_text,
        "name": check_text,
        "status": check_text,
        "arguments": _check_dict,
        "result": check_json,
        "error": _or_none(_check_dict),
    },
    PartialToolCall: {"id": check_text, "name": check_text, "arguments": check_text},
    StreamCheckpoint: {
        "run_id": check_id,
        "thread_id": check_id,
        "message_id": check_id,
        "model": check_text,
        "text": check_text,
        "tool_calls": _check_calls,
        "retry_count": _check_count,
        "updated_at": _ignored_instant,
        "epoch": _set_to(0),
        "task_epoch": _check_count,
    },
}
"""How each field of each record is checked and normalized; ``updated_at`` and ``epoch`` are the
adapter's.
"""


def check_record(value: object, kind: type[RecordT], path: str = "") -> RecordT:
    """Return ``value`` as it will be stored: checked, statuses and instants normalized.

    Args:
        value: What the caller passed.
        kind: The record's exact class.
        path: What the error calls the value; the class's name by default.

    Raises:
        InvalidDataError: Naming the field and what was wrong.
        InvalidIdError: A field that holds an id does not.
    """
    path = path or kind.__name__
    if type(value) is not kind:
        raise InvalidDataError(f"{path} must be a {kind.__name__}, not {_type_name(value)}")
    changes: dict[str, Any] = {}
    for name, check in FIELDS[kind].items():
        given = getattr(value, name)
        checked = check(given, f"{path}.{name}")
        if checked is not given:
            changes[name] = checked
    return msgspec.structs.replace(value, **changes) if changes else value


def check_messages(messages: Any, kind: type[RecordT]) -> list[RecordT]:
    """Return a batch of messages as it will be stored.

    Raises:
        InvalidDataError: Not an iterable of ``kind``, a value that cannot be stored, or an id that
            occurs twice (A8).
    """
    if isinstance(messages, str | bytes | Mapping | Record) or not isinstance(messages, Iterable):
        raise InvalidDataError(
            f"messages must be a list of {kind.__name__}, not {_type_name(messages)}"
        )
    checked = [
        check_record(message, kind, f"messages[{place}]") for place, message in enumerate(messages)
    ]
    seen: set[str] = set()
    for message in checked:
        name: str = getattr(message, "id")  # noqa: B009 - both kinds of message have one
        if name in seen:
            raise InvalidDataError(f"messages contains the id {name!r} twice")
        seen.add(name)
    return checked


def check_updates(updates: Any) -> dict[str, object]:
    """Return the new values of a `TaskState`'s fields, by name (S2).

    Raises:
        InvalidDataError: An unknown field, one that the adapter keeps, or a value that does not
            fit.
    """
    if not isinstance(updates, Mapping):
        raise InvalidDataError(f"updates must be a mapping, not {_type_name(updates)}")
    fields = FIELDS[TaskState]
    changes: dict[str, object] = {}
    for name, value in updates.items():
        if name in ("id", "updated_at"):
            raise InvalidDataError(f"{name} cannot be updated; the adapter keeps it")
        if name not in fields:
            known = ", ".join(field for field in fields if field not in ("id", "updated_at"))
            raise InvalidDataError(f"TaskState has no field {name!r:.80}; fields: {known}")
        changes[name] = fields[name](value, f"updates[{name!r}]")
    return changes


__all__ = [
    "FIELDS",
    "MAX_DEPTH",
    "MAX_ID_BYTES",
    "MAX_INT_DIGITS",
    "check_bool",
    "check_claim_id",
    "check_id",
    "check_instant",
    "check_json",
    "check_messages",
    "check_record",
    "check_text",
    "check_updates",
]
