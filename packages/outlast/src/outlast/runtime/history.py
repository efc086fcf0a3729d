"""What a provider accepts as a conversation: finding what is wrong with one, and mending it.

Every tool call of an assistant's message is answered once, by the messages that follow it at once,
and every result answers such a call.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard, cast

import msgspec

from outlast.model_api import ToolCallBlock, ToolResultBlock
from outlast.models import ApiMessage
from outlast.runtime.messages import is_empty

INTERRUPTED = (
    "The call was interrupted: whether it took effect is not known, and it was not run again."
)
ABORTED = "The task was aborted: whether the call took effect is not known."
NOT_RUN = "The call was not run."

_MAX_ID_BYTES = 400


class Repair(msgspec.Struct, frozen=True):
    """Something about a stored task that did not fit together, and was mended.

    Attributes:
        kind: ``unanswered_call``, ``orphan_result``, ``displaced_result``, ``missing_input``,
            ``missing_message`` (nobody has answered it) or ``missing_user_message``.
        message_id: The message that it is about; empty for the task as a whole.
        detail: In words.
    """

    kind: str
    message_id: str
    detail: str


def derived_id(*parts: str | int) -> str:
    """An id made of ``parts``: the same ones give the same id, in every process."""
    text = ":".join(str(part) for part in parts)
    if len(text.encode()) <= _MAX_ID_BYTES:
        return text
    return hashlib.sha256(msgspec.json.encode([str(part) for part in parts])).hexdigest()


def _is_block(block: Any, kind: str) -> TypeGuard[dict[str, Any]]:
    return isinstance(block, dict) and cast("dict[str, Any]", block).get("type") == kind


def _is_result(block: Any) -> TypeGuard[ToolResultBlock]:
    return _is_block(block, "tool_result") and isinstance(block.get("call_id"), str)


def _is_call(block: Any) -> TypeGuard[ToolCallBlock]:
    return (
        _is_block(block, "tool_call")
        and isinstance(block.get("id"), str)
        and isinstance(block.get("name"), str)
        and isinstance(block.get("arguments"), dict)
    )


def calls_of(message: ApiMessage) -> list[ToolCallBlock]:
    """The tool calls that a message makes."""
    content = message.content
    if message.role != "assistant" or not isinstance(content, list):
        return []
    return [block for block in content if _is_call(block)]


def results_of(message: ApiMessage) -> list[ToolResultBlock]:
    """The results of tool calls that a message brings."""
    content = message.content
    return [block for block in content if _is_result(block)] if isinstance(content, list) else []


def text_of(message: ApiMessage) -> str:
    """A message's text."""
    if isinstance(message.content, str):
        return message.content
    if not isinstance(message.content, list):
        return ""
    return "".join(
        str(block.get("text", "")) for block in message.content if _is_block(block, "text")
    )


def result_message(message_id: str, call_id: str, content: object, *, is_error: bool) -> ApiMessage:
    """The message that answers a tool call."""
    block = ToolResultBlock(type="tool_result", call_id=call_id, content=content, is_error=is_error)
    return ApiMessage(id=message_id, role="tool", content=[block])


def open_calls(
    messages: Sequence[ApiMessage],
) -> tuple[ApiMessage | None, dict[int, ToolCallBlock]]:
    """The last assistant's message, and its calls that have no result, by their place in it."""
    answered: set[str] = set()
    for message in reversed(messages):
        if message.role == "assistant":
            calls = dict(enumerate(calls_of(message)))
            return message, {
                place: call for place, call in calls.items() if call["id"] not in answered
            }
        answered.update(result["call_id"] for result in results_of(message))
    return None, {}


def check_history(messages: Iterable[ApiMessage]) -> list[str]:
    """What a provider would refuse about a conversation, in words; empty if nothing."""
    problems: list[str] = []
    pending: dict[str, str] = {}
    for message in messages:
        results = results_of(message)
        if pending and not results:
            problems += [f"{where}: call {call!r} has no result" for call, where in pending.items()]
            pending = {}
        for result in results:
            if pending.pop(result["call_id"], None) is None:
                problems.append(f"{message.id}: result of {result['call_id']!r} answers no call")
        if results and pending and len(results) != len(cast("list[Any]", message.content)):
            problems.append(f"{message.id}: more than results while calls are open")
        if is_empty(message):
            problems.append(f"{message.id}: neither text nor a block")
        for call in calls_of(message):
            if call["id"] in pending:
                problems.append(f"{message.id}: call {call['id']!r} is made twice")
            pending[call["id"]] = message.id
    return problems + [f"{where}: call {call!r} has no result" for call, where in pending.items()]


def repair_history(
    messages: Sequence[ApiMessage], *, close_last: bool
) -> tuple[list[ApiMessage], list[Repair]]:
    """A conversation that a provider accepts, as near to the given one as can be.

    A call without a result gets one that says so; a result that stands elsewhere is moved to its
    call; a result without a call, or a second one, is left out.

    Args:
        messages: The conversation.
        close_last: Whether calls of the last assistant's message are closed, too; otherwise they
            may stay open, to be run.

    Returns:
        The conversation, and what was mended; the same messages if nothing was.
    """
    answers, used = _match(messages)
    mended: list[ApiMessage] = []
    repairs: list[Repair] = []
    known = {message.id for message in messages}
    done: set[int] = set()
    for place, message in enumerate(messages):
        if place in done:
            continue
        if results_of(message):
            rest, orphans = _without(message, used.get(place, set()))
            repairs += orphans
            mended += rest
            continue
        mended.append(message)
        calls = calls_of(message)
        if not calls:
            continue
        found = answers[place]
        sources = sorted({at for at, _ in found.values()})
        mixed: list[ApiMessage] = []
        follows = place + 1
        for at in sources:
            source = messages[at]
            blocks = [number for source_at, number in found.values() if source_at == at]
            content = cast("list[Any]", source.content)
            is_in_place = at == follows and used[at] == set(blocks)
            follows = at + 1 if is_in_place else -1
            if is_in_place and len(blocks) == len(results_of(source)):
                (mended if len(blocks) == len(content) else mixed).append(source)
                done.add(at)
                continue
            repairs.append(
                Repair("displaced_result", source.id, f"moved to its call in {message.id!r}")
            )
            is_whole = len(blocks) == len(content)
            new_id = source.id if is_whole else _free_id(known, message.id, "results", at)
            mended.append(
                msgspec.structs.replace(
                    source, id=new_id, content=[content[number] for number in sorted(blocks)]
                )
            )
        stays_open = not close_last and all(results_of(later) for later in messages[place + 1 :])
        for index, call in enumerate(calls):
            if index in found or stays_open:
                continue
            repairs.append(Repair("unanswered_call", message.id, f"call {call['id']!r}"))
            mended.append(
                result_message(
                    _free_id(known, message.id, index), call["id"], INTERRUPTED, is_error=True
                )
            )
        mended += mixed
    return mended, repairs


_Place = tuple[int, int]
"""A block: the place of its message, and its own in the content."""


def _match(
    messages: Sequence[ApiMessage],
) -> tuple[dict[int, dict[int, _Place]], dict[int, set[int]]]:
    """For each message with calls, by the call's place: its result. And the blocks that are one."""
    answers: dict[int, dict[int, _Place]] = {}
    used: dict[int, set[int]] = {}
    waiting: dict[str, list[_Place]] = {}
    for place, message in enumerate(messages):
        content: Any = message.content
        if results_of(message):
            for number, block in enumerate(content):
                if not _is_result(block):
                    continue
                calls = waiting.get(block["call_id"])
                if calls:
                    asked, index = calls.pop(0)
                    answers[asked][index] = (place, number)
                    used.setdefault(place, set()).add(number)
            continue
        found = calls_of(message)
        if found:
            answers[place] = {}
            # A call of the same id shuts out results for an older one.
            for call in found:
                waiting[call["id"]] = []
            for index, call in enumerate(found):
                waiting[call["id"]].append((place, index))
    return answers, used


def _without(message: ApiMessage, used: set[int]) -> tuple[list[ApiMessage], list[Repair]]:
    """What stays of a message whose results stand elsewhere now, or answer nothing."""
    repairs: list[Repair] = []
    kept: list[Any] = []
    for number, block in enumerate(cast("list[Any]", message.content)):
        if not _is_result(block):
            kept.append(block)
        elif number not in used:
            call_id = block["call_id"]
            repairs.append(
                Repair("orphan_result", message.id, f"result of {call_id!r} answers no call")
            )
    return ([msgspec.structs.replace(message, content=kept)] if kept else []), repairs


def _free_id(known: set[str], *parts: str | int) -> str:
    """An id made of ``parts`` that no message has."""
    name, count = derived_id(*parts), 0
    while name in known:
        count += 1
        name = derived_id(*parts, count)
    known.add(name)
    return name


__all__ = [
    "ABORTED",
    "INTERRUPTED",
    "NOT_RUN",
    "Repair",
    "calls_of",
    "check_history",
    "derived_id",
    "open_calls",
    "repair_history",
    "result_message",
    "results_of",
    "text_of",
]
