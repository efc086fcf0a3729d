"""Contenders for one scope, each with a client of its own, all at once."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import outlast
from outlast.driver import Scope, ScopeKind
from outlast.errors import ConflictError, FencedError, StaleWriteError
from outlast_contract.checks.logs import BOTH, Log
from outlast_contract.checks.registers import CHANGES
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import error_of, expect, expect_equal
from outlast_contract.history import History
from outlast_contract.mutations import (
    KINDS,
    MUTATIONS,
    Image,
    Mutation,
    bare,
    claim,
    fill,
    image,
)

Clients = Sequence[outlast.Backend]


async def at_once(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """Start all calls at the same time and return what each returned."""
    start = asyncio.Event()

    async def one(call: Callable[[], Awaitable[Any]]) -> Any:
        await start.wait()
        return await call()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(call)) for call in calls]
        await asyncio.sleep(0)
        start.set()
    return [task.result() for task in tasks]


async def beside(
    watch: Callable[[asyncio.Event], Awaitable[None]],
    calls: Sequence[Callable[[], Awaitable[Any]]],
) -> None:
    """Let ``watch`` look on, until the event that it gets is set, while all calls run at once."""
    over = asyncio.Event()

    async def act() -> None:
        try:
            await at_once(calls)
        finally:
            over.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(_watched(watch, over))
        group.create_task(act())


async def _watched(watch: Callable[[asyncio.Event], Awaitable[None]], over: asyncio.Event) -> None:
    await watch(over)


async def _pause(context: Context) -> None:
    for _ in range(context.rng.randrange(4)):
        await asyncio.sleep(0)


@check_each(MUTATIONS, "F2", "F1", "F5", "F11", tier="race")
async def owners_race(context: Context, mutation: Mutation) -> None:
    """Contenders claim and write again and again; what is accepted is in the order of epochs, and
    nothing of an older claim after a newer one was completed.
    """
    clients = await context.open_many(context.settings.contenders)

    async def contend(history: History, client: outlast.Backend) -> None:
        await _pause(context)
        owner = await history.claim(client)
        for number in range(2):
            await _pause(context)
            if await history.write(client, owner, mutation, number) is not None:
                break

    for _ in range(context.settings.rounds):
        scope = mutation.scope(context.new_id(mutation.kind))
        first = await claim(clients[0], scope)
        history = History(scope, await fill(clients[0], scope, "base", first), first.epoch)
        await at_once([partial(contend, history, client) for client in clients])
        history.check(await image(clients[-1], scope))


@check_each(KINDS, "F1", "F10", tier="race")
async def claims_race(context: Context, kind: ScopeKind) -> None:
    """Contenders for a new scope get an epoch each, all different, also beside deletion and
    sweeps.
    """
    clients = await context.open_many(context.settings.contenders)
    remove = MUTATIONS["delete_task" if kind == "task" else "delete"]

    async def churn(history: History, client: outlast.Backend) -> None:
        for _ in range(2):
            owner = await history.claim(client)
            error = await error_of(remove.apply(client, history.scope.id, "", owner))
            expect(
                error is None or isinstance(error, FencedError),
                f"a deletion in a race got {error!r}",
                clause="F2",
            )

    async def sweep() -> None:
        for _ in range(4):
            await clients[0].sweep(older_than=timedelta(0))
            await asyncio.sleep(0)

    for _ in range(context.settings.rounds):
        scope = Scope(kind, context.new_id(kind))
        history = History(scope, Image())
        await at_once([partial(history.claim, client) for client in clients])
        history.check(await image(clients[0], scope))
        newest = max(claimed.epoch for claimed in history.claims)
        later = History(scope, Image(), newest)
        await at_once([*(partial(churn, later, client) for client in clients[1:]), sweep])
        later.check(Image())


@check_each(KINDS, "F9", "F1", tier="race")
async def one_contender_gets_an_outside_epoch(context: Context, kind: ScopeKind) -> None:
    """Of contenders that ask for the same epoch, exactly one gets it; the others change nothing."""
    clients = await context.open_many(context.settings.contenders)
    scope = Scope(kind, context.new_id(kind))
    for turn in range(context.settings.rounds):
        wanted = 10 * (turn + 1)
        answers = await at_once([partial(_claim_at, client, scope, wanted) for client in clients])
        owners = [one for one in answers if one is not None]
        expect_equal(
            [owner.epoch for owner in owners], [wanted], f"contenders that got epoch {wanted}"
        )
        await fill(clients[0], scope, f"turn {turn}", owners[0])
        steps = [wanted + 1 + place % 3 for place in range(len(clients))]
        answers = await at_once(
            [
                partial(_claim_at, client, scope, step)
                for client, step in zip(clients, steps, strict=True)
            ]
        )
        epochs = sorted(one.epoch for one in answers if one is not None)
        expect(
            epochs and len(set(epochs)) == len(epochs) and max(epochs) == max(steps),
            f"contenders that asked for {steps} got {epochs}",
        )


async def _claim_at(client: outlast.Backend, scope: Scope, epoch: int) -> outlast.Claim | None:
    try:
        return await claim(client, scope, at_least=epoch)
    except FencedError:
        return None


@check_each(KINDS, "F10", "F6", tier="race")
async def holders_of_one_claim_id_race(context: Context, kind: ScopeKind) -> None:
    """Contenders that share one claim_id get one epoch; no accepted write of any of them is
    lost.
    """
    clients = await context.open_many(context.settings.contenders)
    mutation = MUTATIONS["put" if kind == "run" else "append_api_message"]

    async def write(place: int, holder: outlast.Claim) -> list[str]:
        done: list[str] = []
        for number in range(3):
            mark = f"{place}.{number}"
            call = mutation.apply(clients[place], holder.scope.id, mark, holder)
            error = await error_of(call)
            expect(
                error is None or isinstance(error, StaleWriteError),
                f"a holder of a shared claim_id got {error!r}",
            )
            if error is None:
                done.append(mark)
        return done

    for _ in range(context.settings.rounds):
        scope = Scope(kind, context.new_id(kind))
        claim_id = f"{context.rng.getrandbits(128):032x}"
        holders: list[outlast.Claim] = await at_once(
            [partial(claim, client, scope, claim_id=claim_id) for client in clients]
        )
        epochs = {holder.epoch for holder in holders}
        expect(len(epochs) == 1, f"one claim_id, claimed at once, got the epochs {epochs}")
        marks = await at_once(
            [partial(write, place, holder) for place, holder in enumerate(holders)]
        )
        accepted = sorted(mark for part in marks for mark in part)
        expect(accepted, "no holder of a shared claim_id could write")
        final = await image(clients[0], scope)
        if final.checkpoint is not None:
            text = final.checkpoint.text
            expect(text in accepted, f"the checkpoint is {text}, accepted were {accepted}")
        else:
            stored = sorted(str(message.content) for message in final.api)
            expect_equal(stored, accepted, "messages in the log, and accepted appends")


@check_each(BOTH, "A1", "A2", "A3", "A4", "A5", "A6", tier="race")
async def appenders_race(context: Context, log: Log) -> None:
    """Of single messages and batches appended by all at once none is lost, doubled or torn; each
    contender's are in its order, and readers see prefixes.
    """
    clients = await context.open_many(context.settings.contenders)

    async def append(task_id: str, place: int) -> None:
        for number in range(3):
            await _pause(context)
            batch = [log.make(f"{place}.{number}.{part}") for part in range(1 + number % 3)]
            await log.append(clients[place])(task_id, batch)

    async def read(task_id: str, over: asyncio.Event) -> None:
        seen: list[str] = []
        while not over.is_set():
            now = await log.ids(clients[0], task_id)
            expect_equal(now[: len(seen)], seen, "a later load beside appends", clause="A5")
            _check_batches(now)
            seen = now
            await asyncio.sleep(0)

    wanted = [
        f"{place}.{number}.{part}"
        for place in range(len(clients))
        for number in range(3)
        for part in range(1 + number % 3)
    ]
    for _ in range(context.settings.rounds):
        task_id = context.new_id("task")
        calls = [partial(append, task_id, place) for place in range(len(clients))]
        await beside(partial(read, task_id), calls)
        final = await log.ids(clients[-1], task_id)
        missing = sorted(set(wanted) - set(final))
        expect(not missing, f"{len(missing)} done appends are lost, such as {missing[:3]}")
        expect(len(final) == len(set(final)), f"messages are doubled: {final}", clause="A2")
        expect_equal(sorted(final), sorted(wanted), "the log after a race", clause="A3")
        _check_batches(final)
        for place in range(len(clients)):
            own = [name for name in final if name.startswith(f"{place}.")]
            mine = [name for name in wanted if name.startswith(f"{place}.")]
            expect_equal(own, mine, f"the order of contender {place}", clause="A4")


def _check_batches(ids: list[str]) -> None:
    """Each batch is there as a whole and stays together."""
    for place, name in enumerate(ids):
        contender, number, part = (int(piece) for piece in name.split("."))
        size = 1 + number % 3
        start = max(place - part, 0)
        wanted = [f"{contender}.{number}.{index}" for index in range(size)]
        what = f"batch {contender}.{number}"
        expect_equal(ids[start : start + size], wanted, what, clause="A4")


@check_each(BOTH, "A8", "A2", tier="race")
async def appenders_of_one_id_race(context: Context, log: Log) -> None:
    """The same message appended by all at once is stored once and done for all; of different ones
    of one id exactly one is stored, the others conflict.
    """
    clients = await context.open_many(context.settings.contenders)

    async def contest(task_id: str, place: int) -> Any:
        message = log.make("id", f"of {place}")
        batch = [log.make(f"with {place}"), message]
        error = await error_of(log.append(clients[place])(task_id, batch))
        expect(
            error is None or isinstance(error, ConflictError),
            f"an append of a contested id got {error!r}",
        )
        return batch if error is None else None

    for _ in range(context.settings.rounds):
        task_id = context.new_id("task")
        same = log.make("same", {"n": 1})
        await at_once([partial(log.append_one(client), task_id, same) for client in clients])
        found = list(await log.load(clients[0])(task_id))
        expect_equal(found, [same], "one message, appended by all", clause="A2")
        calls = [partial(contest, task_id, place) for place in range(len(clients))]
        winners = [batch for batch in await at_once(calls) if batch is not None]
        expect_equal(len(winners), 1, "appends of one id with different contents that were done")
        found = list(await log.load(clients[0])(task_id))
        expect_equal(found, [same, *winners[0]], "the log after a contest")


@check_each(BOTH, "A7", "A1", tier="race")
async def savers_and_appenders_race(context: Context, log: Log) -> None:
    """While whole lists are saved and messages appended, every load is one whole list with appends
    behind it.
    """
    clients = await context.open_many(context.settings.contenders)
    half = len(clients) // 2

    async def save(task_id: str, place: int) -> None:
        for number in range(3):
            size = context.rng.choice((1, 5, 40))
            batch = [log.make(f"{place}-{number}/{part}/{size}") for part in range(size)]
            await log.save(clients[place])(task_id, batch)

    async def append(task_id: str, place: int) -> None:
        for number in range(4):
            await log.append_one(clients[place])(task_id, log.make(f"+{place}.{number}"))

    async def read(task_id: str, over: asyncio.Event) -> None:
        while not over.is_set():
            _check_list(await log.ids(clients[0], task_id))
            await asyncio.sleep(0)

    for _ in range(context.settings.rounds):
        task_id = context.new_id("task")
        await log.save(clients[0])(task_id, [log.make(f"0/{part}/5") for part in range(5)])
        calls = [partial(save, task_id, place) for place in range(half)]
        calls += [partial(append, task_id, place) for place in range(half, len(clients))]
        await beside(partial(read, task_id), calls)
        _check_list(await log.ids(clients[-1], task_id))
        owner = await clients[0].persistence.claim_task(task_id)
        before = await log.ids(clients[0], task_id)
        await log.append_one(clients[1])(task_id, log.make("+last"), claim=owner)
        found = await log.ids(clients[0], task_id)
        expect_equal(found, [*before, "+last"], "an append after the race", clause="A1")


def _check_list(ids: list[str]) -> None:
    saved = [name for name in ids if not name.startswith("+")]
    expect(saved, f"a load beside saves shows no saved list: {ids[:5]}")
    head, _, size = saved[0].split("/")
    wanted = [f"{head}/{part}/{size}" for part in range(int(size))]
    expect_equal(ids[: len(wanted)], wanted, "a load beside saves, its saved part")
    rest = ids[len(wanted) :]
    expect(
        all(name.startswith("+") for name in rest) and len(set(rest)) == len(rest),
        f"behind a saved list of {len(wanted)}: {rest[:5]}",
    )


@check("S1", tier="race")
async def updaters_race(context: Context) -> None:
    """Different fields updated by all at once are all there; of one field, one whole value is."""
    clients = await context.open_many(context.settings.contenders)
    values = [{"from": place, "all": list(range(place))} for place in range(len(clients))]

    async def update(task_id: str, place: int, changes: dict[str, Any]) -> None:
        client = clients[place % len(clients)]
        await client.persistence.update_task_state(task_id, changes)

    for _ in range(context.settings.rounds):
        task_id = context.new_id("task")
        await clients[0].persistence.save_task_state(task_id, outlast.TaskState(id=task_id))
        await at_once(
            [
                partial(update, task_id, place, {name: value})
                for place, (name, value) in enumerate(CHANGES.items())
            ]
        )
        found = await clients[-1].persistence.load_task_state(task_id)
        wanted = outlast.TaskState(id=task_id, **CHANGES)
        expect_equal(bare(found), wanted, "nine updates of nine fields at once")
        await at_once(
            [
                partial(update, task_id, place, {"context": value, "config": value})
                for place, value in enumerate(values)
            ]
        )
        found = await clients[0].persistence.load_task_state(task_id)
        assert found is not None
        expect(
            found.context == found.config and found.context in values,
            f"updates of two fields mixed: {found.context} and {found.config}",
        )
        expect_equal(found.retry_count, CHANGES["retry_count"], "a field that nobody touched")


class _Counter:
    """One owner that counts up in a scope, and what readers may see meanwhile."""

    def __init__(self, mutation: Mutation, scope: Scope, last: int) -> None:
        self.mutation = mutation
        self.scope = scope
        self.last = last
        self.done = -1

    async def write(self, clients: Clients, owner: outlast.Claim) -> None:
        for number in range(self.last + 1):
            client = clients[number % len(clients)]
            await self.mutation.apply(client, self.scope.id, str(number), owner)
            self.done = number

    async def read(self, client: outlast.Backend) -> None:
        newest = -1
        while newest < self.last:
            least = max(newest, self.done)
            found = await image(client, self.scope)
            mark = _mark(found)
            newest = -1 if mark is None else int(mark)
            expect(newest >= least, f"a read shows {newest} after {least} was done or read")
            if mark is not None:
                wanted = self.mutation.model(Image(), self.scope.id, mark)
                expect_equal(found, wanted, "a value that was read beside writes", clause="S3")
            await asyncio.sleep(0)


@check_each(KINDS, "F4", "S3", tier="race")
async def reads_never_go_back(context: Context, kind: ScopeKind) -> None:
    """While one owner counts up, readers see whole values that never go back and are never behind
    what was done before they looked.
    """
    clients = await context.open_many(4)
    mutation = MUTATIONS["put" if kind == "run" else "save_task_state"]
    for _ in range(max(1, context.settings.rounds // 3)):
        counter = _Counter(mutation, Scope(kind, context.new_id(kind)), 30)
        owner = await claim(clients[0], counter.scope)
        readers = [partial(counter.read, client) for client in clients[2:]]
        await at_once([partial(counter.write, clients[:2], owner), *readers])


def _mark(found: Image) -> str | None:
    if found.checkpoint is not None:
        return found.checkpoint.text
    return None if found.state is None else str(found.state.context["mark"])


@check("F8", "F11", "A1", tier="race")
async def an_unclaimed_user_races_with_an_owner(context: Context) -> None:
    """Unclaimed appends that were done before a claim stay; those after it are refused and leave
    nothing.
    """
    clients = await context.open_many(context.settings.contenders)
    claimed: set[str] = set()

    async def append(task_id: str, place: int) -> list[str]:
        done: list[str] = []
        for number in range(6):
            was_claimed = task_id in claimed
            message = outlast.ApiMessage(id=f"{place}.{number}", role="u", content="")
            call = clients[place].persistence.append_api_message(task_id, message)
            error = await error_of(call)
            if error is None:
                expect(not was_claimed, "an unclaimed append was done after a claim")
                done.append(message.id)
            else:
                is_claimed = isinstance(error, FencedError) and error.reason == "claimed"
                expect(is_claimed, f"an unclaimed append beside a claim got {error!r}")
            await _pause(context)
        return done

    async def own(task_id: str) -> list[str]:
        for _ in range(context.rng.randrange(60)):
            await asyncio.sleep(0)
        await clients[0].persistence.claim_task(task_id)
        claimed.add(task_id)
        found = await clients[0].persistence.load_api_messages(task_id)
        return [message.id for message in found]

    for _ in range(context.settings.rounds):
        task_id = context.new_id("task")
        appenders = [partial(append, task_id, place) for place in range(1, len(clients))]
        at_claim, *parts = await at_once([partial(own, task_id), *appenders])
        final = [message.id for message in await clients[1].persistence.load_api_messages(task_id)]
        expect_equal(final, at_claim, "the log when it was claimed, and later", clause="F11")
        accepted = sorted(name for part in parts for name in part)
        expect_equal(sorted(final), accepted, "the log, and appends that were done", clause="A1")
