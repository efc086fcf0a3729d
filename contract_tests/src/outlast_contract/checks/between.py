"""Somebody else acts between two driver calls of one call of the contract (S1, A8, C1, F2)."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

import msgspec

import outlast
from outlast.contracts import DriverBackend
from outlast.driver import Scope
from outlast.errors import ConflictError, FencedError, TaskNotFoundError
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import error_of, expect, expect_equal
from outlast_contract.mutations import (
    Image,
    api_of,
    bare,
    checkpoint_of,
    claim,
    expect_image,
    fill,
    image,
    state_of,
)
from outlast_contract.recording import watched
from outlast_contract.tampered import TamperedDriver

Intruder = Callable[[], Awaitable[object]]


async def _interrupted(
    context: Context, intruder: Intruder, *, after: int = 1
) -> tuple[DriverBackend, TamperedDriver]:
    """A client in whose next call somebody else acts behind the driver call number ``after``."""
    count = 0

    async def step(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal count
        count += 1
        mine = count
        answer = await call()
        if mine == after:
            await intruder()
        return answer

    driver = TamperedDriver(await context.driver(), step)
    backend = watched(DriverBackend(driver, namespace=context.namespace))
    await backend.open()
    return backend, driver


async def _anew(plain: outlast.Backend, task_id: str) -> None:
    """The task goes without a trace and comes again, with a state that nobody saw before."""
    await plain.persistence.delete_task(task_id)
    await plain.sweep(older_than=timedelta(0))
    await plain.persistence.save_task_state(task_id, state_of(task_id, "anew"))


async def _twice(plain: outlast.Backend, task_id: str) -> None:
    """The state changes and changes back: its bytes may be the same again."""
    await plain.persistence.update_task_state(task_id, {"retry_count": 7})
    await plain.persistence.update_task_state(task_id, {"retry_count": 0})


@check("S1", "S2", needs=["driver"])
async def an_update_is_made_of_the_newest_state(context: Context) -> None:
    """Whatever happens between an update's read and its write, the update changes what is stored
    then, and nothing else of it.
    """
    plain = await context.open()
    tasks = plain.persistence
    changed = {"error": {"by": "the intruder"}, "retry_count": 5}
    acts: dict[str, Callable[[str], Awaitable[object]]] = {
        "an update": lambda id: tasks.update_task_state(id, changed),
        "a save": lambda id: tasks.save_task_state(id, state_of(id, "saved")),
        "two updates, there and back": partial(_twice, plain),
        "deletion, a sweep and a save": partial(_anew, plain),
        "a save of another part": lambda id: tasks.save_task_input(id, outlast.TaskInput("m")),
    }
    for what, act in acts.items():
        task_id = context.new_id("task")
        await tasks.save_task_state(task_id, state_of(task_id, "first"))
        seen: list[outlast.TaskState | None] = []

        async def intrude(
            id: str = task_id, act: Any = act, seen: list[outlast.TaskState | None] = seen
        ) -> None:
            await act(id)
            seen.append(await tasks.load_task_state(id))

        backend, _ = await _interrupted(context, intrude)
        async with backend:
            await backend.persistence.update_task_state(task_id, {"parent_id": "mine"})
        expect(len(seen) == 1 and seen[0] is not None, f"{what}: the intruder did not act once")
        wanted = msgspec.structs.replace(bare(seen[0]), parent_id="mine")
        found = bare(await tasks.load_task_state(task_id))
        expect_equal(found, wanted, f"an update with {what} between its read and its write")
    task_id = context.new_id("task")
    await tasks.save_task_state(task_id, state_of(task_id, "first"))
    backend, _ = await _interrupted(context, lambda: tasks.delete_task_state(task_id))
    async with backend:
        error = await error_of(backend.persistence.update_task_state(task_id, {"parent_id": "p"}))
    expect(
        isinstance(error, TaskNotFoundError),
        f"an update of a state just deleted got {error!r}",
        clause="S2",
    )
    expect(await tasks.load_task_state(task_id) is None, "a deleted state came back", clause="S2")


@check("A8", "A1", "A2", needs=["driver"])
async def a_batch_is_judged_by_the_newest_log(context: Context) -> None:
    """Whatever happens to the log between the two looks of an append of known and new messages, in
    the end all of the batch is there once, or it conflicts and nothing was added.
    """
    plain = await context.open()
    tasks = plain.persistence
    old = [api_of("old", number) for number in range(3)]
    new = [api_of("new", number) for number in range(2)]
    batch = [old[0], new[0], old[2], new[1]]
    cases: dict[str, tuple[Callable[[str], Awaitable[object]], list[Any] | None]] = {
        "a save without one of them": (
            lambda id: tasks.save_api_messages(id, old[1:]),
            [*old[1:], old[0], *new],
        ),
        "an empty save": (lambda id: tasks.save_api_messages(id, []), batch),
        "a deletion of the task": (tasks.delete_task, batch),
        "an append of one of the new": (
            lambda id: tasks.append_api_message(id, new[1]),
            [*old, new[1], new[0]],
        ),
        "the whole batch, appended by another": (
            lambda id: tasks.append_api_messages(id, batch),
            [*old, *new],
        ),
        "a different message of a new id": (
            lambda id: tasks.append_api_message(
                id, msgspec.structs.replace(new[0], content="changed")
            ),
            None,
        ),
    }
    for what, (act, wanted) in cases.items():
        task_id = context.new_id("task")
        await tasks.save_api_messages(task_id, old)
        left: list[list[outlast.ApiMessage]] = []

        async def intrude(
            id: str = task_id, act: Any = act, left: list[list[outlast.ApiMessage]] = left
        ) -> None:
            await act(id)
            left.append(list(await tasks.load_api_messages(id)))

        backend, _ = await _interrupted(context, intrude)
        async with backend:
            error = await error_of(backend.persistence.append_api_messages(task_id, batch))
        found = list(await tasks.load_api_messages(task_id))
        story = f"an append with {what} in between"
        if wanted is None:
            expect(isinstance(error, ConflictError), f"{story} ended with {error!r}")
            expect_equal(found, left[0], f"the log after {story}")
            continue
        expect(error is None, f"{story} raised {error!r}")
        ids = [message.id for message in found]
        expect(len(ids) == len(set(ids)), f"{story} doubled messages: {ids}", clause="A2")
        missing = {message.id for message in batch} - set(ids)
        expect(not missing, f"{story} lost {missing}", clause="A1")
        order = sorted(message.id for message in wanted)
        expect_equal(sorted(ids), order, f"the log after {story}")


_WHEN: Final = {f"behind call {number}": number for number in range(1, 7)}


@check_each(_WHEN, "C1", "F2", "F7", needs=["driver"])
async def delete_task_yields_to_a_newer_owner(context: Context, after: int) -> None:
    """If somebody claims the task while it is deleted, nothing that the newer owner has written
    since is removed.
    """
    plain = await context.open()
    task = Scope("task", context.new_id("task"))
    runs = [Scope("run", context.new_id("run")) for _ in range(2)]
    owner = await claim(plain, task)
    await fill(plain, task, "old", owner)
    for run in runs:
        run_owner = await claim(plain, run)
        await plain.checkpoints.put(checkpoint_of(run.id, "old", task.id), claim=run_owner)
    written: dict[Scope, Image] = {}

    async def intrude() -> None:
        newer = await claim(plain, task)
        written[task] = await fill(plain, task, "newer", newer)
        point = msgspec.structs.replace(
            checkpoint_of(runs[1].id, "newer", task.id), task_epoch=newer.epoch
        )
        run_owner = await claim(plain, runs[1])
        await plain.checkpoints.put(point, claim=run_owner)
        written[runs[1]] = Image(checkpoint=point)

    backend, driver = await _interrupted(context, intrude, after=after)
    async with backend:
        error = await error_of(backend.persistence.delete_task(task.id, claim=owner))
    if not written:
        expect(error is None, f"delete_task raised {error!r}")
        context.note(f"delete_task has only {len(driver.calls)} driver calls here")
        await expect_image(plain, task, Image(), "the deleted task")
        return
    for scope, wanted in written.items():
        what = f"the {scope.kind} of the newer owner, which came behind call {after}"
        await expect_image(plain, scope, wanted, what)
    finished = driver.calls[after - 1] == "remove" and len(driver.calls) == after
    expect(
        isinstance(error, FencedError) or finished, f"delete_task of a former owner got {error!r}"
    )


@check("C1", "F2", needs=["driver"])
async def delete_thread_leaves_what_is_claimed_meanwhile(context: Context) -> None:
    """A run that is claimed while its thread is deleted without force keeps its checkpoint, and the
    caller is told; the owner of a run goes on.
    """
    plain = await context.open()
    for after in (1, 2):
        thread = context.new_id("thread")
        runs = [Scope("run", context.new_id("run")) for _ in range(3)]
        for run in runs:
            await plain.checkpoints.put(checkpoint_of(run.id, "m", thread))
        owners: list[outlast.Claim] = []

        async def intrude(run: Scope = runs[-1], owners: list[outlast.Claim] = owners) -> None:
            owners.append(await claim(plain, run))

        backend, _ = await _interrupted(context, intrude, after=after)
        async with backend:
            error = await error_of(backend.checkpoints.delete_thread(thread))
        kept = await image(plain, runs[-1])
        if kept.checkpoint is None and error is None and owners[0].checkpoint is None:
            continue  # it was removed before the claim
        expect(isinstance(error, FencedError), f"delete_thread beside a claim got {error!r}")
        expect_equal(kept.checkpoint, checkpoint_of(runs[-1].id, "m", thread), "the claimed run")
        await plain.checkpoints.put(checkpoint_of(runs[-1].id, "n", thread), claim=owners[0])
