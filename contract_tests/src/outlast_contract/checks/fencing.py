"""Ownership: who may write, and what everybody else is told (F1 to F5, F8, F9, F11 to F13)."""

import asyncio
import logging
from datetime import timedelta

import outlast
from outlast.driver import MAX_EPOCH, Scope, ScopeKind
from outlast.errors import FencedError, InvalidDataError, InvalidIdError
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import (
    LogLines,
    Violation,
    error_of,
    expect,
    expect_equal,
    fenced,
    refused,
)
from outlast_contract.mutations import (
    KINDS,
    MUTATIONS,
    Image,
    Mutation,
    claim,
    expect_image,
    fill,
    image,
)


@check_each(MUTATIONS, "F2", "F11", "F13", "E1", "E2")
async def a_superseded_claim_cannot_write(context: Context, mutation: Mutation) -> None:
    """A claim that was superseded, by one epoch or by several, writes nothing and is told so."""
    owner, successor = await context.open_many(2)
    scope = mutation.scope(context.new_id(mutation.kind))
    claims = [await claim(owner, scope)]
    await fill(owner, scope, "before", claims[0])
    claims += [await claim(owner, scope) for _ in range(3)]
    newest = await claim(successor, scope)
    before = await image(successor, scope)
    for old in reversed(claims):
        error = await error_of(mutation.apply(owner, scope.id, f"late {old.epoch}", old))
        behind = f"{mutation.name} through epoch {old.epoch} after epoch {newest.epoch} was claimed"
        clause = "F2" if mutation.kind == "run" else None
        await expect_image(successor, scope, before, f"{behind} changed data", clause=clause)
        if error is None:
            raise Violation(f"{behind} returned normally; it must raise FencedError", "E1")
        expect(
            isinstance(error, FencedError),
            f"{behind} raised {type(error).__name__} ({error}); it must raise FencedError",
        )
        assert isinstance(error, FencedError)
        expect_equal(error.reason, "superseded", f"reason of: {behind}", clause="F13")
        expect_equal(error.stored_epoch, newest.epoch, f"stored_epoch of: {behind}", clause="F13")
        expect(error.applied is False, f"{behind}: applied is {error.applied}", clause="E2")
    await mutation.apply(successor, scope.id, "new", newest)
    wanted = mutation.model(before, scope.id, "new")
    await expect_image(owner, scope, wanted, f"{mutation.name} through the newest claim")


@check_each(KINDS, "F1", "F7")
async def epochs_are_never_repeated(context: Context, kind: ScopeKind) -> None:
    """Epochs grow from claim to claim, across clients, deletion, and sweeping."""
    first, second = await context.open_many(2)
    scope = Scope(kind, context.new_id(kind))
    other = Scope(kind, context.new_id(kind))
    newest = 0

    async def claim_again(client: outlast.Backend, after: str) -> outlast.Claim:
        nonlocal newest
        taken = await claim(client, scope)
        expect(
            taken.epoch > newest,
            f"after {after}: epoch {taken.epoch}, though {newest} was handed out before",
        )
        newest = taken.epoch
        return taken

    await claim_again(first, "nothing")
    await claim_again(second, "a claim of another client")
    for number in range(3):
        taken = await claim_again(first, "a claim")
        await fill(first, scope, f"m{number}", taken)
        await _delete(first, scope, taken)
        taken = await claim_again(second, "deletion")
        await _delete(second, scope, taken)
        taken = await claim_again(second, "deletion of what was deleted")
        report = await first.sweep(older_than=timedelta(0))
        expect(report.tombstones >= 1, "a sweep left an empty claimed record", clause="C5")
        await claim_again(second, "a sweep of the deleted scope")
        await claim(first, other)
    third = await context.open()
    await claim_again(third, "opening another client")


async def _delete(client: outlast.Backend, scope: Scope, owner: outlast.Claim | None) -> None:
    if scope.kind == "task":
        await client.persistence.delete_task(scope.id, claim=owner)
    else:
        await client.checkpoints.delete(scope.id, claim=owner)


@check("F1", "I1")
async def tasks_and_runs_of_one_id_are_claimed_apart(context: Context) -> None:
    """A task and a run of the same id are two scopes, each with epochs of its own."""
    client = await context.open()
    name = context.new_id("same")
    task, run = Scope("task", name), Scope("run", name)
    task_claim = await claim(client, task)
    run_claim = await claim(client, run)
    await claim(client, run)
    await fill(client, task, "kept", task_claim)
    await fenced(
        client.checkpoints.put(_checkpoint(name), claim=run_claim),
        "superseded",
        "put of a stale run",
    )
    await refused(
        client.checkpoints.put(_checkpoint(name), claim=task_claim),
        InvalidDataError,
        "put with the claim of a task of the same id",
    )


def _checkpoint(run_id: str) -> outlast.StreamCheckpoint:
    return outlast.StreamCheckpoint(run_id=run_id, thread_id="t", message_id="m", model="m")


@check_each(KINDS, "F3", "F5")
async def a_claim_changes_no_data(context: Context, kind: ScopeKind) -> None:
    """Claiming leaves every part of the scope as it was, and creates nothing that can be read."""
    first, second = await context.open_many(2)
    scope = Scope(kind, context.new_id(kind))
    written = await fill(first, scope, "unclaimed")
    stamp = await _stamp(first, scope)
    for number in range(3):
        taken = await claim(second, scope)
        await expect_image(first, scope, written, f"data after claim {number + 1}")
        expect_equal(await _stamp(first, scope), stamp, "updated_at after a claim")
        if kind == "run":
            point = taken.checkpoint
            expect(point is not None, "the claim returned no checkpoint to resume from")
            expect_equal(
                point and point.text, "unclaimed", "the checkpoint that the claim returned"
            )
    empty = Scope(kind, context.new_id(kind))
    taken = await claim(first, empty)
    await expect_image(second, empty, Image(), "a scope that was only claimed")
    expect(taken.checkpoint is None, f"a claim of nothing returned {taken.checkpoint!r}")
    listed = [state.id for state in await second.persistence.list_task_states()]
    expect(empty.id not in listed, "a task that was only claimed is listed")
    runs = [point.run_id async for point in second.checkpoints.iter_checkpoints()]
    expect(kind == "task" or empty.id not in runs, "a run that was only claimed is listed")


async def _stamp(client: outlast.Backend, scope: Scope) -> object:
    if scope.kind == "run":
        point = await client.checkpoints.get(scope.id)
        return point and point.updated_at
    state = await client.persistence.load_task_state(scope.id)
    return state and state.updated_at


@check("F5", "F3")
async def the_claim_of_a_run_returns_its_newest_checkpoint(context: Context) -> None:
    """Each claim returns what was put last, with its own epoch, and older owners cannot change
    it any more.
    """
    clients = await context.open_many(3)
    run_id = context.new_id("run")
    scope = Scope("run", run_id)
    owners: list[outlast.Claim] = []
    for number in range(6):
        client = clients[number % 3]
        owner = await claim(client, scope)
        if number:
            expect(
                owner.checkpoint is not None and owner.checkpoint.text == f"turn {number - 1}",
                f"claim {number} returned {owner.checkpoint!r}, not what was put last",
            )
            assert owner.checkpoint is not None
            expect_equal(owner.checkpoint.epoch, owner.epoch, "epoch of the claim's checkpoint")
        for old in owners:
            await fenced(
                client.checkpoints.put(_checkpoint(run_id), claim=old), "superseded", "a late put"
            )
        await fill(client, scope, f"turn {number}", owner)
        read = await clients[(number + 1) % 3].checkpoints.get(run_id)
        expect_equal(read and read.text, f"turn {number}", "the checkpoint just put")
        expect_equal(read and read.epoch, owner.epoch, "epoch that a read fills in")
        owners.append(owner)


@check_each(MUTATIONS, "F4", "F2")
async def a_done_write_is_visible_at_once_everywhere(context: Context, mutation: Mutation) -> None:
    """What a done write stored is what every client reads from then on, also through a claim."""
    clients = await context.open_many(3)
    scope = mutation.scope(context.new_id(mutation.kind))
    owner = await claim(clients[0], scope)
    current = await fill(clients[0], scope, "base", owner)
    for number in range(4):
        writer = clients[number % 3]
        await mutation.apply(writer, scope.id, f"w{number}", owner)
        current = mutation.model(current, scope.id, f"w{number}")
        for reader in clients:
            await expect_image(reader, scope, current, f"read after {mutation.name} {number}")
        if mutation.needs_state or mutation.removes:
            current = await fill(writer, scope, f"again{number}", owner)


@check_each(MUTATIONS, "F8", "F13")
async def an_unclaimed_mutation_yields_to_claims(context: Context, mutation: Mutation) -> None:
    """Without a claim one may write until somebody claims; afterwards not, not even after
    deletion.
    """
    first, second = await context.open_many(2)
    scope = mutation.scope(context.new_id(mutation.kind))
    current = await fill(first, scope, "start")
    await mutation.apply(second, scope.id, "free", None)
    current = mutation.model(current, scope.id, "free")
    await expect_image(first, scope, current, f"unclaimed {mutation.name}")
    owner = await claim(first, scope)
    await expect_image(second, scope, current, "unclaimed data after a claim")
    current = await fill(first, scope, "owned", owner)
    what = f"unclaimed {mutation.name} of a claimed scope"
    error = await fenced(mutation.apply(second, scope.id, "late", None), "claimed", what)
    expect("claim=" in str(error), f"the message does not say to pass claim=: {error}")
    await expect_image(first, scope, current, f"data after a refused {what}")
    await _delete(first, scope, owner)
    await fenced(mutation.apply(second, scope.id, "late", None), "claimed", f"{what}, now deleted")
    await expect_image(first, scope, Image(), f"data after a refused {what}, now deleted")


@check_each(KINDS, "F8", "C5")
async def unclaimed_use_comes_back_after_a_sweep(context: Context, kind: ScopeKind) -> None:
    """Deleted and swept, a scope may be written without a claim again, and its old owner may
    not.
    """
    client = await context.open()
    scope = Scope(kind, context.new_id(kind))
    owner = await claim(client, scope)
    await fill(client, scope, "owned", owner)
    await _delete(client, scope, owner)
    await client.sweep(older_than=timedelta(0))
    written = await fill(client, scope, "free again")
    await expect_image(client, scope, written, "unclaimed writes after a sweep")
    stale = await error_of(_write(client, scope, owner))
    expect(isinstance(stale, FencedError), f"the claim from before the sweep got {stale!r}")
    await expect_image(client, scope, written, "data after a write of the swept claim")
    newer = await claim(client, scope)
    expect(newer.epoch > owner.epoch, f"epoch {newer.epoch} after {owner.epoch}", clause="F1")


async def _write(client: outlast.Backend, scope: Scope, owner: outlast.Claim) -> None:
    name = "put" if scope.kind == "run" else "save_task_state"
    await MUTATIONS[name].apply(client, scope.id, "late", owner)


@check_each(KINDS, "F9", "F1")
async def an_outside_epoch_is_taken_as_it_is(context: Context, kind: ScopeKind) -> None:
    """at_least becomes the epoch if it is above the stored one; otherwise nothing happens."""
    client = await context.open()
    scope = Scope(kind, context.new_id(kind))
    seventh = await claim(client, scope, at_least=7)
    expect_equal(seventh.epoch, 7, "the first claim, with at_least=7")
    written = await fill(client, scope, "seven", seventh)
    for low in (1, 6, 7):
        await refused(
            claim(client, scope, at_least=low),
            FencedError,
            f"a claim with at_least={low} at epoch 7",
        )
        await expect_image(client, scope, written, "data after a refused claim")
    written = await fill(client, scope, "still", seventh)
    eighth = await claim(client, scope, at_least=8)
    expect_equal(eighth.epoch, 8, "a claim with at_least=8")
    await fenced(
        _write(client, scope, seventh), "superseded", "a write of epoch 7 after 8", clause="F2"
    )
    ninth = await claim(client, scope)
    expect(ninth.epoch > 8, f"a claim after epoch 8 got {ninth.epoch}", clause="F1")
    highest = await claim(client, scope, at_least=MAX_EPOCH)
    expect_equal(highest.epoch, MAX_EPOCH, "a claim with at_least=2**52")
    await fenced(
        _write(client, scope, ninth), "superseded", "a write below epoch 2**52", clause="F2"
    )
    await _write(client, scope, highest)
    for bad in (0, -1, MAX_EPOCH + 1, True, 1.5, "9"):
        await refused(
            claim(client, scope, at_least=bad), InvalidDataError, f"a claim with at_least={bad!r}"
        )


@check("F9", "C5")
async def an_outside_epoch_is_not_compared_with_the_floor(context: Context) -> None:
    """After a sweep a small at_least is still accepted for a scope that the store does not know."""
    client = await context.open()
    swept = Scope("task", context.new_id("task"))
    await claim(client, swept, at_least=1000)
    await client.sweep(older_than=timedelta(0))
    taken = await claim(client, Scope("task", context.new_id("task")), at_least=3)
    expect_equal(
        taken.epoch, 3, "a claim with at_least=3 of a new task after a sweep at epoch 1000"
    )
    again = await claim(client, swept)
    expect(again.epoch > 1000, f"epoch {again.epoch} after 1000 was swept", clause="F1")


@check_each(MUTATIONS, "F12", "F13", "C5")
async def a_claimed_write_never_creates(context: Context, mutation: Mutation) -> None:
    """A claim whose scope is gone writes nothing and is told that there is no record."""
    client, other = await context.open_many(2)
    scope = mutation.scope(context.new_id(mutation.kind))
    owner = await claim(client, scope)
    await client.sweep(older_than=timedelta(0))
    what = f"{mutation.name} through a claim that was swept"
    await fenced(mutation.apply(client, scope.id, "late", owner), "no_record", what)
    await expect_image(other, scope, Image(), f"{what} left data")
    expect_equal(await other.persistence.list_task_states(), [], f"tasks listed after {what}")
    newer = await claim(other, scope)
    expect(newer.epoch > owner.epoch, f"epoch {newer.epoch} after {owner.epoch}", clause="F1")


@check_each(MUTATIONS, "F13", "F2")
async def a_lost_fence_is_told_and_logged(context: Context, mutation: Mutation) -> None:
    """A claim that the store should know better than it does is refused as lost, at error level."""
    client = await context.open()
    scope = mutation.scope(context.new_id(mutation.kind))
    owner = await claim(client, scope)
    written = await fill(client, scope, "kept", owner)
    with LogLines("outlast", logging.ERROR) as log:
        for epoch, label in ((owner.epoch + 5, "a higher epoch"), (owner.epoch, "the same epoch")):
            impostor = outlast.Claim(scope, epoch, "ab" * 16, seq=owner_seq(owner) + 100)
            what = f"{mutation.name} of another claim_id with {label}"
            call = mutation.apply(client, scope.id, "bad", impostor)
            await fenced(call, "lost", what, clause="F2")
            await expect_image(client, scope, written, f"data after {what}", clause="F2")
    expect(len(log.lines) >= 2, f"{len(log.lines)} of 2 lost fences were logged at error level")


def owner_seq(owner: outlast.Claim) -> int:
    """The seq that a claim gives out next; drawing it leaves a gap, which is fine (F6)."""
    return owner.next_fence().seq


@check_each(KINDS, "F13", "F2")
async def a_claim_can_be_checked(context: Context, kind: ScopeKind) -> None:
    """check_claim passes for the newest claim and says why it fails for any other."""
    client, other = await context.open_many(2)
    scope = Scope(kind, context.new_id(kind))
    owner = await claim(client, scope)
    tasks = other.persistence
    await tasks.check_claim(owner)
    await fill(client, scope, "m", owner)
    await tasks.check_claim(owner)
    await fill(client, scope, "n", owner)
    newer = await claim(client, scope)
    await fenced(tasks.check_claim(owner), "superseded", "check_claim of a superseded claim")
    await tasks.check_claim(newer)
    impostor = outlast.Claim(scope, newer.epoch + 1, newer.claim_id)
    await fenced(tasks.check_claim(impostor), "lost", "check_claim of an epoch that was lost")
    await _delete(client, scope, newer)
    await client.sweep(older_than=timedelta(0))
    await fenced(tasks.check_claim(newer), "no_record", "check_claim of a swept claim")


@check("F10", "F2")
async def a_claim_is_a_handle_and_not_a_value(context: Context) -> None:
    """A claim works through any client, fits its own scope only, and cannot be copied."""
    import copy
    import operator

    first, second = await context.open_many(2)
    scope = Scope("task", context.new_id("task"))
    owner = await claim(first, scope)
    await fill(first, scope, "first", owner)
    written = await fill(second, scope, "second", owner)
    await expect_image(first, scope, written, "written through another client with the same claim")
    for what, attempt in (
        ("copy.copy", copy.copy),
        ("copy.deepcopy", copy.deepcopy),
        ("pickling", operator.methodcaller("__reduce_ex__", 2)),
    ):
        try:
            attempt(owner)
        except TypeError:
            continue
        raise Violation(f"{what} of a Claim succeeded; two copies would count the same writes")
    again = await claim(second, scope, claim_id=owner.claim_id)
    expect(again == owner and hash(again) == hash(owner), "claims of one identity are not equal")
    newer = await claim(second, scope)
    expect(newer != owner, "claims of two epochs are equal")
    other = context.new_id("task")
    await refused(
        first.persistence.save_task_input(other, outlast.TaskInput(message="m"), claim=newer),
        InvalidDataError,
        "a write with the claim of another task",
    )
    for bad in ("x", "AB" * 16, "ab" * 15, 7):
        await refused(
            first.persistence.claim_task(other, claim_id=bad),  # type: ignore[arg-type]
            InvalidIdError,
            f"a claim with claim_id={bad!r}",
        )


@check("A4", "F6")
async def mutations_happen_in_the_order_called(context: Context) -> None:
    """Mutations called at once through one claim, or through one client, are sent in the order
    called.
    """
    client, other = await context.open_many(2)
    for owned in (True, False):
        task_id = context.new_id("task")
        owner = await client.persistence.claim_task(task_id) if owned else None
        numbers = range(40)
        through = [client, other] if owned else [client]
        await asyncio.gather(
            *(
                through[number % len(through)].persistence.append_api_message(
                    task_id,
                    outlast.ApiMessage(id=str(number), role="user", content=""),
                    claim=owner,
                )
                for number in numbers
            )
        )
        log = [message.id for message in await client.persistence.load_api_messages(task_id)]
        who = "one claim through two clients" if owned else "one client"
        expect_equal(log, [str(n) for n in numbers], f"order of 40 appends called at once by {who}")
