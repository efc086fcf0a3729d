"""What goes in comes out, or is refused (V1 to V8)."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import msgspec

import outlast
from outlast.driver import Scope
from outlast.errors import (
    InvalidDataError,
)
from outlast_contract.corpus import CONTAINERS, KEYS, NONES, NUMBERS, REFUSED, TEXTS
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import (
    error_of,
    expect,
    expect_equal,
    first_difference,
    refused,
)
from outlast_contract.mutations import bare, image

Client = outlast.Backend


class Place:
    """A field in which JSON values are stored: how to write one there and read it back."""

    def __init__(
        self,
        write: Callable[[Client, str, Any], Awaitable[object]],
        read: Callable[[Client, str], Awaitable[Any]],
        path: str,
    ) -> None:
        """Keep the calls, and the word by which an error names the place."""
        self.write = write
        self.read = read
        self.path = path


async def _state(client: Client, id: str) -> Any:
    return await client.persistence.load_task_state(id)


async def _input(client: Client, id: str) -> Any:
    return await client.persistence.load_task_input(id)


async def _last_api(client: Client, id: str) -> Any:
    return (await client.persistence.load_api_messages(id))[-1]


async def _last_user(client: Client, id: str) -> Any:
    return (await client.persistence.load_user_messages(id))[-1]


def _state_place(name: str) -> Place:
    async def write(client: Client, id: str, value: Any) -> None:
        fields: dict[str, Any] = {name: {"v": value}}
        state = outlast.TaskState(id=id, **fields)
        await client.persistence.save_task_state(id, state)

    async def read(client: Client, id: str) -> Any:
        return getattr(await _state(client, id), name)["v"]

    return Place(write, read, name)


def _update_place() -> Place:
    async def write(client: Client, id: str, value: Any) -> None:
        if await _state(client, id) is None:
            await client.persistence.save_task_state(id, outlast.TaskState(id=id))
        await client.persistence.update_task_state(id, {"context": {"v": value}})

    async def read(client: Client, id: str) -> Any:
        return (await _state(client, id)).context["v"]

    return Place(write, read, "context")


def _input_place(name: str, wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]) -> Place:
    async def write(client: Client, id: str, value: Any) -> None:
        fields: dict[str, Any] = {"message": "", name: wrap(value)}
        await client.persistence.save_task_input(id, outlast.TaskInput(**fields))

    async def read(client: Client, id: str) -> Any:
        return unwrap(getattr(await _input(client, id), name))

    return Place(write, read, name)


def _api_place(name: str, wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]) -> Place:
    async def write(client: Client, id: str, value: Any) -> None:
        count = len(await client.persistence.load_api_messages(id))
        fields: dict[str, Any] = {"content": "", name: wrap(value)}
        message = outlast.ApiMessage(id=str(count), role="user", **fields)
        await client.persistence.append_api_message(id, message)

    async def read(client: Client, id: str) -> Any:
        return unwrap(getattr(await _last_api(client, id), name))

    return Place(write, read, name)


def _user_place(name: str, wrap: Callable[[Any], Any], unwrap: Callable[[Any], Any]) -> Place:
    async def write(client: Client, id: str, value: Any) -> None:
        messages = [
            *await client.persistence.load_user_messages(id),
            outlast.UserMessage(id="last", type="t", role="r", **{name: wrap(value)}),
        ]
        await client.persistence.save_user_messages(id, messages[-1:])

    async def read(client: Client, id: str) -> Any:
        return unwrap(getattr(await _last_user(client, id), name))

    return Place(write, read, name)


def _same(value: Any) -> Any:
    return value


def _in_dict(value: Any) -> Any:
    return {"v": value}


def _out_of_dict(value: Any) -> Any:
    return value["v"]


def _in_list(value: Any) -> Any:
    return [0, value]


def _out_of_list(value: Any) -> Any:
    return value[1]


PLACES: Final[dict[str, Place]] = {
    "state.config": _state_place("config"),
    "state.context": _state_place("context"),
    "state.error": _state_place("error"),
    "update": _update_place(),
    "input.message": _input_place("message", _same, _same),
    "input.attachments": _input_place("attachments", _in_list, _out_of_list),
    "input.params": _input_place("params", _in_dict, _out_of_dict),
    "api.content in a dict": _api_place("content", _in_dict, _out_of_dict),
    "api.content in a list": _api_place("content", _in_list, _out_of_list),
    "api.metadata": _api_place("metadata", _in_dict, _out_of_dict),
    "user.content": _user_place("content", _same, _same),
    "user.metadata": _user_place("metadata", _in_dict, _out_of_dict),
    "user.tool_info.arguments": _user_place(
        "tool_info",
        lambda value: outlast.ToolInfo(call_id="c", name="n", arguments={"v": value}),
        lambda info: info.arguments["v"],
    ),
    "user.tool_info.result": _user_place(
        "tool_info",
        lambda value: outlast.ToolInfo(call_id="c", name="n", result=value),
        lambda info: info.result,
    ),
}


async def _round_trip(context: Context, place: Place, values: dict[str, Any]) -> None:
    """Write all values at once and expect them back; then find out which one was changed."""
    writer, reader = await context.open_many(2)
    task_id = context.new_id("task")
    everything = {**values, "all of them": list(values.values())}
    await place.write(writer, task_id, everything)
    difference = first_difference(await place.read(reader, task_id), everything)
    expect(difference is None, f"{place.path}: {difference}")
    for label, value in values.items():
        if isinstance(value, str) and len(value) > 1000:
            continue
        await place.write(writer, task_id, value)
        found = await place.read(reader, task_id)
        expect_equal(found, value, f"{label} in {place.path}")


@check_each(PLACES, "V2")
async def numbers_and_containers_come_back_as_they_were(context: Context, place: Place) -> None:
    """Integers of any size, floats, booleans, empty and deep containers keep type, value and
    order.
    """
    await _round_trip(context, place, {**NUMBERS, **CONTAINERS})


@check_each(PLACES, "V3")
async def text_comes_back_as_it_was(context: Context, place: Place) -> None:
    """All of Unicode, U+0000 included, in values and in keys, and keys that mean something
    elsewhere.
    """
    keys = {f"key {label}": {text: label} for label, text in TEXTS.items() if len(text) < 1000}
    await _round_trip(context, place, {**TEXTS, **keys, **KEYS})


@check_each(PLACES, "V4")
async def none_comes_back_as_none(context: Context, place: Place) -> None:
    """None is kept wherever it stands, and differs from what is not there."""
    await _round_trip(context, place, NONES)


@check_each(PLACES, "V6", "E1")
async def what_cannot_be_carried_is_refused(context: Context, place: Place) -> None:
    """NaN, bytes, sets, surrogates and the like raise InvalidDataError that names the place;
    nothing changes.
    """
    writer, reader = await context.open_many(2)
    task_id = context.new_id("task")
    await place.write(writer, task_id, "kept")
    before = await image(reader, Scope("task", task_id))
    for label, value in REFUSED.items():
        for given in (value, {"some": ["where", {"deep": value}]}):
            error = await error_of(place.write(writer, task_id, given))
            what = f"{label} in {place.path}"
            after = await image(reader, Scope("task", task_id))
            expect(error is not None, f"{what} was stored as {_tail(after)}")
            expect(
                isinstance(error, InvalidDataError),
                f"{what} raised {error!r}; it must raise InvalidDataError",
            )
            expect(error is not None and error.applied is False, f"{what}: applied is not False")
            expect(place.path in str(error), f"{what}: the message does not name it: {error}")
            if given is not value:
                expect("deep" in str(error), f"{what}: no path to the place in: {error}")
            expect_equal(after, before, f"the task after {what} was refused")


def _tail(value: object) -> str:
    return f"...{repr(value)[-200:]}"


@check("V6", "V3")
async def fields_of_text_take_text_only(context: Context) -> None:
    """Roles, names, sources, model names and checkpoint texts keep all of Unicode and refuse
    what is no text.
    """
    client = await context.open()
    tasks = client.persistence
    task_id, run_id = context.new_id("task"), context.new_id("run")
    good = [text for text in TEXTS.values() if len(text) < 1000]
    for number, text in enumerate(good):
        message = outlast.ApiMessage(id=str(number), role=text, content=text, source=text)
        await tasks.append_api_message(task_id, message)
        expect_equal(await _last_api(client, task_id), message, f"an api message with {text!r}")
        shown = outlast.UserMessage(
            id=str(number),
            type=text,
            role=text,
            content=text,
            tool_info=outlast.ToolInfo(call_id=text, name=text, status=text),
        )
        await tasks.append_user_message(task_id, shown)
        expect_equal(await _last_user(client, task_id), shown, f"a user message with {text!r}")
        point = outlast.StreamCheckpoint(
            run_id=run_id,
            thread_id=task_id,
            message_id="m",
            model=text,
            text=text,
            tool_calls=[outlast.PartialToolCall(id=text, name=text, arguments=text)],
        )
        await client.checkpoints.put(point)
        expect_equal(bare(await client.checkpoints.get(run_id)), point, f"a checkpoint of {text!r}")
    for label, bad in (("a surrogate", "\ud83d"), ("None", None), ("bytes", b"x"), ("an int", 1)):
        await refused(
            tasks.append_api_message(
                task_id,
                outlast.ApiMessage(id="bad", role=bad, content=""),  # type: ignore[arg-type]
            ),
            InvalidDataError,
            f"role={label}",
        )
        for fields in ({"text": bad}, {"model": bad}):
            point = outlast.StreamCheckpoint(
                **{"run_id": run_id, "thread_id": "t", "message_id": "m", "model": "m", **fields}  # type: ignore[arg-type]
            )
            await refused(client.checkpoints.put(point), InvalidDataError, f"{fields}")
        call = outlast.PartialToolCall(id="c", name="n", arguments=bad)  # type: ignore[arg-type]
        await refused(
            client.checkpoints.put(
                outlast.StreamCheckpoint(
                    run_id=run_id, thread_id="t", message_id="m", model="m", tool_calls=[call]
                )
            ),
            InvalidDataError,
            f"arguments={label}",
        )
    for content in (None, 1, 1.5, True, b"x", ("a",), {"a"}):
        await refused(
            tasks.append_api_message(
                task_id,
                outlast.ApiMessage(id="bad", role="user", content=content),  # type: ignore[arg-type]
            ),
            InvalidDataError,
            f"content={content!r}",
        )
    expect_equal(len(await tasks.load_api_messages(task_id)), len(good), "messages of the log")


def spoil(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, msgspec.Struct):
        for name in type(value).__struct_fields__:
            spoil(getattr(value, name))
    elif hasattr(value, "values"):
        for item in list(value.values()):
            spoil(item)
        value["spoiled"] = "yes"
    elif hasattr(value, "append"):
        for item in list(value):
            spoil(item)
        value.append("spoiled")


@check("V1")
async def nothing_is_shared_with_the_caller(context: Context) -> None:
    """Changing what was passed in, or what was returned, changes nothing that is stored."""
    client, other = await context.open_many(2)
    tasks = client.persistence
    task_id, run_id = context.new_id("task"), context.new_id("run")
    inner: dict[str, Any] = {"list": [1, {"deep": []}], "dict": {"a": 1}}
    call = outlast.PartialToolCall(id="c", name="n")
    calls = [call]
    subtasks = ["s"]
    messages = [outlast.ApiMessage(id="1", role="user", content=[inner], metadata=inner)]
    shown = [outlast.UserMessage(id="1", type="t", role="r", content=inner, metadata=inner)]
    await tasks.save_task_state(
        task_id, outlast.TaskState(id=task_id, config=inner, context=inner, subtask_ids=subtasks)
    )
    await tasks.save_task_input(
        task_id, outlast.TaskInput(message=inner, attachments=[inner], params=inner)
    )
    await tasks.save_api_messages(task_id, messages)
    await tasks.append_user_messages(task_id, shown)
    await client.checkpoints.put(
        outlast.StreamCheckpoint(
            run_id=run_id, thread_id=task_id, message_id="m", model="m", tool_calls=calls
        )
    )
    task, run = Scope("task", task_id), Scope("run", run_id)
    wanted = copy.deepcopy([await image(other, task), await image(other, run)])

    for value in (inner, calls, subtasks, messages, shown):
        spoil(value)
    for reader in (client, other):
        now = [await image(reader, task), await image(reader, run)]
        expect_equal(now, wanted, "the store after the caller changed what it had passed in")
    for _ in range(2):
        spoil(await image(client, task))
        spoil(await image(client, run))
        now = [await image(client, task), await image(client, run)]
        expect_equal(now, wanted, "the store after the caller changed what it had loaded")
        for state in await tasks.list_task_states():
            spoil(state)
        async for point in client.checkpoints.iter_checkpoints():
            spoil(point)
        spoil(await tasks.update_task_state(task_id, {}))
        spoil((await client.checkpoints.claim(run_id)).checkpoint)
        now = [await image(client, task), await image(other, run)]
        expect_equal(now, wanted, "the store after the caller changed what was returned")
    given = {"config": {"l": [1]}}
    spoil(await tasks.update_task_state(task_id, given))
    spoil(given)
    kept = await tasks.load_task_state(task_id)
    expect_equal(kept and kept.config, {"l": [1]}, "the config after an update's argument changed")


@check("V1")
async def a_call_keeps_what_it_was_given_when_it_began(context: Context) -> None:
    """What the caller changes while a call is under way is neither stored nor compared."""
    client = await context.open()
    tasks = client.persistence
    task_id = context.new_id("task")
    await tasks.save_task_state(task_id, outlast.TaskState(id=task_id))
    await tasks.append_api_message(task_id, _message(["said"]))

    given: dict[str, Any] = {"kept": [1]}
    said: list[Any] = ["said"]
    update = asyncio.ensure_future(tasks.update_task_state(task_id, {"context": given}))
    await asyncio.sleep(0)
    spoil(given)
    await update
    append = asyncio.ensure_future(tasks.append_api_message(task_id, _message(said)))
    await asyncio.sleep(0)
    spoil(said)
    await append
    state = await tasks.load_task_state(task_id)
    expect_equal(state and state.context, {"kept": [1]}, "the context that was given")
    log = await tasks.load_api_messages(task_id)
    told = [message.content for message in log if message.content != ["said"]]
    expect_equal(told, [], "what else is in the log, after the same message came again")


def _message(content: list[Any]) -> outlast.ApiMessage:
    return outlast.ApiMessage(id="m", role="user", content=content)


_FIELDS: Final = ("start_time", "end_time")


@check("V7", "V6")
async def instants_are_utc_with_microseconds(context: Context) -> None:
    """Aware instants of any zone come back as the same instant in UTC; naive ones are refused."""
    client = await context.open()
    tasks = client.persistence
    task_id = context.new_id("task")
    zones = [UTC, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-11), "x")]
    instants = [datetime(2026, 3, 29, 2, 30, 0, 1, tzinfo=zone) for zone in zones] + [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 10, 25, 1, 30, tzinfo=UTC, fold=1),
    ]
    for number, instant in enumerate(instants):
        await tasks.save_task_state(
            task_id, outlast.TaskState(id=task_id, start_time=instant, end_time=instant)
        )
        state = await tasks.load_task_state(task_id)
        assert state is not None
        await tasks.append_api_message(
            task_id, outlast.ApiMessage(id=str(number), role="u", content="", ts=instant)
        )
        await tasks.append_user_message(
            task_id, outlast.UserMessage(id=str(number), type="t", role="u", ts=instant)
        )
        for found in (
            state.start_time,
            state.end_time,
            (await _last_api(client, task_id)).ts,
            (await _last_user(client, task_id)).ts,
        ):
            expect(found is not None, f"{instant} came back as None")
            assert found is not None
            expect(found.utcoffset() == timedelta(0), f"{instant} came back as {found!r}, not UTC")
            expect(found == instant, f"{instant} came back as {found}")
            expect_equal(found.microsecond, instant.microsecond, f"microseconds of {instant}")
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - on purpose
    before = await image(client, Scope("task", task_id))
    for field in _FIELDS:
        for bad in (naive, "2026-01-01T00:00:00Z", 5, naive.date()):
            error = await refused(
                tasks.save_task_state(task_id, outlast.TaskState(id=task_id, **{field: bad})),  # type: ignore[arg-type]
                InvalidDataError,
                f"{field}={bad!r}",
            )
            expect(field in str(error), f"the message does not name {field}: {error}")
            await refused(
                tasks.update_task_state(task_id, {field: bad}), InvalidDataError, f"{field}={bad!r}"
            )
    await refused(
        tasks.append_api_message(
            task_id, outlast.ApiMessage(id="n", role="u", content="", ts=naive)
        ),
        InvalidDataError,
        "a naive ts",
    )
    await refused(
        tasks.append_user_message(
            task_id, outlast.UserMessage(id="n", type="", role="u", ts=naive)
        ),
        InvalidDataError,
        "a naive ts",
    )
    expect_equal(await image(client, Scope("task", task_id)), before, "the task after refusals")


@check("V7")
async def updated_at_is_set_by_every_write(context: Context) -> None:
    """updated_at is the time of the write, in UTC, whatever was passed in; other writes leave
    it alone.
    """
    client = await context.open()
    tasks = client.persistence
    task_id, run_id = context.new_id("task"), context.new_id("run")
    wrong = datetime(2001, 2, 3, tzinfo=UTC)

    async def stamped(write: Callable[[], Awaitable[object]], what: str) -> datetime:
        earliest = datetime.now(UTC)
        returned = await write()
        latest = datetime.now(UTC)
        record = (
            await client.checkpoints.get(run_id)
            if what == "put"
            else await tasks.load_task_state(task_id)
        )
        assert record is not None
        found = record.updated_at
        expect(found is not None, f"{what} left updated_at None")
        assert found is not None
        expect(found.utcoffset() == timedelta(0), f"{what} set updated_at={found!r}, not UTC")
        expect(
            earliest <= found <= latest,
            f"{what} between {earliest} and {latest} set updated_at={found}",
        )
        if isinstance(returned, outlast.TaskState):
            expect_equal(returned.updated_at, found, "updated_at as an update returned it")
        return found

    state = outlast.TaskState(id=task_id, updated_at=wrong)
    first = await stamped(lambda: tasks.save_task_state(task_id, state), "save")
    second = await stamped(lambda: tasks.update_task_state(task_id, {"retry_count": 1}), "update")
    await tasks.save_task_input(task_id, outlast.TaskInput(message=""))
    await tasks.append_api_message(task_id, outlast.ApiMessage(id="m", role="u", content=""))
    await tasks.claim_task(task_id)
    state_now = await tasks.load_task_state(task_id)
    expect_equal(
        state_now and state_now.updated_at, second, "updated_at after writes of other parts"
    )
    expect(first <= second, f"updated_at went back from {first} to {second}")
    point = outlast.StreamCheckpoint(
        run_id=run_id, thread_id=task_id, message_id="m", model="m", updated_at=wrong, epoch=77
    )
    await stamped(lambda: client.checkpoints.put(point), "put")
    read = await client.checkpoints.get(run_id)
    expect_equal(read and read.epoch, 0, "epoch of an unclaimed checkpoint, put with epoch=77")
