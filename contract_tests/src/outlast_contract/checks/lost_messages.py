"""Requests and replies that the network loses, at each exchange of a call (E2, E5, A2, C8)."""

from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Final

import outlast
from outlast.driver import Scope
from outlast.errors import FencedError, OutcomeUnknownError, UnavailableError
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import error_of, expect, expect_equal
from outlast_contract.faults.endings import judge
from outlast_contract.faults.strikes import Strike, breaking, under_faults
from outlast_contract.mutations import (
    KINDS,
    MUTATIONS,
    Image,
    Mutation,
    api_of,
    checkpoint_of,
    claim,
    expect_image,
    fill,
    image,
    state_of,
)

_NEXT: Final = {"task": "append_user_message", "run": "put"}
_MAY_BE: Final = (OutcomeUnknownError, UnavailableError)


@check_each(MUTATIONS, "E2", "A2", "E5", "C8", "F6", tier="faults", needs=["endpoints"])
async def a_broken_connection_costs_an_owner_nothing(context: Context, mutation: Mutation) -> None:
    """Whichever message of a claimed mutation the network loses, the mutation is done for its
    caller, has one effect, and the next one works.
    """
    plain = await context.open()
    follower = MUTATIONS[_NEXT[mutation.kind]]

    async def try_out(shaken: outlast.Backend, strikes: Iterator[Strike]) -> None:
        for strike in strikes:
            scope = mutation.scope(context.new_id(mutation.kind))
            owner = await claim(plain, scope)
            before = await fill(plain, scope, "base", owner)
            what = f"{mutation.name} of an owner, {strike.what}"
            with strike:
                error = await error_of(mutation.apply(shaken, scope.id, "new", owner))
            expect(error is None, f"{what}, raised {error!r}")
            after = mutation.model(before, scope.id, "new")
            await expect_image(plain, scope, after, f"data after {what}", clause="A2")
            error = await error_of(follower.apply(shaken, scope.id, "next", owner))
            expect(error is None, f"the call after {what}, raised {error!r}", clause="C8")
            after = follower.model(after, scope.id, "next")
            await expect_image(
                plain, scope, after, f"data after the call after {what}", clause="F6"
            )

    await under_faults(context, try_out)


@check_each(MUTATIONS, "E2", "E1", "C8", tier="faults", needs=["endpoints"])
async def a_broken_connection_is_told_truly(context: Context, mutation: Mutation) -> None:
    """Whichever message of an unclaimed mutation the network loses, an append is done once; of
    anything else the caller hears whether it was done, was not, or may have been.
    """
    plain = await context.open()
    follower = MUTATIONS[_NEXT[mutation.kind]]

    async def try_out(shaken: outlast.Backend, strikes: Iterator[Strike]) -> None:
        for strike in strikes:
            scope = mutation.scope(context.new_id(mutation.kind))
            before = await fill(plain, scope, "base")
            after = mutation.model(before, scope.id, "new")
            what = f"unclaimed {mutation.name}, {strike.what}"
            with strike:
                error = await error_of(mutation.apply(shaken, scope.id, "new", None))
            if mutation.name.startswith("append"):
                expect(error is None, f"{what}, raised {error!r}")
            expect(error is None or isinstance(error, _MAY_BE), f"{what}, raised {error!r}")
            found = await image(plain, scope)
            judge(what, error, found, before, after)
            error = await error_of(follower.apply(shaken, scope.id, "next", None))
            expect(error is None, f"the call after {what}, raised {error!r}", clause="C8")
            after = follower.model(found, scope.id, "next")
            await expect_image(plain, scope, after, f"data after the call after {what}")

    await under_faults(context, try_out)


@check_each(KINDS, "F1", "E2", "F2", "F5", "C8", tier="faults", needs=["endpoints"])
async def a_broken_connection_takes_one_claim(context: Context, kind: str) -> None:
    """Whichever message of a claim the network loses, the claim is taken, its epoch is new, it
    fences the one before, and what it returns is final.
    """
    plain = await context.open()

    async def try_out(is_new: bool, shaken: outlast.Backend, strikes: Iterator[Strike]) -> None:  # noqa: FBT001
        for strike in strikes:
            scope = Scope("task" if kind == "task" else "run", context.new_id(kind))
            old = None if is_new else await claim(plain, scope)
            before = Image() if old is None else await fill(plain, scope, "base", old)
            what = f"a claim of a {'new' if is_new else 'used'} {kind}, {strike.what}"
            owners: list[outlast.Claim] = []
            with strike:
                error = await error_of(_take(shaken, scope, owners))
            expect(error is None, f"{what}, raised {error!r}", clause="E2")
            await _judge_claim(plain, what, owners[0], old, before)
            written = await fill(shaken, scope, "next", owners[0])
            await expect_image(plain, scope, written, f"written through {what}", clause="C8")
            newer = await claim(plain, scope)
            expect(newer.epoch > owners[0].epoch, f"epoch {newer.epoch} came after {what}")

    await under_faults(context, partial(try_out, True))  # noqa: FBT003
    await under_faults(context, partial(try_out, False))  # noqa: FBT003


async def _take(client: outlast.Backend, scope: Scope, owners: list[outlast.Claim]) -> None:
    owners.append(await claim(client, scope))


async def _judge_claim(
    plain: outlast.Backend,
    what: str,
    owner: outlast.Claim,
    old: outlast.Claim | None,
    before: Image,
) -> None:
    scope = owner.scope
    seen = owner.checkpoint and owner.checkpoint.text
    wanted = before.checkpoint and before.checkpoint.text
    expect_equal(seen, wanted, f"the checkpoint that {what}, returned", clause="F5")
    await expect_image(plain, scope, before, f"data after {what}", clause="F3")
    if old is None:
        return
    expect(owner.epoch > old.epoch, f"{what}, got epoch {owner.epoch} after {old.epoch}")
    name = "put" if scope.kind == "run" else "save_task_state"
    late = await error_of(MUTATIONS[name].apply(plain, scope.id, "late", old))
    text = f"the claim before {what}, could still write: {late!r}"
    expect(isinstance(late, FencedError), text, clause="F2")


@check("E1", "L1", "F4", "C8", tier="faults", needs=["endpoints"])
async def a_broken_connection_cuts_no_answer_short(context: Context) -> None:
    """Whichever message of a read the network loses, the answer is complete and true; nothing is
    reported as missing.
    """
    plain = await context.open()
    scope = Scope("task", context.new_id("task"))
    run = Scope("run", context.new_id("run"))
    wanted = await fill(plain, scope, "base")
    await plain.checkpoints.put(checkpoint_of(run.id, "point", scope.id))
    ids = [scope.id]
    for _ in range(30):
        ids.append(context.new_id("task"))
        await plain.persistence.save_task_state(ids[-1], state_of(ids[-1], "other"))

    async def states(client: outlast.Backend) -> list[str]:
        return sorted([state.id async for state in client.persistence.iter_task_states()])

    async def runs(client: outlast.Backend) -> list[str]:
        found = client.checkpoints.iter_checkpoints(thread_id=scope.id)
        return [point.run_id async for point in found]

    async def newest(client: outlast.Backend) -> list[outlast.UserMessage]:
        return list(await client.persistence.load_user_messages(scope.id, last=1))

    reads: dict[str, tuple[Callable[[outlast.Backend], Awaitable[object]], object]] = {
        "reads of a task": (lambda client: image(client, scope), wanted),
        "get": (
            lambda client: image(client, run),
            Image(checkpoint=checkpoint_of(run.id, "point", scope.id)),
        ),
        "load_user_messages with last=1": (newest, wanted.user[-1:]),
        "iter_task_states": (states, sorted(ids)),
        "iter_checkpoints": (runs, [run.id]),
    }

    async def try_out(name: str, shaken: outlast.Backend, strikes: Iterator[Strike]) -> None:
        read, right = reads[name]
        for strike in strikes:
            answers: list[object] = []
            with strike:
                error = await error_of(_ask(read(shaken), answers))
            expect(error is None, f"{name}, {strike.what}, raised {error!r}", clause="C8")
            expect_equal(answers[0], right, f"the answer of {name}, {strike.what}")

    for name in reads:
        await under_faults(context, partial(try_out, name))


async def _ask(read: Awaitable[object], answers: list[object]) -> None:
    answers.append(await read)


_DELETIONS: Final[dict[str, Callable[[outlast.Backend, str], Awaitable[object]]]] = {
    "delete_task": lambda client, id: client.persistence.delete_task(id),
    "delete_task with force": lambda client, id: client.persistence.delete_task(id, force=True),
    "delete_thread": lambda client, id: client.checkpoints.delete_thread(id),
    "delete_thread with force": lambda client, id: client.checkpoints.delete_thread(id, force=True),
    "sweep": lambda client, id: client.sweep(older_than=timedelta(0)),
}


@check_each(_DELETIONS, "C1", "E2", "C5", tier="faults", needs=["endpoints"])
async def a_broken_deletion_is_finished_by_its_repetition(
    context: Context, call: Callable[[outlast.Backend, str], Awaitable[object]]
) -> None:
    """Whichever message of a deletion or sweep the network loses, doing it again finishes it, and
    nothing else is removed.
    """
    plain = await context.open()
    bystander = Scope("task", context.new_id("bystander"))
    known = await fill(plain, bystander, "base")
    keeps_task = call not in (_DELETIONS["delete_task"], _DELETIONS["delete_task with force"])

    async def try_out(shaken: outlast.Backend, strikes: Iterator[Strike]) -> None:
        for strike in strikes:
            task = Scope("task", context.new_id("task"))
            run = Scope("run", context.new_id("run"))
            before = await fill(plain, task, "base")
            if call is _DELETIONS["sweep"]:
                await plain.persistence.delete_task(task.id)
                before = Image()
            else:
                await plain.checkpoints.put(checkpoint_of(run.id, "point", task.id))
            what = f"{context.check.name}, {strike.what}"
            with strike:
                error = await error_of(call(shaken, task.id))
            expected = error is None or isinstance(error, (*_MAY_BE, FencedError))
            expect(expected, f"{what}, raised {error!r}", clause="E2")
            error = await error_of(call(shaken, task.id))
            expect(error is None, f"{what}, done again, raised {error!r}", clause="C8")
            left = before if keeps_task else Image()
            await expect_image(plain, task, left, f"the task after {what}, and again")
            await expect_image(plain, run, Image(), f"the run after {what}, and again")
            await expect_image(plain, bystander, known, f"another task after {what}, and again")

    faults = breaking(context)
    if not context.settings.thorough:
        chosen = context.rng.choice(list(faults))
        faults = {chosen: faults[chosen]}
    await under_faults(context, try_out, faults)


@check("A2", "A1", "A4", "E5", tier="faults", needs=["endpoints"])
async def a_log_grows_through_lost_messages(context: Context) -> None:
    """A log that is appended to while every third message of the network is lost holds each message
    once, in the order of the calls.
    """
    plain = await context.open()
    network = await context.network()
    shaken = await context.open_through(network)
    task_id = context.new_id("task")
    owner = await claim(plain, Scope("task", task_id))
    messages = [api_of(f"m{number}") for number in range(30)]
    faults = list(breaking(context).values())
    for number, message in enumerate(messages):
        if number % 3 == 2:
            network.script.arm(context.rng.choice(faults), at=context.rng.randint(1, 2))
        error = await error_of(shaken.persistence.append_api_message(task_id, message, claim=owner))
        network.script.disarm()
        expect(error is None, f"append number {number} raised {error!r}", clause="E2")
    wanted = [message.id for message in messages]
    found = [message.id for message in await plain.persistence.load_api_messages(task_id)]
    expect(len(found) == len(set(found)), f"messages are doubled: {found}", clause="A2")
    expect(set(wanted) <= set(found), f"messages are lost: {set(wanted) - set(found)}", clause="A1")
    expect_equal(found, wanted, "the log after appends through lost messages", clause="A4")
