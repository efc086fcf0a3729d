"""Arguments at the edge of what is allowed, and large numbers of things."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import outlast
from outlast.driver import Scope
from outlast_contract.checks.listing import at_once
from outlast_contract.checks.logs import BOTH, Log
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import error_of, expect, expect_equal
from outlast_contract.mutations import Image, bare, checkpoint_of, expect_image, state_of

_HUGE = (2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30)


@check("A10", "L4", "C5", "E3")
async def huge_counts_mean_all(context: Context) -> None:
    """last, limit and a sweep's limit may be any size; so may ages and instants."""
    client = await context.open()
    tasks = client.persistence
    names = ["a", "b", "c"]
    for name in names:
        await tasks.save_task_state(name, state_of(name, "m"))
        await tasks.append_api_message("a", outlast.ApiMessage(id=name, role="u", content=""))
        await client.checkpoints.put(checkpoint_of(name, "m", "t"))
    for count in _HUGE:
        log = await tasks.load_api_messages("a", last=count)
        expect_equal([message.id for message in log], names, f"last={count}", clause="A10")
        states = await tasks.list_task_states(limit=count)
        expect_equal(sorted(state.id for state in states), names, f"limit={count}", clause="L4")
    for count in _HUGE:
        report = await client.sweep(older_than=timedelta(0), limit=count)
        expect_equal((report.tombstones, report.complete), (0, True), f"a sweep, limit={count}")
    for age in (timedelta.max, timedelta(days=10**6), timedelta(microseconds=1)):
        report = await client.sweep(older_than=age)
        expect_equal(report.tombstones, 0, f"a sweep with older_than={age}", clause="C5")
    for instant, wanted in (
        (datetime.min.replace(tzinfo=UTC), []),
        (datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC), []),
        (datetime.max.replace(tzinfo=UTC), names),
    ):
        states = await tasks.list_task_states(updated_before=instant)
        found = sorted(state.id for state in states)
        expect_equal(found, wanted, f"updated_before={instant}", clause="L3")
        points = [
            point.run_id
            async for point in client.checkpoints.iter_checkpoints(updated_before=instant)
        ]
        expect_equal(sorted(points), wanted, f"runs, updated_before={instant}", clause="L3")


@check("V2", "V6", "E3")
async def counts_are_kept_or_refused(context: Context) -> None:
    """retry_count and task_epoch are kept exactly up to what is accepted, and refused beyond."""
    client = await context.open()
    for number in (0, 1, 2**31, 2**52, 2**53 + 1, 2**63 - 1, 2**63, 2**80):
        state = outlast.TaskState(id="t", retry_count=number)
        error = await error_of(client.persistence.save_task_state("t", state))
        if error is None:
            found = await client.persistence.load_task_state("t")
            expect_equal(bare(found), state, f"retry_count={number}")
        else:
            expect(number >= 2**63, f"retry_count={number} was refused: {error}", clause="V6")
        for field in ("task_epoch", "retry_count"):
            fields: dict[str, Any] = {field: number}
            point = outlast.StreamCheckpoint(
                run_id="r", thread_id="t", message_id="m", model="m", **fields
            )
            error = await error_of(client.checkpoints.put(point))
            if error is None:
                expect_equal(bare(await client.checkpoints.get("r")), point, f"{field}={number}")
            else:
                expect(number >= 2**63, f"{field}={number} was refused: {error}", clause="V6")


@check_each(BOTH, "A8", "A4", "A2", heavy=True)
async def a_batch_may_have_many_messages(context: Context, log: Log) -> None:
    """Batches and saves of 35,000 messages are stored, and repeated with new ones among them."""
    client = await context.open()
    task_id = context.new_id("task")
    messages = [log.make(f"m{number}", "") for number in range(35_000)]
    names = [message.id for message in messages]
    await log.append(client)(task_id, messages)
    expect_equal(await log.ids(client, task_id), names, "a batch of 35,000", clause="A4")
    more = [*messages[:20_000], log.make("new"), *messages[20_000:], log.make("newer")]
    await log.append(client)(task_id, more)
    found = await log.ids(client, task_id)
    expect_equal(found, [*names, "new", "newer"], "the log after the batch was repeated")
    await log.save(client)(task_id, messages[::-1])
    expect_equal(await log.ids(client, task_id), names[::-1], "a save of 35,000", clause="A7")
    expect_equal(await log.ids(client, task_id, last=3), names[2::-1], "its end", clause="A10")


@check("C1", "L1", heavy=True)
async def a_task_may_have_many_runs(context: Context) -> None:
    """delete_task and delete_thread take hundreds of runs along, owned ones and others."""
    client = await context.open()
    task_id = context.new_id("task")
    count = 450

    async def make(number: int) -> None:
        run_id = f"run {number:04}"
        owner = await client.checkpoints.claim(run_id) if number % 3 else None
        await client.checkpoints.put(checkpoint_of(run_id, "m", task_id), claim=owner)

    await at_once(make(number) for number in range(count))
    await client.checkpoints.put(checkpoint_of("kept", "m", "another thread"))
    owner = await client.persistence.claim_task(task_id)
    await client.persistence.delete_task(task_id, claim=owner)
    left = [point.run_id async for point in client.checkpoints.iter_checkpoints()]
    expect_equal(left, ["kept"], "runs after delete_task")
    await at_once(
        client.checkpoints.put(checkpoint_of(f"free {number}", "m", task_id))
        for number in range(count)
    )
    removed = await client.checkpoints.delete_thread(task_id)
    expect_equal(removed, count, "checkpoints that delete_thread counted")
    left = [point.run_id async for point in client.checkpoints.iter_checkpoints()]
    expect_equal(left, ["kept"], "runs after delete_thread")


_LONG_NAMES: dict[str, Sequence[str]] = {
    "letters": ("x", "y"),
    "slashes": ("/", "."),
    "four-byte characters": ("😀", "😁"),
}


@check_each(_LONG_NAMES, "I5", "I4")
async def namespaces_may_be_as_long_as_ids(context: Context, fillers: Sequence[str]) -> None:
    """Namespaces of 512 bytes that differ in their last character are two."""
    room = 512 - len(context.namespace.encode())
    first, second = fillers
    body = first * (room // len(first.encode()))
    spaces = [context.namespace + body, context.namespace + body[:-1] + second]
    context.namespaces.extend(spaces)
    clients = [await context.open(space) for space in spaces]
    await clients[0].persistence.save_task_state("t", state_of("t", "one"))
    await expect_image(clients[1], Scope("task", "t"), Image(), "the other namespace")
    await expect_image(
        clients[0], Scope("task", "t"), Image(state=state_of("t", "one")), "a long namespace"
    )


@check("L3", "F3", "C1")
async def a_run_is_found_by_the_thread_of_its_checkpoint(context: Context) -> None:
    """Listing and deleting go by the thread_id of the checkpoint, whatever a claim says of it."""
    client = await context.open()
    runs = client.checkpoints

    async def listed(thread: str) -> list[str]:
        return sorted([point.run_id async for point in runs.iter_checkpoints(thread_id=thread)])

    for name in ("r1", "r2"):
        await runs.put(checkpoint_of(name, "m", "old"))
    await runs.claim("r1", thread_id="new")
    expect_equal(await listed("old"), ["r1", "r2"], "runs of a thread after a claim for another")
    expect_equal(await listed("new"), [], "runs of the thread that a claim named")
    owner = await runs.claim("r1")
    await runs.put(checkpoint_of("r1", "m", "new"), claim=owner)
    expect_equal(await listed("old"), ["r2"], "runs of the old thread after a put for the new one")
    expect_equal(await listed("new"), ["r1"], "runs of the new thread after a put for it")
    await client.persistence.delete_task("old")
    expect_equal(await listed("old"), [], "runs of a deleted task", clause="C1")
    await runs.put(checkpoint_of("r1", "n", "new"), claim=owner)
    await runs.claim("r1", thread_id="old")
    await client.persistence.delete_task("new", force=True)
    expect(
        await runs.get("r1") is None,
        "a run outlived its task, which a claim had denied",
        clause="C1",
    )


@check("A8", "V2")
async def equal_messages_are_equal_in_any_spelling(context: Context) -> None:
    """A repeated message may have its keys in another order and its instants in another zone; how
    deep it is nested does not matter.
    """
    from outlast_contract.corpus import nested

    client = await context.open()
    tasks = client.persistence
    deep = nested(700, "leaf")
    first = [
        outlast.ApiMessage(id="keys", role="u", content={"a": 1, "b": [{"c": 2, "d": 3}]}),
        outlast.ApiMessage(id="deep", role="u", content=deep),
        outlast.ApiMessage(id="large", role="u", content=[2**900, -0.0, 1e300, "\x00😀"]),
    ]
    again = [
        outlast.ApiMessage(id="keys", role="u", content={"b": [{"d": 3, "c": 2}], "a": 1}),
        outlast.ApiMessage(id="deep", role="u", content=nested(700, "leaf")),
        outlast.ApiMessage(id="large", role="u", content=[2**900, -0.0, 1e300, "\x00😀"]),
    ]
    for message in first:
        await tasks.append_api_message("t", message)
    for message in (*again, *first):
        error = await error_of(tasks.append_api_message("t", message))
        expect(error is None, f"message {message.id!r}, repeated, raised {error!r}")
    found = await tasks.load_api_messages("t")
    expect_equal([message.id for message in found], ["keys", "deep", "large"], "the log")
    expect_equal(found[0].content, first[0].content, "the message that was stored first")
