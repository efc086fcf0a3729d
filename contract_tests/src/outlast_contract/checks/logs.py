"""The two message logs (A1 to A10)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

import outlast
from outlast.errors import ConflictError, FencedError, InvalidDataError
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import (
    error_of,
    expect,
    expect_equal,
    fenced,
    first_difference,
    refused,
)

Client = outlast.Backend


@dataclass(frozen=True)
class Log:
    """One of the two logs: how it is written and read."""

    make: Callable[..., Any]
    save: Callable[[Client], Callable[..., Awaitable[None]]]
    append: Callable[[Client], Callable[..., Awaitable[None]]]
    append_one: Callable[[Client], Callable[..., Awaitable[None]]]
    load: Callable[[Client], Callable[..., Awaitable[Sequence[Any]]]]
    delete: Callable[[Client], Callable[..., Awaitable[None]]]

    async def ids(self, client: Client, task_id: str, **options: Any) -> list[str]:
        """The ids of the log's messages, in its order."""
        return [message.id for message in await self.load(client)(task_id, **options)]


async def expect_log(
    log: Log, client: Client, task_id: str, wanted: Sequence[Any], what: str
) -> None:
    """Expect a log to hold exactly the given messages, and say which clause it breaks if not."""
    found = list(await log.load(client)(task_id))
    if first_difference(found, list(wanted)) is None:
        return
    ids, due = [message.id for message in found], [message.id for message in wanted]
    strange = [name for name in ids if name not in due]
    expect(not strange, f"{what}: nobody wrote {strange[:3]}", clause="A3")
    expect(len(set(ids)) == len(ids), f"{what}: messages are doubled: {ids[-9:]}", clause="A2")
    missing = [name for name in due if name not in ids]
    if missing:
        later = await log.ids(client, task_id)
        late = [name for name in missing if name in later]
        expect(not late, f"{what}: a load did not show {late[:3]}, the next one does", clause="A6")
        expect(condition=False, message=f"{what}: {missing[:3]} are lost", clause="A1")
    expect_equal(ids, due, f"{what}, its order", clause="A4")
    expect_equal(found, list(wanted), what, clause="A3")


def _api(id: str, content: Any = "text", **fields: Any) -> outlast.ApiMessage:
    return outlast.ApiMessage(id=id, role="user", content=content, **fields)


def _user(id: str, content: Any = "text", **fields: Any) -> outlast.UserMessage:
    return outlast.UserMessage(id=id, type="text", role="user", content=content, **fields)


BOTH: Final[dict[str, Log]] = {
    "api": Log(
        _api,
        lambda client: client.persistence.save_api_messages,
        lambda client: client.persistence.append_api_messages,
        lambda client: client.persistence.append_api_message,
        lambda client: client.persistence.load_api_messages,
        lambda client: client.persistence.delete_api_messages,
    ),
    "user": Log(
        _user,
        lambda client: client.persistence.save_user_messages,
        lambda client: client.persistence.append_user_messages,
        lambda client: client.persistence.append_user_message,
        lambda client: client.persistence.load_user_messages,
        lambda client: client.persistence.delete_user_messages,
    ),
}


@check_each(BOTH, "A1", "A3", "A4", "A5", "A6")
async def appends_are_kept_in_their_order(context: Context, log: Log) -> None:
    """Single messages and batches, from several clients, stay in the order in which they were
    appended.
    """
    clients = await context.open_many(3)
    task_id = context.new_id("task")
    owner = await clients[0].persistence.claim_task(task_id)
    wanted: list[Any] = []
    # Neither ids nor clocks grow along the way: neither may decide the order.
    names = [f"{context.rng.randrange(10**6):06}-{number}" for number in range(60)]
    while names:
        size = min(len(names), context.rng.choice((1, 1, 2, 5)))
        ts = datetime(2026, 1, 1, tzinfo=UTC) - timedelta(seconds=len(wanted))
        batch = [log.make(names.pop(), f"c{len(wanted)}", ts=ts) for _ in range(size)]
        client = context.rng.choice(clients)
        if size == 1:
            await log.append_one(client)(task_id, batch[0], claim=owner)
        else:
            await log.append(client)(task_id, batch, claim=owner)
        wanted += batch
        reader = context.rng.choice(clients)
        await expect_log(log, reader, task_id, wanted, f"the log after {len(wanted)} appends")


@check_each(BOTH, "A4", "A1")
async def the_clock_does_not_decide_the_order(context: Context, log: Log) -> None:
    """Messages of one instant, of a clock that goes back, and without any stay as they were
    appended.
    """
    client = await context.open()
    task_id = context.new_id("task")
    instant = datetime(2026, 1, 1, tzinfo=UTC)
    stamps = [instant] * 20 + [instant - timedelta(milliseconds=n) for n in range(20)] + [None] * 20
    for number, ts in enumerate(stamps):
        await log.append_one(client)(task_id, log.make(f"{-number}", ts=ts))
    wanted = [f"{-number}" for number in range(len(stamps))]
    expect_equal(await log.ids(client, task_id), wanted, "the order of the log")
    await client.persistence.save_task_state(task_id, outlast.TaskState(id=task_id))
    other = await context.open()
    expect_equal(await log.ids(other, task_id), wanted, "the order after another write of the task")


@check_each(BOTH, "A2", "A8")
async def the_same_message_appended_again_changes_nothing(context: Context, log: Log) -> None:
    """Repeating an append is done and stores nothing twice, alone or in a batch with new ones,
    ts aside.
    """
    client, other = await context.open_many(2)
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 2, tzinfo=UTC)
    for owned in (False, True):
        task_id = context.new_id("task")
        owner = await client.persistence.claim_task(task_id) if owned else None
        first = [log.make(name, {"k": [1, 2.0, None]}, ts=early) for name in "abc"]
        await log.append(client)(task_id, first, claim=owner)
        for again in (first, first[1:2], [first[2], first[0]]):
            await log.append(other)(task_id, again, claim=owner)
        for message, ts in ((first[0], late), (first[1], None)):
            restamped = msgspec.structs.replace(message, ts=ts)
            error = await error_of(log.append_one(other)(task_id, restamped, claim=owner))
            expect(error is None, f"an equal message with ts={ts} got {error!r}", clause="A8")
        expect_equal(list(await log.load(client)(task_id)), first, "the log after repetitions")
        new = [log.make("d"), log.make("e")]
        mixed = [first[2], new[0], first[0], new[1]]
        await log.append(other)(task_id, mixed, claim=owner)
        found = list(await log.load(client)(task_id))
        expect_equal(found, [*first, *new], "the log after a batch of known and new messages")
        await log.append(other)(task_id, mixed, claim=owner)
        expect_equal(list(await log.load(client)(task_id)), found, "the log after the same batch")


@check_each(BOTH, "A8", "A1", "E3")
async def another_message_of_a_known_id_conflicts(context: Context, log: Log) -> None:
    """An id that is in the log with another message is refused, and nothing of its batch is
    stored.
    """
    client, other = await context.open_many(2)
    task_id = context.new_id("task")
    stored = [log.make(str(number), f"content {number}") for number in range(50)]
    await log.append(client)(task_id, stored)
    different: list[tuple[str, list[Any]]] = [
        ("another content", [log.make("0", "other")]),
        ("a number of another type", [log.make("50", {"n": 1.0})]),
        ("True for 1", [log.make("50", {"n": True})]),
        ("0.0 for -0.0", [log.make("51", {"n": 0.0})]),
        ("other metadata", [log.make("7", "content 7", metadata={"a": None})]),
        ("another role", [msgspec.structs.replace(stored[49], role="assistant")]),
        ("new ones before it", [log.make("new"), log.make("0", "other")]),
        ("new ones behind it", [log.make("49", "other"), log.make("new")]),
        ("an equal one before it", [stored[3], log.make("new"), log.make("25", "other")]),
    ]
    stored += [log.make("50", {"n": 1}), log.make("51", {"n": -0.0})]
    await log.append(client)(task_id, stored[50:])
    for what, batch in different:
        await refused(log.append(other)(task_id, batch), ConflictError, f"an append with {what}")
        found = list(await log.load(client)(task_id))
        expect_equal(found, stored, f"the log after a refused append with {what}")
    await refused(
        log.append_one(other)(task_id, log.make("10", "other")), ConflictError, "a single append"
    )
    await log.append(other)(task_id, [stored[20], log.make("new")])
    expect_equal((await log.ids(client, task_id))[-1], "new", "the next append after conflicts")


@check_each(BOTH, "A8", "F2", "F13")
async def the_fence_is_checked_before_the_ids(context: Context, log: Log) -> None:
    """A stale owner learns that it is stale, whether its message is known, known and different,
    or new.
    """
    client = await context.open()
    task_id = context.new_id("task")
    stale = await client.persistence.claim_task(task_id)
    await log.append(client)(task_id, [log.make("a"), log.make("b")], claim=stale)
    await client.persistence.claim_task(task_id)
    for what, batch in (
        ("an equal message", [log.make("a")]),
        ("a different message of a known id", [log.make("b", "other")]),
        ("a new message", [log.make("c")]),
        ("no message", []),
        ("a known and a new one", [log.make("a"), log.make("c")]),
    ):
        call = log.append(client)(task_id, batch, claim=stale)
        await fenced(call, "superseded", f"a stale append of {what}", clause="A8")
        call = log.append(client)(task_id, batch)
        await fenced(call, "claimed", f"an unclaimed append of {what}", clause="A8")
    expect_equal(await log.ids(client, task_id), ["a", "b"], "the log after stale appends")


@check_each(BOTH, "A8")
async def an_id_occurs_once_in_a_batch(context: Context, log: Log) -> None:
    """One id twice in a batch or a save is refused, equal or not, and nothing is stored."""
    client = await context.open()
    task_id = context.new_id("task")
    await log.append_one(client)(task_id, log.make("kept"))
    for what, batch in (
        ("equal messages", [log.make("a"), log.make("a")]),
        ("different messages", [log.make("a", "1"), log.make("b"), log.make("a", "2")]),
    ):
        for name, write in (("append", log.append(client)), ("save", log.save(client))):
            error = await refused(
                write(task_id, batch), InvalidDataError, f"{name} of two {what} of one id"
            )
            expect("'a'" in str(error), f"the message does not name the id: {error}")
            expect_equal(
                await log.ids(client, task_id), ["kept"], f"the log after a refused {name}"
            )


@check_each(BOTH, "A7", "A8", "A3")
async def a_save_replaces_the_whole_log(context: Context, log: Log) -> None:
    """A save leaves nothing of the old list; ids that it left out are free again."""
    client, other = await context.open_many(2)
    task_id = context.new_id("task")
    owner = await client.persistence.claim_task(task_id)
    old = [log.make(f"o{number}", "x" * 2000) for number in range(80)]
    await log.append(client)(task_id, old, claim=owner)
    for size in (120, 3, 80, 0, 1):
        new = [log.make(f"n{number}", f"size {size}") for number in range(size)]
        await log.save(client)(task_id, new, claim=owner)
        expect_equal(list(await log.load(other)(task_id)), new, f"the log after a save of {size}")
    await log.save(client)(task_id, [log.make("a"), log.make("b")], claim=owner)
    await log.append_one(client)(task_id, log.make("n0", "free again"), claim=owner)
    await log.append_one(client)(task_id, log.make("o5", "free again"), claim=owner)
    wanted = [
        log.make("a"),
        log.make("b"),
        log.make("n0", "free again"),
        log.make("o5", "free again"),
    ]
    expect_equal(list(await log.load(other)(task_id)), wanted, "appends of ids that were left out")
    reordered = [wanted[3], wanted[0], wanted[2]]
    await log.save(client)(task_id, reordered, claim=owner)
    expect_equal(list(await log.load(other)(task_id)), reordered, "a save in another order")
    await refused(
        log.append_one(client)(task_id, log.make("a", "changed"), claim=owner),
        ConflictError,
        "an append of an id that a save kept",
    )
    await log.delete(client)(task_id, claim=owner)
    expect_equal(list(await log.load(other)(task_id)), [], "the log after its deletion")
    await log.append_one(client)(task_id, log.make("a", "after"), claim=owner)
    expect_equal(await log.ids(other, task_id), ["a"], "an append after the deletion")


@check_each(BOTH, "A10", "A5")
async def the_newest_n_are_loaded(context: Context, log: Log) -> None:
    """last=n gives the newest n in append order, none for 0, all if there are fewer; others are
    refused.
    """
    client = await context.open()
    task_id = context.new_id("task")
    expect_equal(list(await log.load(client)(task_id, last=3)), [], "last=3 of an empty log")
    names = [f"m{number}" for number in range(130)]
    await log.append(client)(task_id, [log.make(name) for name in names[:100]])
    for name in names[100:]:
        await log.append_one(client)(task_id, log.make(name))
    for last in (0, 1, 2, 29, 30, 31, 64, 100, 129, 130, 131, 10**6):
        wanted = names[len(names) - last :] if last < len(names) else names
        expect_equal(await log.ids(client, task_id, last=last), wanted, f"last={last}")
    expect_equal(await log.ids(client, task_id, last=None), names, "last=None")
    for bad in (-1, -130, 1.0, True, "3"):
        await refused(
            log.load(client)(task_id, last=bad), InvalidDataError, f"a load with last={bad!r}"
        )


@check_each(BOTH, "A5", "A4", "A6")
async def every_load_is_a_prefix_of_the_next(context: Context, log: Log) -> None:
    """While batches are appended, each load is a prefix of later ones and never half a batch."""
    writer, reader = await context.open_many(2)
    task_id = context.new_id("task")
    owner = await writer.persistence.claim_task(task_id)
    done: list[str] = []
    finished = asyncio.Event()

    async def write() -> None:
        for number in range(60):
            batch = [f"{number}.{part}" for part in range(context.rng.choice((1, 2, 3)))]
            await log.append(writer)(
                task_id, [log.make(f"{name}/{len(batch)}") for name in batch], claim=owner
            )
            done.extend(f"{name}/{len(batch)}" for name in batch)
        finished.set()

    async def read() -> None:
        seen: list[str] = []
        while not finished.is_set():
            before = len(done)
            now = await log.ids(reader, task_id)
            expect_equal(now[: len(seen)], seen, "a later load, as far as an earlier one went")
            expect(len(now) >= before, f"a load shows {len(now)} of {before} done", clause="A6")
            if now:
                number, rest = now[-1].split(".")
                part, size = rest.split("/")
                expect(
                    int(part) == int(size) - 1,
                    f"a load ends within batch {number}: {part} of {size}",
                    clause="A4",
                )
            newest = await log.ids(reader, task_id, last=5)
            expect(
                len(newest) >= min(5, len(now)), f"last=5 gave {newest} of {len(now)}", clause="A10"
            )
            seen = now
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        group.create_task(write())
    expect_equal(await log.ids(reader, task_id), done, "the whole log")


@check_each(BOTH, "A8", "A4")
async def an_empty_batch_and_other_iterables_are_fine(context: Context, log: Log) -> None:
    """Batches may be any iterable, empty too; what is no batch of messages is refused."""
    client = await context.open()
    task_id = context.new_id("task")
    await log.append(client)(task_id, [])
    await log.append(client)(task_id, (log.make(name) for name in "ab"))
    await log.append(client)(task_id, (log.make("c"),))
    expect_equal(await log.ids(client, task_id), ["a", "b", "c"], "the log")
    for bad in ("text", b"bytes", None, 5, {"a": log.make("x")}, log.make("x"), ["x"], [None]):
        for write in (log.append(client), log.save(client)):
            await refused(write(task_id, bad), InvalidDataError, f"messages={bad!r:.40}")
    wrong = _user("w") if log is BOTH["api"] else _api("w")
    await refused(
        log.append_one(client)(task_id, wrong), InvalidDataError, "a message of the other log"
    )
    expect_equal(await log.ids(client, task_id), ["a", "b", "c"], "the log after refused writes")


@check("A9", heavy=True)
async def an_append_costs_the_same_in_a_long_log(context: Context) -> None:
    """Appends to a log of 4,000 messages take about the time of appends to a short one."""
    client = await context.open()
    owner_of: dict[str, outlast.Claim] = {}
    sizes = {"short": 40, "long": 4000}
    for name, size in sizes.items():
        owner_of[name] = await client.persistence.claim_task(name)
        first = [_api(f"m{number}", "x" * 1000) for number in range(size)]
        await client.persistence.save_api_messages(name, first, claim=owner_of[name])
        await client.persistence.append_api_message(name, _api("warm"), claim=owner_of[name])

    async def seconds(name: str, label: str) -> float:
        began = time.perf_counter()
        for number in range(40):
            await client.persistence.append_api_message(
                name, _api(f"{label}-{number}", "y" * 1000), claim=owner_of[name]
            )
        return (time.perf_counter() - began) / 40

    best = {name: float("inf") for name in sizes}
    deadline = time.perf_counter() + 15
    for attempt in range(16):
        if attempt > 1 and time.perf_counter() > deadline:
            break
        for name in sizes:
            best[name] = min(best[name], await seconds(name, f"a{attempt}"))
        # The machine may be busy with something else: only what is slow each time is slow.
        if attempt >= 1 and best["long"] < 2.5 * best["short"] + 0.0005:
            return
    raise_slow(best)


def raise_slow(best: dict[str, float]) -> None:
    """Report what an append costs in both logs."""
    expect(
        condition=False,
        message=f"an append takes {best['long'] * 1000:.2f} ms in a log of 4,000 messages "
        f"and {best['short'] * 1000:.2f} ms in one of 40",
    )


@check_each(BOTH, "A1", "F8")
async def unclaimed_appends_of_two_clients_are_all_kept(context: Context, log: Log) -> None:
    """The simple use without claims keeps every append of every client of a task."""
    clients = await context.open_many(2)
    task_id = context.new_id("task")
    for number in range(20):
        await log.append_one(clients[number % 2])(task_id, log.make(str(number)))
    wanted = [str(number) for number in range(20)]
    for client in clients:
        expect_equal(await log.ids(client, task_id), wanted, "the log of two clients")
    owner = await clients[0].persistence.claim_task(task_id)
    error = await error_of(log.append_one(clients[1])(task_id, log.make("late")))
    expect(isinstance(error, FencedError), f"an unclaimed append got {error!r}", clause="F8")
    await log.append_one(clients[1])(task_id, log.make("owned"), claim=owner)
    expect_equal(await log.ids(clients[0], task_id), [*wanted, "owned"], "the log after a claim")
