"""Arguments and moments at the edge, where a layer in between is easily forgotten."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import outlast
from outlast.errors import ClosedError, InvalidDataError
from outlast_contract.engine import Context, check
from outlast_contract.expect import error_of, eventually, expect, expect_equal, refused
from outlast_contract.mutations import api_of, checkpoint_of, state_of

_NOW = timedelta(0)
_OTHERS = 40


@check("S1", "C5")
async def updates_go_on_after_a_sweep_of_others(context: Context) -> None:
    """A sweep of other tasks leaves every task to be updated as before, claimed or not."""
    client, other = await context.open_many(2)
    kept = [f"kept {number}" for number in range(_OTHERS)]
    for task_id in kept:
        await client.persistence.save_task_state(task_id, state_of(task_id, "old"))
    for number in range(_OTHERS):
        # Written often, so that versions and epochs of what is swept are above those of the rest.
        owner = await other.persistence.claim_task(f"gone {number}")
        for mark in "abcd":
            state = state_of(f"gone {number}", mark)
            await other.persistence.save_task_state(state.id, state, claim=owner)
        await other.persistence.delete_task(f"gone {number}", claim=owner)
    await other.sweep(older_than=_NOW)
    for number, task_id in enumerate(kept):
        tasks = (client, other)[number % 2].persistence
        claim = await tasks.claim_task(task_id) if number % 4 > 1 else None
        for count in (1, 2):
            found = await tasks.update_task_state(task_id, {"retry_count": count}, claim=claim)
            expect_equal(found.retry_count, count, f"{task_id!r}, updated after a sweep of others")


@check("A10", "L4")
async def more_than_there_is_gives_all(context: Context) -> None:
    """``last`` and ``limit`` may be larger than any integer of a server; limit=0 gives none."""
    client = await context.open()
    tasks = client.persistence
    ids = ["t0", "t1", "t2"]
    for number, task_id in enumerate(ids):
        await tasks.save_task_state(task_id, state_of(task_id, "s"))
        await tasks.append_api_message("t0", api_of("m", number))
    for many in (2**31, 2**63, 10**30):
        found = await tasks.load_api_messages("t0", last=many)
        expect_equal(len(found), len(ids), f"messages loaded with last={many}")
        listed = await tasks.list_task_states(limit=many)
        expect_equal(sorted(state.id for state in listed), ids, f"tasks listed with limit={many}")
    order = [state.id for state in await tasks.list_task_states()]
    for limit in range(5):
        found_ids = [state.id async for state in tasks.iter_task_states(limit=limit)]
        expect_equal(found_ids, order[:limit], f"tasks iterated with limit={limit}")
    expect_equal(await tasks.list_task_states(limit=0), [], "tasks listed with limit=0")
    for bad in (-1, 1.0, True, "1"):
        await refused(
            _drained(tasks.iter_task_states(limit=bad)),  # type: ignore[arg-type]  # on purpose
            InvalidDataError,
            f"iter_task_states(limit={bad!r})",
        )


class _NoText:
    def __repr__(self) -> str:
        raise RuntimeError("this value has no text")


@check("E3", "V6")
async def arguments_that_cannot_be_shown_are_refused_like_others(context: Context) -> None:
    """A count that is a list of 5,000 lists in one another, or whose text is an error, raises
    InvalidDataError, shortly.
    """
    client = await context.open()
    tasks = client.persistence
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    bad_ones: dict[str, Any] = {"deep": deep, "without text": _NoText(), "long": [0] * 100_000}
    for what, bad in bad_ones.items():
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "load_api_messages": partial(tasks.load_api_messages, "t", last=bad),
            "list_task_states": partial(tasks.list_task_states, limit=bad),
            "claim_task": partial(tasks.claim_task, "t", at_least=bad),
            "sweep": partial(client.sweep, older_than=bad),
        }
        for name, call in calls.items():
            error = await error_of(call())
            told = isinstance(error, InvalidDataError) and len(str(error)) < 1000
            expect(told, f"{name} with a count that is {what} raised {type(error).__name__}")


@check("C7")
async def calls_that_ask_for_nothing_notice_a_closed_backend(context: Context) -> None:
    """With limit=0, too, a closed backend raises ClosedError."""
    client = await context.open()
    await client.aclose()
    await refused(client.persistence.list_task_states(limit=0), ClosedError, "list after aclose")
    await refused(client.sweep(older_than=_NOW, limit=0), ClosedError, "sweep after aclose")


@check("C7")
async def closing_waits_for_a_deletion_of_many_steps(context: Context) -> None:
    """A deletion that was called before aclose, and ends after it began, is seen to its end."""
    for how in ("claimed", "forced", "thread"):
        client, other = await context.open_many(2)
        owner = await client.persistence.claim_task(how) if how != "thread" else None
        await client.persistence.append_api_message(how, api_of("m"), claim=owner)
        for number in range(24):
            await client.checkpoints.put(checkpoint_of(f"{how} {number}", "m", how))
        calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "claimed": partial(client.persistence.delete_task, how, claim=owner),
            "forced": partial(client.persistence.delete_task, how, force=True),
            "thread": partial(client.checkpoints.delete_thread, how),
        }
        deletion = asyncio.ensure_future(calls[how]())
        await asyncio.sleep(0)
        await client.aclose()
        error = await error_of(deletion)
        expect(error is None, f"a deletion ({how}) that was called before aclose gave {error!r}")
        left = [point.run_id async for point in other.checkpoints.iter_checkpoints(thread_id=how)]
        expect_equal(left, [], f"checkpoints left by a deletion ({how}) beside aclose", clause="C1")


@check("C1")
async def delete_task_by_force_checks_a_claim_that_it_is_given(context: Context) -> None:
    """With ``force=True`` the claim is not needed, but one of another scope is still a mistake."""
    client = await context.open()
    tasks = client.persistence
    await tasks.save_task_state("mine", state_of("mine", "s"))
    others = (await tasks.claim_task("theirs"), await client.checkpoints.claim("mine"), "mine")
    for other in others:
        await refused(
            tasks.delete_task("mine", claim=other, force=True),  # type: ignore[arg-type]
            InvalidDataError,
            f"delete_task by force, claim={other!r}",
        )
    expect(await tasks.load_task_state("mine"), "a refused deletion removed the task")


@check("A4", "F7", "C1")
async def a_deletion_keeps_its_place_in_the_order_called(context: Context) -> None:
    """What is called behind delete_task happens behind it, although a deletion has many steps."""
    client, other = await context.open_many(2)
    for who in ("a claim", "a client"):
        task_id = f"deleted through {who}"
        claim = await client.persistence.claim_task(task_id) if who == "a claim" else None
        behind = other if claim else client
        await client.persistence.append_api_message(task_id, api_of("old"), claim=claim)
        for number in range(3):
            await client.checkpoints.put(checkpoint_of(f"{who} {number}", "m", task_id))
        _, error = await asyncio.gather(
            client.persistence.delete_task(task_id, claim=claim),
            error_of(behind.persistence.append_api_message(task_id, api_of("new"), claim=claim)),
        )
        log = await other.persistence.load_api_messages(task_id)
        expect(
            error is not None or api_of("new") in log,
            f"an append called behind delete_task through {who} was done, then deleted as well",
        )


@check("V7")
async def an_instant_that_the_adapter_sets_is_checked_all_the_same(context: Context) -> None:
    """updated_at is overwritten by every write, but a naive datetime there is refused, too."""
    client = await context.open()
    naive = datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001 - it is what is refused
    state = outlast.TaskState(id="t", updated_at=naive)
    await refused(
        client.persistence.save_task_state("t", state), InvalidDataError, "a naive updated_at"
    )
    point = outlast.StreamCheckpoint(
        run_id="r", thread_id="t", message_id="m", model="m", updated_at=naive
    )
    await refused(client.checkpoints.put(point), InvalidDataError, "a naive updated_at")


@check("C6", "C1", needs=["options"])
async def an_expired_checkpoint_does_not_stop_delete_thread(context: Context) -> None:
    """A claimed run whose checkpoint has expired reads as ``None``: delete_thread counts only what
    could still be read, and is stopped by nothing else.
    """
    client = await context.open(checkpoint_ttl=timedelta(seconds=0.3))
    points = client.checkpoints
    owner = await points.claim("owned", thread_id="t")
    await points.put(checkpoint_of("owned", "m", "t"), claim=owner)
    await points.put(checkpoint_of("free", "m", "t"))

    async def expired() -> bool:
        return [point async for point in points.iter_checkpoints(thread_id="t")] == []

    await eventually(expired, "checkpoints older than checkpoint_ttl read as None")
    expect_equal(await points.delete_thread("t"), 0, "checkpoints of a thread that have expired")
    expect_equal(await points.delete_thread("t", force=True), 0, "the same by force")


async def _drained(states: AsyncIterator[outlast.TaskState]) -> None:
    async for _ in states:
        await asyncio.sleep(0)
