"""Ids and namespaces never meet (I1 to I5)."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import outlast
from outlast.driver import Scope
from outlast.errors import FencedError, InvalidIdError, OutlastError
from outlast_contract.corpus import LONG, NOT_IDS, PATHS, SEPARATED, TWINS
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import error_of, expect, expect_equal, fenced, refused
from outlast_contract.mutations import (
    Image,
    checkpoint_of,
    claim,
    expect_image,
    fill,
    image,
    state_of,
)


async def _live_apart(context: Context, names: Sequence[str]) -> None:
    """Take tasks and runs of all names through a whole life; none may notice another."""
    client, other = await context.open_many(2)
    scopes = [Scope("task", name) for name in names] + [Scope("run", name) for name in names]
    images: dict[Scope, Image] = {}
    owners: dict[Scope, outlast.Claim] = {}

    async def unchanged(after: str) -> None:
        for scope in scopes:
            wanted = images.get(scope, Image())
            await expect_image(other, scope, wanted, f"{scope.kind} {scope.id!r:.60} after {after}")

    for number, scope in enumerate(scopes):
        owners[scope] = await claim(client, scope)
        images[scope] = await fill(client, scope, f"mark {number}", owners[scope])
    await unchanged("all were written")
    listed = [state.id for state in await other.persistence.list_task_states()]
    expect_equal(sorted(listed), sorted(names), "the listed tasks")
    runs = [point.run_id async for point in other.checkpoints.iter_checkpoints()]
    expect_equal(sorted(runs), sorted(names), "the listed runs")
    for name in names:
        children = await other.persistence.list_task_states(parent_id=name)
        expect_equal([state.id for state in children], [], f"tasks with parent_id={name!r:.60}")
    for number, scope in enumerate(scopes):
        if number % 3 == 0:
            owners[scope] = await claim(other, scope)
    for scope in scopes:
        images[scope] = await fill(client, scope, f"again {scope.id[:9]}", owners[scope])
    await unchanged("some were claimed and all written again")
    for scope in scopes[::2]:
        if scope.kind == "task":
            await client.persistence.delete_task(scope.id, claim=owners[scope])
        else:
            await client.checkpoints.delete(scope.id, claim=owners[scope])
        del images[scope]
    await unchanged("every second one was deleted")
    await client.sweep(older_than=timedelta(0))
    await unchanged("a sweep")
    listed = [state.id for state in await other.persistence.list_task_states()]
    wanted = [scope.id for scope in scopes if scope.kind == "task" and scope in images]
    expect_equal(sorted(listed), sorted(wanted), "the listed tasks after deletion")


@check_each(TWINS, "I1")
async def look_alike_ids_are_different_scopes(context: Context, names: Sequence[str]) -> None:
    """Case, accents, trailing spaces, normal forms and emoji make different ids."""
    await _live_apart(context, names)


@check_each(SEPARATED, "I2")
async def separators_and_prefixes_keep_ids_apart(context: Context, names: Sequence[str]) -> None:
    """Ids that contain what a key is put together with, or begin like another, are different
    scopes.
    """
    await _live_apart(context, names)


@check_each(LONG, "I4", "I3")
async def ids_of_up_to_512_bytes_are_fine(context: Context, names: Sequence[str]) -> None:
    """Ids of any characters and up to 512 bytes go through a whole life."""
    await _live_apart(context, names)


@check_each(PATHS, "I3", "I4")
async def paths_and_patterns_are_plain_ids(context: Context, names: Sequence[str]) -> None:
    """Dots, slashes, device names, patterns, quotes and ids of 512 bytes are ids like any other."""
    await _live_apart(context, names)


@check_each({**TWINS, **SEPARATED, **PATHS, **LONG}, "I1", "I2", "I3", "I4")
async def message_thread_and_parent_ids_are_kept_apart(
    context: Context, names: Sequence[str]
) -> None:
    """The same holds for ids of messages, parents and threads, which filters and deletions go
    by.
    """
    client, other = await context.open_many(2)
    tasks, runs = client.persistence, client.checkpoints
    task_id = context.new_id("task")
    messages = [outlast.ApiMessage(id=name, role="u", content=name) for name in names]
    for message in messages:
        await tasks.append_api_message(task_id, message)
    await tasks.append_api_messages(task_id, messages[::-1])
    found = await other.persistence.load_api_messages(task_id)
    expect_equal(list(found), messages, "messages of look-alike ids")
    for number, name in enumerate(names):
        child, run = f"child {number}", f"run {number}"
        await tasks.save_task_state(child, outlast.TaskState(id=child, parent_id=name))
        await runs.put(checkpoint_of(run, "m", name))
    for number, name in enumerate(names):
        children = await other.persistence.list_task_states(parent_id=name)
        expect_equal(
            [state.id for state in children], [f"child {number}"], f"children of {name!r:.60}"
        )
        points = [
            point.run_id async for point in other.checkpoints.iter_checkpoints(thread_id=name)
        ]
        expect_equal(points, [f"run {number}"], f"runs of thread {name!r:.60}")
    for number, name in enumerate(names[:3]):
        expect_equal(await runs.delete_thread(name), 1, f"runs deleted with thread {name!r:.60}")
        rest = [point.run_id async for point in runs.iter_checkpoints()]
        expect_equal(len(rest), len(names) - number - 1, "runs that are left")


Call = Callable[[outlast.Backend, Any], Awaitable[object]]


async def _iterate(points: Any) -> None:
    async for _ in points:
        pass


ID_ARGUMENTS: dict[str, Call] = {
    "claim_task": lambda b, i: b.persistence.claim_task(i),
    "save_task_state": lambda b, i: b.persistence.save_task_state(i, outlast.TaskState(id=i)),
    "load_task_state": lambda b, i: b.persistence.load_task_state(i),
    "update_task_state": lambda b, i: b.persistence.update_task_state(i, {"config": {}}),
    "delete_task_state": lambda b, i: b.persistence.delete_task_state(i),
    "list_task_states.parent_id": lambda b, i: b.persistence.list_task_states(parent_id=i or ""),
    "list_task_states.after": lambda b, i: b.persistence.list_task_states(after=i or ""),
    "save_task_input": lambda b, i: b.persistence.save_task_input(i, outlast.TaskInput(message="")),
    "load_task_input": lambda b, i: b.persistence.load_task_input(i),
    "delete_task_input": lambda b, i: b.persistence.delete_task_input(i),
    "save_api_messages": lambda b, i: b.persistence.save_api_messages(i, []),
    "load_api_messages": lambda b, i: b.persistence.load_api_messages(i),
    "append_api_message": lambda b, i: b.persistence.append_api_message(
        i, outlast.ApiMessage(id="m", role="u", content="")
    ),
    "append_api_messages": lambda b, i: b.persistence.append_api_messages(i, []),
    "delete_api_messages": lambda b, i: b.persistence.delete_api_messages(i),
    "save_user_messages": lambda b, i: b.persistence.save_user_messages(i, []),
    "load_user_messages": lambda b, i: b.persistence.load_user_messages(i),
    "append_user_message": lambda b, i: b.persistence.append_user_message(
        i, outlast.UserMessage(id="m", type="t", role="u")
    ),
    "append_user_messages": lambda b, i: b.persistence.append_user_messages(i, []),
    "delete_user_messages": lambda b, i: b.persistence.delete_user_messages(i),
    "delete_task": lambda b, i: b.persistence.delete_task(i),
    "delete_task.force": lambda b, i: b.persistence.delete_task(i, force=True),
    "claim": lambda b, i: b.checkpoints.claim(i),
    "claim.thread_id": lambda b, i: b.checkpoints.claim("run", thread_id=i or ""),
    "get": lambda b, i: b.checkpoints.get(i),
    "put.run_id": lambda b, i: b.checkpoints.put(
        outlast.StreamCheckpoint(run_id=i, thread_id="t", message_id="m", model="m")
    ),
    "put.thread_id": lambda b, i: b.checkpoints.put(
        outlast.StreamCheckpoint(run_id="r", thread_id=i, message_id="m", model="m")
    ),
    "put.message_id": lambda b, i: b.checkpoints.put(
        outlast.StreamCheckpoint(run_id="r", thread_id="t", message_id=i, model="m")
    ),
    "delete": lambda b, i: b.checkpoints.delete(i),
    "delete_thread": lambda b, i: b.checkpoints.delete_thread(i),
    "delete_thread.force": lambda b, i: b.checkpoints.delete_thread(i, force=True),
    "iter_checkpoints": lambda b, i: _iterate(b.checkpoints.iter_checkpoints(thread_id=i or "")),
    "message id": lambda b, i: b.persistence.append_api_message(
        "t", outlast.ApiMessage(id=i, role="u", content="")
    ),
    "user message id": lambda b, i: b.persistence.save_user_messages(
        "t", [outlast.UserMessage(id=i, type="t", role="u")]
    ),
    "parent_id": lambda b, i: b.persistence.save_task_state(
        "t", outlast.TaskState(id="t", parent_id=i or "")
    ),
    "subtask_ids": lambda b, i: b.persistence.save_task_state(
        "t", outlast.TaskState(id="t", subtask_ids=[i])
    ),
}
"""Every place that takes an id."""


@check("I4", "E3")
async def what_is_no_id_is_refused_everywhere(context: Context) -> None:
    """Empty, too long, with half a surrogate pair, or no text: InvalidIdError in every place
    that takes an id.
    """
    client = await context.open()
    for name, call in ID_ARGUMENTS.items():
        for label, bad in NOT_IDS.items():
            error = await refused(call(client, bad), InvalidIdError, f"{name} with {label}")
            expect(isinstance(error, ValueError), f"{name}: InvalidIdError is no ValueError")
    expect_equal(await client.persistence.list_task_states(), [], "the tasks after refused calls")
    points = [point async for point in client.checkpoints.iter_checkpoints()]
    expect_equal(points, [], "the checkpoints after refused calls")
    for namespace in ("", "x" * 513, "\ud800"):
        found = await error_of(_open(context, namespace))
        expect(
            isinstance(found, InvalidIdError),
            f"namespace={namespace!r:.20} gave {found!r}, not InvalidIdError",
        )


async def _open(context: Context, namespace: str) -> None:
    backend = await context.harness.open(namespace)
    try:
        await backend.open()
    finally:
        await backend.aclose()


@check("I5", "F1", "C5")
async def namespaces_are_separate_worlds(context: Context) -> None:
    """The same ids in look-alike namespaces: nothing written, listed, claimed, deleted or swept
    in one shows in another.
    """
    base = context.namespace
    tails = ("", "x", "X", ":x", "/x", " ", ".", "/..", "\x00", "é", "e\u0301", "{", "%", "0")
    spaces = [base, f"{base}É"] + [base + tail for tail in tails[1:]]
    context.namespaces.extend(spaces[1:])
    clients = {space: await context.open(space) for space in spaces}
    task, run = Scope("task", "t"), Scope("run", "r")
    marks: dict[str, str] = {}
    owners: dict[str, outlast.Claim] = {}

    async def unchanged(after: str) -> None:
        for space, client in clients.items():
            for scope in (task, run):
                wanted = _filled(scope, marks.get(space))
                what = f"{scope.kind} in {space.removeprefix(base)!r} after {after}"
                await expect_image(client, scope, wanted, what)
            listed = [state.id for state in await client.persistence.list_task_states()]
            wanted_tasks = sorted(["t", f"only {marks[space]}"]) if space in marks else []
            expect_equal(sorted(listed), wanted_tasks, f"tasks after {after}")
            runs = [point.run_id async for point in client.checkpoints.iter_checkpoints()]
            expect_equal(runs, ["r"] if space in marks else [], f"runs after {after}")

    for number, space in enumerate(spaces[:-3]):
        run_owner = await claim(clients[space], run)
        owners[space] = await claim(clients[space], task)
        for _ in range(number % 3):
            owners[space] = await claim(clients[space], task)
            run_owner = await claim(clients[space], run)
        marks[space] = f"mark {number}"
        await fill(clients[space], task, marks[space], owners[space])
        await fill(clients[space], run, marks[space], run_owner)
        alone = f"only {marks[space]}"
        await clients[space].persistence.save_task_state(alone, state_of(alone, "m"))
    await unchanged("writes in most of them")
    one, two = spaces[1], spaces[3]
    await clients[one].persistence.delete_task("t", claim=owners[one])
    await clients[one].checkpoints.delete_thread("thread of r", force=True)
    await clients[one].persistence.delete_task(f"only {marks[one]}")
    await clients[one].sweep(older_than=timedelta(0))
    del marks[one]
    await unchanged("deletion and a sweep in one of them")
    newer = await claim(clients[two], task)
    await fenced(
        clients[two].persistence.save_task_state("t", state_of("t", "late"), claim=owners[two]),
        "superseded",
        "a stale write in one namespace",
    )
    for space in spaces[4:-3]:
        await clients[space].persistence.check_claim(owners[space])
    await fill(clients[two], task, marks[two], newer)
    await unchanged("a claim in one of them")


def _filled(scope: Scope, mark: str | None) -> Image:
    from outlast_contract.mutations import filled

    return Image() if mark is None else filled(scope, mark)


@check("I1", "I2", "F1")
async def a_claim_is_of_one_scope_only(context: Context) -> None:
    """Claims of look-alike ids do not fence each other."""
    client = await context.open()
    names = ["Run", "run", "run ", "run/", "r", "run\x00", "rún"]
    owners = {name: await client.persistence.claim_task(name) for name in names}
    for name in names:
        await client.persistence.claim_task(name)
        late = await error_of(
            client.persistence.save_task_state(name, state_of(name, "x"), claim=owners[name])
        )
        expect(
            isinstance(late, FencedError), f"a stale write of {name!r} got {late!r}", clause="F2"
        )
        del owners[name]
        for other, owner in owners.items():
            error: OutlastError | None = await error_of(
                client.persistence.save_task_state(other, state_of(other, "x"), claim=owner)
            )
            expect(error is None, f"a claim of {name!r} fenced {other!r}: {error}")
    for name in names:
        found = await image(client, Scope("task", name))
        expect(found.state is None or found.state.id == name, f"{name!r} reads as {found.state}")
