"""State and input, and how the parts of a task stand side by side (S1 to S5)."""

import asyncio
from typing import Any

import msgspec

import outlast
from outlast.driver import Scope
from outlast.errors import InvalidDataError, TaskNotFoundError
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import expect, expect_equal, refused
from outlast_contract.mutations import (
    MUTATIONS,
    TASK_MUTATIONS,
    Image,
    Mutation,
    bare,
    expect_image,
    fill,
)

CHANGES: dict[str, Any] = {
    "status": outlast.TaskStatus.WAITING_FOR_SUBTASK,
    "config": {"a.b": 1, "$set": {"x": None}, "": [], "c": {}},
    "context": {"deep": [{"k": [1, 1.0, True]}]},
    "start_time": None,
    "end_time": None,
    "retry_count": 3,
    "subtask_ids": ["s1", "s2"],
    "error": {"kind": "boom", "detail": None},
    "parent_id": "parent",
}
"""A new value for every field of a state that may be updated."""


@check("S1", "S2", "V4")
async def an_update_replaces_the_given_fields(context: Context) -> None:
    """Each field can be updated alone; the others stay, and the whole new state is returned."""
    client, other = await context.open_many(2)
    task_id = context.new_id("task")
    state = outlast.TaskState(
        id=task_id, config={"keep": 1, "x": {"y": 2}}, context={"c": 1}, error={"e": 1}
    )
    await client.persistence.save_task_state(task_id, state)
    for name, value in CHANGES.items():
        state = msgspec.structs.replace(state, **{name: value})
        returned = await client.persistence.update_task_state(task_id, {name: value})
        expect_equal(bare(returned), state, f"what an update of {name} returned")
        stored = await other.persistence.load_task_state(task_id)
        expect_equal(bare(stored), state, f"the state after an update of {name}")
        expect_equal(returned, stored, "what was returned and what is stored")
    for name in ("config", "context"):
        state = msgspec.structs.replace(state, **{name: {"only": "this"}})
        await client.persistence.update_task_state(task_id, {name: {"only": "this"}})
        stored = await other.persistence.load_task_state(task_id)
        expect_equal(bare(stored), state, f"{name} is replaced as a whole, not merged within")
    everything: dict[str, Any] = {**CHANGES, "retry_count": 9}
    state = outlast.TaskState(id=task_id, **everything)
    await client.persistence.update_task_state(task_id, everything)
    expect_equal(
        bare(await other.persistence.load_task_state(task_id)), state, "an update of all fields"
    )
    before = await other.persistence.load_task_state(task_id)
    returned = await client.persistence.update_task_state(task_id, {})
    expect_equal(bare(returned), bare(before), "an update of nothing")


@check("S2", "V4")
async def none_is_a_value_of_an_update(context: Context) -> None:
    """None is stored, as a field's value and inside of one, and never means "leave it" or
    "remove it".
    """
    client = await context.open()
    task_id = context.new_id("task")
    full = outlast.TaskState(id=task_id, error={"e": 1}, parent_id="p", config={"k": 1})
    await client.persistence.save_task_state(task_id, full)
    await client.persistence.update_task_state(
        task_id, {"error": None, "parent_id": None, "config": {"k": None, "l": {"m": None}}}
    )
    stored = await client.persistence.load_task_state(task_id)
    wanted = outlast.TaskState(id=task_id, config={"k": None, "l": {"m": None}})
    expect_equal(bare(stored), wanted, "the state after an update with None")


@check("S2")
async def an_update_needs_a_state_and_known_fields(context: Context) -> None:
    """A missing task is TaskNotFoundError, an unknown field InvalidDataError; neither creates
    or changes.
    """
    client = await context.open()
    missing = context.new_id("task")
    for what in ("a task that never was", "a task with messages only", "a deleted state"):
        await refused(
            client.persistence.update_task_state(missing, {"config": {"a": 1}}),
            TaskNotFoundError,
            f"an update of {what}",
        )
        expect(
            await client.persistence.load_task_state(missing) is None,
            f"a refused update of {what} made a state",
        )
        expect_equal(await client.persistence.list_task_states(), [], "the listed tasks")
        if what == "a task that never was":
            await client.persistence.append_api_message(
                missing, outlast.ApiMessage(id="m", role="user", content="")
            )
        else:
            await client.persistence.save_task_state(missing, outlast.TaskState(id=missing))
            await client.persistence.delete_task_state(missing)
    owner = await client.persistence.claim_task(missing)
    await refused(
        client.persistence.update_task_state(missing, {"config": {}}, claim=owner),
        TaskNotFoundError,
        "a claimed update of a task without state",
    )
    task_id = context.new_id("task")
    await client.persistence.save_task_state(task_id, outlast.TaskState(id=task_id))
    before = await client.persistence.load_task_state(task_id)
    bad: list[tuple[Any, str]] = [
        ({"colour": "red"}, "colour"),
        ({"config.a": 1}, "config.a"),
        ({"$set": {"config": {}}}, "$set"),
        ({"id": "other"}, "id"),
        ({"updated_at": None}, "updated_at"),
        ({"config": {"a": 1}, "unknown": 1}, "unknown"),
        ({"config": None}, "config"),
        ({"status": "sleeping"}, "status"),
        ({"retry_count": -1}, "retry_count"),
        ({"subtask_ids": [""]}, "subtask_ids"),
        ([("config", {})], "updates"),
        (None, "updates"),
    ]
    for updates, place in bad:
        error = await refused(
            client.persistence.update_task_state(task_id, updates),
            ValueErrorOfOutlast,
            f"an update with {updates!r}",
        )
        expect(place in str(error), f"the message does not name {place!r}: {error}")
        after = await client.persistence.load_task_state(task_id)
        expect_equal(after, before, f"the state after a refused update with {updates!r}")


ValueErrorOfOutlast = outlast.OutlastError
"""InvalidDataError or InvalidIdError, which have no other common base."""


@check("S3", "A3")
async def a_save_replaces_the_whole_register(context: Context) -> None:
    """Nothing of the former value shines through, whatever the sizes of both."""
    client, other = await context.open_many(2)
    task_id, run_id = context.new_id("task"), context.new_id("run")
    for size in (10, 20_000, 300, 200_000, 0):
        keys = {f"k{number}-{size}": "v" * 20 for number in range(size // 20)}
        state = outlast.TaskState(id=task_id, config=keys)
        await client.persistence.save_task_state(task_id, state)
        found = await other.persistence.load_task_state(task_id)
        expect_equal(bare(found), state, f"a state of about {size} bytes")
        given = outlast.TaskInput(message=keys or None, attachments=[size])
        await client.persistence.save_task_input(task_id, given)
        expect_equal(await other.persistence.load_task_input(task_id), given, "the input")
        point = outlast.StreamCheckpoint(
            run_id=run_id, thread_id=task_id, message_id="m", model="m", text="t" * size
        )
        await client.checkpoints.put(point)
        expect_equal(bare(await other.checkpoints.get(run_id)), point, "the checkpoint")


@check_each({mutation.name: mutation for mutation in TASK_MUTATIONS}, "S4", "S3")
async def the_parts_of_a_task_are_independent(context: Context, mutation: Mutation) -> None:
    """Each mutation changes its own part of its own task, and nothing else."""
    client, other = await context.open_many(2)
    names = [context.new_id("task") for _ in range(3)]
    images: dict[str, Image] = {}
    for name in names:
        images[name] = await fill(client, Scope("task", name), f"mark of {name}")
    run = Scope("run", context.new_id("run"))
    kept = await fill(client, run, "kept")
    target = names[1]
    await mutation.apply(client, target, "new", None)
    images[target] = mutation.model(images[target], target, "new")
    for name in names:
        await expect_image(
            other, Scope("task", name), images[name], f"{name} after {mutation.name}"
        )
    await expect_image(other, run, kept, f"a run after {mutation.name}")


@check_each(
    {
        name: MUTATIONS[name]
        for name in (
            "save_task_state",
            "save_task_input",
            "append_api_message",
            "append_user_message",
        )
    },
    "S4",
    "S5",
)
async def one_part_alone_makes_a_task(context: Context, mutation: Mutation) -> None:
    """A task may have any one of its parts alone; the others read as missing."""
    client = await context.open()
    task_id = context.new_id("task")
    await mutation.apply(client, task_id, "only", None)
    wanted = mutation.model(Image(), task_id, "only")
    await expect_image(client, Scope("task", task_id), wanted, f"a task with {mutation.name} alone")
    listed = [state.id for state in await client.persistence.list_task_states()]
    expect_equal(listed, [task_id] if wanted.state else [], "the listed states", clause="L3")


@check("S5", "C2")
async def what_is_missing_reads_as_missing(context: Context) -> None:
    """Registers read as None, logs and lists as empty, for ids that never were, were deleted,
    or only claimed.
    """
    client = await context.open()
    never, claimed, gone = (context.new_id("id") for _ in range(3))
    await client.persistence.claim_task(claimed)
    await client.checkpoints.claim(claimed)
    for scope in (Scope("task", gone), Scope("run", gone)):
        await fill(client, scope, "gone")
    await client.persistence.delete_task(gone)
    await client.checkpoints.delete(gone)
    for name in (never, claimed, gone):
        await expect_image(client, Scope("task", name), Image(), f"task {name!r}")
        await expect_image(client, Scope("run", name), Image(), f"run {name!r}")
        for last in (0, 5):
            found = await client.persistence.load_api_messages(name, last=last)
            expect_equal(list(found), [], f"last={last} of task {name!r}")
    expect_equal(await client.persistence.list_task_states(), [], "the listed tasks")
    points = [point async for point in client.checkpoints.iter_checkpoints()]
    expect_equal(points, [], "the listed checkpoints")
    expect_equal(
        await client.checkpoints.delete_thread(never), 0, "checkpoints of an unknown thread"
    )


@check("S2", "S3")
async def the_id_of_a_state_is_the_id_it_is_saved_under(context: Context) -> None:
    """A state of another id is refused; so are values of the wrong class."""
    client = await context.open()
    task_id = context.new_id("task")
    await refused(
        client.persistence.save_task_state(task_id, outlast.TaskState(id="other")),
        InvalidDataError,
        "a save of a state with another id",
    )
    no_input = outlast.TaskState(id=task_id)
    values: list[Any] = [None, {}, "state"]
    states: list[Any] = [*values, outlast.TaskInput(message="")]
    for value in states:
        await refused(
            client.persistence.save_task_state(task_id, value), InvalidDataError, f"state={value!r}"
        )
    others: list[Any] = [*values, no_input]
    for value in others:
        await refused(
            client.persistence.save_task_input(task_id, value), InvalidDataError, f"input={value!r}"
        )
        await refused(client.checkpoints.put(value), InvalidDataError, f"checkpoint={value!r}")
    await expect_image(client, Scope("task", task_id), Image(), "the task after refused saves")


@check("S1")
async def updates_through_one_claim_at_once_all_survive(context: Context) -> None:
    """Different fields updated at the same time through one claim and two clients are all there."""
    clients = await context.open_many(2)
    for round_number in range(5):
        task_id = context.new_id("task")
        owner = await clients[0].persistence.claim_task(task_id)
        await clients[0].persistence.save_task_state(
            task_id, outlast.TaskState(id=task_id), claim=owner
        )
        await asyncio.gather(
            *(
                clients[number % 2].persistence.update_task_state(
                    task_id, {name: value}, claim=owner
                )
                for number, (name, value) in enumerate(CHANGES.items())
            )
        )
        found = await clients[1].persistence.load_task_state(task_id)
        wanted = outlast.TaskState(id=task_id, **CHANGES)
        expect_equal(bare(found), wanted, f"nine updates at once, round {round_number}")
