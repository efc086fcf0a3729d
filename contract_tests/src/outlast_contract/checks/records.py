"""Large, deep and damaged records (V5, V6, V8)."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

import outlast
from outlast.driver import Scope
from outlast.errors import (
    CorruptDataError,
    FencedError,
    InvalidDataError,
    OutlastError,
    PayloadTooLargeError,
    UnsupportedVersionError,
)
from outlast_contract.corpus import nested
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import error_of, expect, expect_equal, first_difference, refused
from outlast_contract.mutations import bare, fill, image, thread_of

Client = outlast.Backend


def _padded(size: int) -> outlast.ApiMessage:
    return outlast.ApiMessage(id=f"m{size}", role="user", content="x" * size)


@check("V5", heavy=True)
async def large_records_come_back_whole(context: Context) -> None:
    """Records of 8 MiB are stored whole in every part; what is over the declared limit is
    refused untouched.
    """
    client, other = await context.open_many(2)
    tasks = client.persistence
    limit = client.capabilities.max_message_bytes
    least = 8 * 2**20
    expect(limit >= least, f"max_message_bytes is {limit:,}; the contract asks for {least:,}")
    task_id, run_id = context.new_id("task"), context.new_id("run")
    text = "".join(chr(33 + number % 90) for number in range(least - 1000)).replace("\\", "/")
    text = text.replace('"', "'")
    await tasks.save_task_state(task_id, outlast.TaskState(id=task_id, context={"t": text}))
    await tasks.save_task_input(task_id, outlast.TaskInput(message=text))
    await tasks.append_api_message(task_id, outlast.ApiMessage(id="m", role="u", content=text))
    await tasks.append_user_message(
        task_id, outlast.UserMessage(id="m", type="t", role="u", content=text)
    )
    await client.checkpoints.put(
        outlast.StreamCheckpoint(
            run_id=run_id, thread_id=task_id, message_id="m", model="m", text=text
        )
    )
    state = await other.persistence.load_task_state(task_id)
    task_input = await other.persistence.load_task_input(task_id)
    point = await other.checkpoints.get(run_id)
    for what, found in (
        ("state", state and state.context["t"]),
        ("input", task_input and task_input.message),
        ("api message", (await other.persistence.load_api_messages(task_id))[-1].content),
        ("user message", (await other.persistence.load_user_messages(task_id))[-1].content),
        ("checkpoint", point and point.text),
    ):
        expect(found == text, f"a {what} of 8 MiB came back changed, {len(found or '')} characters")
    if limit > 64 * 2**20 and not context.settings.thorough:
        # It takes ten times as much memory, and as much time as many other checks.
        context.note(f"the limit of {limit / 2**20:.0f} MiB is tried only with --thorough")
        return
    if limit > 64 * 2**20:
        client, other = [await context.open(timeout=60.0) for _ in range(2)]
        tasks = client.persistence
    before = await image(other, Scope("task", task_id))
    large = "x" * (limit + 1)
    too_much = [_padded(5), _padded(limit)]
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "state": lambda: tasks.save_task_state(
            task_id, outlast.TaskState(id=task_id, context={"t": large})
        ),
        "update": lambda: tasks.update_task_state(task_id, {"config": {"t": large}}),
        "input": lambda: tasks.save_task_input(task_id, outlast.TaskInput(message=large)),
        "append": lambda: tasks.append_api_messages(task_id, too_much),
        "save": lambda: tasks.save_api_messages(task_id, too_much),
    }
    for what, call in calls.items():
        error = await refused(call(), PayloadTooLargeError, f"a {what} over {limit:,} bytes")
        expect(f"{limit:,}" in str(error), f"the message does not name the limit: {error}")
    expect_equal(await image(other, Scope("task", task_id)), before, "the task after refusals")
    empty = outlast.ApiMessage(id="full", role="user", content="")
    room = limit - len(msgspec.json.encode(empty))
    await tasks.save_api_messages(task_id, [msgspec.structs.replace(empty, content="x" * room)])
    expect_equal(
        len((await other.persistence.load_api_messages(task_id))[-1].content),
        room,
        "a message of exactly the limit",
    )


@check("V5", "A4", "A7", heavy=True)
async def a_log_may_be_64_mib(context: Context) -> None:
    """A batch, a save and a log of 64 MiB are stored whole."""
    client = await context.open()
    task_id = context.new_id("task")
    size, count = 2**20, 64
    batch = [
        outlast.ApiMessage(id=f"m{number}", role="user", content=chr(97 + number % 26) * size)
        for number in range(count)
    ]
    await client.persistence.append_api_messages(task_id, batch)
    found = await client.persistence.load_api_messages(task_id)
    expect(list(found) == batch, f"a batch of 64 MiB came back as {len(found)} of {count} messages")
    await client.persistence.save_api_messages(task_id, batch[::-1])
    found = await client.persistence.load_api_messages(task_id)
    expect(list(found) == batch[::-1], "a save of 64 MiB came back changed", clause="A7")


@check("V6", "V2")
async def nesting_is_kept_or_refused(context: Context) -> None:
    """However deep a value is nested, it comes back whole or is refused as InvalidDataError."""
    client = await context.open()
    task_id = context.new_id("task")
    await client.persistence.save_task_input(task_id, outlast.TaskInput(message="kept"))
    for depth in (500, 700, 1000, 5000, 100_000):
        for in_lists in (False, True):
            value = nested(depth, "leaf", in_lists=in_lists)
            kept = await client.persistence.load_task_input(task_id)
            error = await error_of(
                client.persistence.save_task_input(task_id, outlast.TaskInput(message=value))
            )
            found = await client.persistence.load_task_input(task_id)
            assert found is not None
            if error is None:
                difference = first_difference(found.message, value)
                expect(
                    difference is None, f"a value nested {depth} deep: {difference}", clause="V2"
                )
                await client.persistence.save_task_input(task_id, outlast.TaskInput(message="kept"))
            else:
                expect(
                    isinstance(error, InvalidDataError), f"nested {depth} deep: raised {error!r}"
                )
                expect_equal(found, kept, f"the input after {depth} levels were refused")
            _take_apart(value)


def _take_apart(value: Any) -> None:
    # Freed level by level: a deep value freed at once may overflow Python's stack.
    while value != "leaf":
        inner: Any = next(iter(value.values() if hasattr(value, "values") else value))
        value.clear()
        value = inner


def _newer(data: bytes) -> bytes:
    return data.replace(b'"format":1', b'"format":999', 1)


_DAMAGE: Final[dict[str, tuple[Callable[[bytes], bytes], type[OutlastError]]]] = {
    "a newer format": (_newer, UnsupportedVersionError),
    "half of the bytes": (lambda data: data[: len(data) // 2], CorruptDataError),
    "all but the last byte": (lambda data: data[:-1], CorruptDataError),
    "no bytes": (lambda data: b"", CorruptDataError),
    "zeros": (lambda data: bytes(len(data)), CorruptDataError),
    "other bytes": (lambda data: b"\x80\x04\x95garbage", CorruptDataError),
    "no envelope": (lambda data: b'{"id":"x"}', CorruptDataError),
    "the payload alone": (lambda data: data.partition(b"\n")[2], CorruptDataError),
    "an unknown envelope of the same length": (
        lambda data: data.replace(b'"format":1', b'"format":0', 1),
        CorruptDataError,
    ),
    "another kind": (lambda data: b'{"format":1,"kind":"other"}\n{}', CorruptDataError),
}


@check_each(_DAMAGE, "V8", "E3")
async def damaged_records_are_told_apart_from_missing_ones(
    context: Context, damage: tuple[Callable[[bytes], bytes], type[OutlastError]]
) -> None:
    """What cannot be read raises the error that says so, from every call that reads it, and
    never reads as missing.
    """
    client = await context.open()
    change, kind = damage
    tasks, runs = client.persistence, client.checkpoints

    async def listed() -> list[Any]:
        return await tasks.list_task_states()

    async def iterated() -> list[Any]:
        return [point async for point in runs.iter_checkpoints()]

    readers: dict[str, list[tuple[str, Callable[[str], Awaitable[object]]]]] = {
        "state": [
            ("load_task_state", tasks.load_task_state),
            ("list_task_states", lambda _: listed()),
            ("update_task_state", lambda id: tasks.update_task_state(id, {"retry_count": 1})),
        ],
        "input": [("load_task_input", tasks.load_task_input)],
        "api": [
            ("load_api_messages", tasks.load_api_messages),
            ("load_api_messages(last=1)", lambda id: tasks.load_api_messages(id, last=1)),
        ],
        "user": [("load_user_messages", tasks.load_user_messages)],
        "checkpoint": [("get", runs.get), ("iter_checkpoints", lambda _: iterated())],
    }
    for slot, calls in readers.items():
        scope = Scope("run" if slot == "checkpoint" else "task", context.new_id(slot))
        whole = await fill(client, scope, "whole")
        await context.harness.plant(client, scope, slot, change)
        for name, call in calls:
            await refused(call(scope.id), kind, f"{name} of a damaged {slot}")
        if slot == "checkpoint":
            # It may have raised the epoch before it looked; then the error must not deny it.
            error = await error_of(runs.claim(scope.id, at_least=1000))
            expect(isinstance(error, kind), f"claim of a damaged {slot} gave {error!r}")
            again = await error_of(runs.claim(scope.id, at_least=1000))
            is_taken = isinstance(again, FencedError)
            said = None if error is None else error.applied
            expect_equal(said, is_taken, "applied, of a claim that raised the epoch", clause="E2")
        if scope.kind == "task":
            rest = [part for part in ("state", "input", "api", "user") if part != slot]
            for part in rest:
                found = await _part(client, scope.id, part)
                expect_equal(found, getattr(whole, part), f"{part} beside a damaged {slot}")
            await tasks.delete_task(scope.id, force=True)
        else:
            await runs.delete_thread(thread_of(scope.id), force=True)
        expect_equal(
            await image(client, scope), type(whole)(), f"a scope whose damaged {slot} was deleted"
        )


async def _part(client: Client, id: str, part: str) -> Any:
    tasks = client.persistence
    if part == "state":
        return bare(await tasks.load_task_state(id))
    if part == "input":
        return await tasks.load_task_input(id)
    if part == "api":
        return await tasks.load_api_messages(id)
    return await tasks.load_user_messages(id)
