"""Deleting, sweeping and expiry (C1 to C6)."""

import asyncio
import base64
import hashlib
import secrets
import urllib.parse
from collections.abc import Iterable
from datetime import timedelta

import msgspec

import outlast
from outlast.driver import Scope, ScopeKind
from outlast.errors import ConfigurationError, FencedError, InvalidDataError
from outlast_contract.engine import Context, check, check_each
from outlast_contract.expect import (
    NotRun,
    error_of,
    eventually,
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
    bare,
    checkpoint_of,
    claim,
    expect_image,
    fill,
    state_of,
)

_NOW = timedelta(0)
_LONG = timedelta(hours=1)


@check("C1", "S4")
async def delete_task_removes_all_of_a_task_and_of_no_other(context: Context) -> None:
    """State, input, both logs and the checkpoints of its runs go; tasks and runs of like names
    stay.
    """
    client, other = await context.open_many(2)
    names = ["t1", "t10", "t", "t1/", "T1"]
    for how in ("claimed", "unclaimed", "forced"):
        images: dict[Scope, Image] = {}
        for name in names:
            images[Scope("task", name)] = await fill(client, Scope("task", name), f"{how} {name}")
            for part in ("a", "b"):
                run = Scope("run", f"{name} run {part}")
                await client.checkpoints.put(checkpoint_of(run.id, "m", name))
                images[run] = Image(checkpoint=checkpoint_of(run.id, "m", name))
        stranger = Scope("run", "t1")
        await client.checkpoints.put(checkpoint_of("t1", "m", "t10"))
        images[stranger] = Image(checkpoint=checkpoint_of("t1", "m", "t10"))
        owner = await client.persistence.claim_task("t1") if how != "unclaimed" else None
        if how == "forced":
            await other.persistence.delete_task("t1", force=True)
        else:
            await other.persistence.delete_task("t1", claim=owner)
        for scope in (Scope("task", "t1"), Scope("run", "t1 run a"), Scope("run", "t1 run b")):
            images[scope] = Image()
        for scope, wanted in images.items():
            await expect_image(
                client, scope, wanted, f"{scope.kind} {scope.id!r}, t1 deleted {how}"
            )
        left = [point.run_id async for point in client.checkpoints.iter_checkpoints(thread_id="t1")]
        expect_equal(left, [], "checkpoints listed for the deleted task")
        listed = [state.id for state in await client.persistence.list_task_states()]
        expect_equal(sorted(listed), sorted(set(names) - {"t1"}), "tasks listed after deletion")
        if owner is not None and how == "forced":
            await fenced(
                client.persistence.save_task_state("t1", state_of("t1", "x"), claim=owner),
                "superseded",
                "a write of the owner whose task was deleted by force",
                clause="F2",
            )
        for name in names:
            await client.persistence.delete_task(name, force=True)
        await client.checkpoints.delete_thread("t10", force=True)
        await client.sweep(older_than=_NOW)


_PARTS = ("save_task_state", "save_task_input", "save_api_messages", "append_user_message", "put")


@check("C1", "C2")
async def delete_task_removes_a_task_of_one_part(context: Context) -> None:
    """A task may consist of one part, or of the checkpoint of a run alone: that goes, too."""
    client, other = await context.open_many(2)
    for is_claimed in (True, False):
        for part in _PARTS:
            task = Scope("task", context.new_id("task"))
            run_id = context.new_id("run")
            owner = await claim(client, task) if is_claimed else None
            if part == "put":
                await client.checkpoints.put(checkpoint_of(run_id, "m", task.id))
            else:
                await MUTATIONS[part].apply(client, task.id, "m", owner)
            await client.persistence.delete_task(task.id, claim=owner)
            what = f"a task of nothing but what {part} stored, deleted"
            await expect_image(other, task, Image(), what)
            expect(await other.checkpoints.get(run_id) is None, f"{what}: its run is left")


@check("C1", "F2", "F13")
async def delete_task_checks_its_claim_first(context: Context) -> None:
    """A stale or missing claim removes nothing, neither of the task nor of its runs."""
    client = await context.open()
    task = Scope("task", context.new_id("task"))
    runs = [Scope("run", context.new_id("run")) for _ in range(3)]
    stale = await claim(client, task)
    owner = await claim(client, task)
    written = await fill(client, task, "kept", owner)
    for number, run in enumerate(runs):
        run_owner = await claim(client, run) if number else None
        await client.checkpoints.put(checkpoint_of(run.id, "kept", task.id), claim=run_owner)
    for what, given, reason in (("stale", stale, "superseded"), ("no", None, "claimed")):
        await fenced(
            client.persistence.delete_task(task.id, claim=given),
            reason,
            f"delete_task with {what} claim",
        )
        await expect_image(client, task, written, f"the task after delete_task with {what} claim")
        for run in runs:
            found = bare(await client.checkpoints.get(run.id))
            wanted = checkpoint_of(run.id, "kept", task.id)
            expect_equal(found, wanted, f"a run after delete_task with {what} claim")
    await client.persistence.check_claim(owner)


@check("C1", "F2")
async def delete_task_fences_the_owners_of_its_runs(context: Context) -> None:
    """A run's owner cannot bring its checkpoint back after the task was deleted, not even a
    first one.
    """
    client, worker = await context.open_many(2)
    for how in ("claimed", "forced"):
        task_id = context.new_id("task")
        owner = await client.persistence.claim_task(task_id)
        writing, waiting = context.new_id("run"), context.new_id("run")
        first = await worker.checkpoints.claim(writing, thread_id=task_id)
        point = checkpoint_of(writing, "m", task_id)
        await worker.checkpoints.put(point, claim=first)
        second = await worker.checkpoints.claim(waiting, thread_id=task_id)
        if how == "claimed":
            await client.persistence.delete_task(task_id, claim=owner)
        else:
            await client.persistence.delete_task(task_id, force=True)
        for run_id, run_owner in ((writing, first), (waiting, second)):
            error = await error_of(
                worker.checkpoints.put(checkpoint_of(run_id, "late", task_id), claim=run_owner)
            )
            expect(isinstance(error, FencedError), f"a put after delete_task ({how}) got {error!r}")
            found = await client.checkpoints.get(run_id)
            expect(found is None, f"a run of a deleted task has a checkpoint: {found}")
            newer = await worker.checkpoints.claim(run_id)
            expect(newer.epoch > run_owner.epoch, "an epoch was repeated", clause="F1")


@check("C1")
async def delete_task_leaves_runs_that_a_newer_claim_took_over(context: Context) -> None:
    """A checkpoint written under a newer claim of the task stays; those of this claim and older
    ones go.
    """
    client = await context.open()
    for force in (False, True):
        task_id = context.new_id("task")
        owner = await client.persistence.claim_task(task_id)
        for _ in range(3):
            owner = await client.persistence.claim_task(task_id)
        newest = owner.epoch + 1 if force else owner.epoch
        runs: dict[str, int] = {}
        for task_epoch in (0, 1, newest - 1, newest, newest + 1, newest + 7):
            run_id = context.new_id("run")
            runs[run_id] = task_epoch
            run_owner = await client.checkpoints.claim(run_id)
            point = msgspec.structs.replace(
                checkpoint_of(run_id, "m", task_id), task_epoch=task_epoch
            )
            await client.checkpoints.put(point, claim=run_owner)
        await client.persistence.delete_task(task_id, claim=None if force else owner, force=force)
        for run_id, task_epoch in runs.items():
            found = await client.checkpoints.get(run_id)
            expect(
                (found is not None) == (task_epoch > newest),
                f"deleted by the claim of epoch {newest}, a run of task_epoch {task_epoch} "
                f"{'is gone' if found is None else 'is still there'}",
            )


@check("C1", "F13", "F2")
async def delete_thread_refuses_while_a_run_is_owned(context: Context) -> None:
    """Without force nothing is removed if a run with a checkpoint is claimed; with force all
    owners are fenced.
    """
    client, other = await context.open_many(2)
    thread, neighbour = context.new_id("thread"), context.new_id("thread")
    free = [context.new_id("run") for _ in range(3)]
    for run_id in free:
        await client.checkpoints.put(checkpoint_of(run_id, "m", thread))
    await client.checkpoints.put(checkpoint_of("kept", "m", neighbour))
    only_claimed = await other.checkpoints.claim(context.new_id("run"), thread_id=thread)
    expect_equal(await client.checkpoints.delete_thread(thread), 3, "checkpoints removed")
    for run_id in free:
        await client.checkpoints.put(checkpoint_of(run_id, "m", thread))
    owned = context.new_id("run")
    owner = await other.checkpoints.claim(owned)
    await other.checkpoints.put(checkpoint_of(owned, "m", thread), claim=owner)
    what = "delete_thread of an owned run"
    await fenced(client.checkpoints.delete_thread(thread), "claimed", what, clause="C1")
    for run_id in (*free, owned):
        expect(await client.checkpoints.get(run_id), f"a refused delete_thread removed {run_id!r}")
    await other.checkpoints.put(checkpoint_of(owned, "n", thread), claim=owner)
    removed = await client.checkpoints.delete_thread(thread, force=True)
    expect_equal(removed, 4, "checkpoints removed by force")
    for run_id in (*free, owned):
        expect(await other.checkpoints.get(run_id) is None, f"{run_id!r} is still there")
    for late in (owner, only_claimed):
        point = checkpoint_of(late.scope.id, "late", thread)
        error = await error_of(other.checkpoints.put(point, claim=late))
        expect(isinstance(error, FencedError), f"a put after delete_thread by force got {error!r}")
    expect(await client.checkpoints.get("kept"), "a run of another thread was removed")
    expect_equal(await client.checkpoints.delete_thread(thread, force=True), 0, "a second time")


@check("C1", "X1", "C2")
async def an_interrupted_delete_task_is_finished_by_a_repeat(context: Context) -> None:
    """Cancelled wherever, delete_task leaves something that a repetition removes completely."""
    client = await context.open()
    for turns in (*range(14), 20, 40, 80):
        task_id = context.new_id("task")
        owner = await client.persistence.claim_task(task_id)
        await fill(client, Scope("task", task_id), "m", owner)
        runs = [f"{task_id} {number}" for number in range(4)]
        for run_id in runs:
            run_owner = await client.checkpoints.claim(run_id)
            await client.checkpoints.put(checkpoint_of(run_id, "m", task_id), claim=run_owner)
        deletion = asyncio.create_task(client.persistence.delete_task(task_id, claim=owner))
        for _ in range(turns):
            await asyncio.sleep(0)
        deletion.cancel()
        await asyncio.wait([deletion])
        await client.persistence.delete_task(task_id, claim=owner)
        await expect_image(client, Scope("task", task_id), Image(), "the task after the repetition")
        for run_id in runs:
            found = await client.checkpoints.get(run_id)
            expect(found is None, f"{run_id!r} outlived the repetition")


@check_each({name: one for name, one in MUTATIONS.items() if one.removes}, "C2", "F8", "F12")
async def deleting_what_is_not_there_is_fine(context: Context, mutation: Mutation) -> None:
    """Deleting twice, or what never was, succeeds, with and without a claim, and makes nothing."""
    client = await context.open()
    never = mutation.scope(context.new_id(mutation.kind))
    for _ in range(2):
        await mutation.apply(client, never.id, "", None)
    await expect_image(client, never, Image(), "what never was, after its deletion")
    report = await client.sweep(older_than=_NOW)
    expect_equal(report.tombstones, 0, "records that deletions of nothing left")
    owner = await claim(client, never)
    for _ in range(2):
        await mutation.apply(client, never.id, "", owner)
    full = mutation.scope(context.new_id(mutation.kind))
    owner = await claim(client, full)
    current = await fill(client, full, "m", owner)
    for number in range(3):
        await mutation.apply(client, full.id, "", owner)
        current = mutation.model(current, full.id, "")
        await expect_image(client, full, current, f"after deletion {number + 1}")
    if mutation.name == "delete_task":
        for _ in range(2):
            await client.persistence.delete_task(full.id, force=True)
            await client.persistence.delete_task(context.new_id("never"), force=True)
    if mutation.name == "delete":
        for force in (False, True):
            unknown = context.new_id("never")
            found = await client.checkpoints.delete_thread(unknown, force=force)
            expect_equal(found, 0, "checkpoints of an unknown thread")


def spellings(name: str) -> dict[str, bytes]:
    """How a store may write an id: plainly, in the usual encodings, or as one of the usual
    digests.
    """
    data = name.encode()
    found = {
        "plain": data,
        "hex": data.hex().encode(),
        "base32": base64.b32encode(data).rstrip(b"="),
        "base32hex": base64.b32hexencode(data).rstrip(b"="),
        "base64": base64.b64encode(data).rstrip(b"="),
        "base64url": base64.urlsafe_b64encode(data).rstrip(b"="),
        "quoted": urllib.parse.quote(name, safe="").encode(),
    }
    for digest in ("md5", "sha1", "sha256", "sha512", "blake2b", "blake2s"):
        value = hashlib.new(digest, data, usedforsecurity=False)
        found[digest] = value.hexdigest().encode()[:32]
    return {label: needle.lower() for label, needle in found.items()}


def find(entries: Iterable[tuple[str, bytes]], names: Iterable[str]) -> str | None:
    """Where one of the names stands in what a store holds, in words."""
    needles = {
        needle: f"{name!r} ({label})" for name in names for label, needle in spellings(name).items()
    }
    for key, data in entries:
        for what, hay in (("name", key.encode(errors="surrogatepass")), ("content", data)):
            low = hay.lower()
            for needle, label in needles.items():
                if needle in low:
                    return f"{label} in the {what} of {key!r:.120}"
    return None


@check("C3", "C5", needs=["raw"])
async def nothing_stays_behind(context: Context) -> None:
    """After delete_task and a sweep past the retention time, the store holds no trace of the
    task.
    """
    client = await context.open()
    tasks = client.persistence
    # Another run with the same seed may be under way on the same server.
    marks = [f"trace{secrets.token_hex(8)}{part}" for part in "abcdefgh"]
    task_id, run_id, owned_run, text, moved, empty, parent, dropped = marks
    owner = await tasks.claim_task(task_id)
    await fill(client, Scope("task", task_id), text, owner)
    long = [
        outlast.ApiMessage(id=f"{moved}{number}", role="u", content=text * 300)
        for number in range(120)
    ]
    for start in range(0, 120, 10):
        await tasks.append_api_messages(task_id, long[start : start + 10], claim=owner)
    await tasks.save_user_messages(
        task_id,
        [outlast.UserMessage(id=dropped, type="t", role="u", content=dropped * 500)],
        claim=owner,
    )
    await tasks.save_user_messages(task_id, [], claim=owner)
    await tasks.update_task_state(task_id, {"parent_id": parent}, claim=owner)
    await client.checkpoints.put(checkpoint_of(run_id, text, task_id))
    run_owner = await client.checkpoints.claim(owned_run)
    await client.checkpoints.put(checkpoint_of(owned_run, text, task_id), claim=run_owner)
    await client.checkpoints.claim(empty, thread_id=task_id)
    before = list(await context.harness.raw(context.namespace))
    for mark in (text, moved):
        if find(before, [mark]) is None:
            raise NotRun("Harness.raw() does not show the payloads that are stored")
    await tasks.delete_task(task_id, claim=owner)
    report = await client.sweep(older_than=_LONG)
    expect_equal(report.tombstones, 0, "tombstones swept before their time", clause="C5")
    expect((await client.sweep(older_than=_NOW)).complete, "a sweep without limit is not complete")
    after = list(await context.harness.raw(context.namespace))
    trace = find(after, marks)
    expect(trace is None, f"after delete_task and sweep the store holds {trace}")


@check_each(KINDS, "C5", "F1", "F12")
async def a_sweep_keeps_the_retention_time(context: Context, kind: ScopeKind) -> None:
    """Tombstones and empty claims go when they are old enough and not before; data never goes."""
    client, other = await context.open_many(2)
    remove = MUTATIONS["delete_task" if kind == "task" else "delete"]
    live, free, gone, empty = (Scope(kind, context.new_id(kind)) for _ in range(4))
    owner = await claim(client, live)
    kept = {live: await fill(client, live, "live", owner), free: await fill(client, free, "free")}
    gone_owner = await claim(client, gone)
    await fill(client, gone, "gone", gone_owner)
    await remove.apply(client, gone.id, "", gone_owner)
    empty_owner = await claim(client, empty)
    early = await client.sweep(older_than=_LONG)
    expect_equal(early.tombstones, 0, "records swept before their time")
    await client.persistence.check_claim(gone_owner)
    await client.persistence.check_claim(empty_owner)
    counted = await other.sweep(older_than=_NOW, dry_run=True)
    expect(counted.dry_run, "a dry run does not say that it was one")
    expect_equal(counted.tombstones, 2, "records that a dry run counted")
    await client.persistence.check_claim(gone_owner)
    limited = await client.sweep(older_than=_NOW, limit=0)
    expect_equal((limited.tombstones, limited.complete), (0, False), "a sweep with limit=0")
    done = await client.sweep(older_than=_NOW)
    expect_equal((done.tombstones, done.dry_run), (2, False), "records that were swept")
    expect(done.complete, "a sweep without limit is not complete")
    for old in (gone_owner, empty_owner):
        await fenced(
            client.persistence.check_claim(old), "no_record", "the claim of a swept record"
        )
    await client.persistence.check_claim(owner)
    for scope, wanted in kept.items():
        await expect_image(other, scope, wanted, f"data after a sweep, {scope.id}")
    expect_equal((await client.sweep(older_than=_NOW)).tombstones, 0, "records of a second sweep")
    for old in (gone_owner, empty_owner):
        newer = await claim(other, old.scope)
        expect(newer.epoch > old.epoch, f"epoch {newer.epoch} after {old.epoch}", clause="F1")
    written = await fill(client, live, "after", owner)
    await expect_image(other, live, written, "the owner's next write after a sweep")


@check("C5", "L1", heavy=True)
async def a_sweep_goes_through_everything(context: Context) -> None:
    """A sweep without limit removes hundreds of tombstones; limits add up to the same."""
    client = await context.open()
    count = 450
    names = [f"n{number}" for number in range(count)]
    limit = asyncio.Semaphore(16)

    async def live_and_die(name: str) -> None:
        async with limit:
            owner = await client.persistence.claim_task(name)
            if int(name[1:]) % 2:
                await client.persistence.save_task_input(
                    name, outlast.TaskInput(message="m"), claim=owner
                )
                await client.persistence.delete_task(name, claim=owner)

    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(live_and_die(name))
    counted = await client.sweep(older_than=_NOW, dry_run=True)
    expect_equal(counted.tombstones, count, "records that a dry run counted")
    limited = await client.sweep(older_than=_NOW, limit=100)
    expect(
        0 < limited.tombstones <= 150 and not limited.complete,
        f"a sweep with limit=100 removed {limited.tombstones}, complete={limited.complete}",
    )
    rest = await client.sweep(older_than=_NOW)
    expect_equal(limited.tombstones + rest.tombstones, count, "records of both sweeps")
    for name in context.rng.sample(names, 10):
        again = await client.persistence.claim_task(name)
        expect(again.epoch > 1, f"epoch {again.epoch} was handed out twice", clause="F1")


@check("C5", "E3")
async def a_sweep_refuses_bad_arguments(context: Context) -> None:
    """Negative ages, limits that are no count, and other types are refused."""
    client = await context.open()
    for bad in (timedelta(seconds=-1), 5, None, "1h"):
        await refused(client.sweep(older_than=bad), InvalidDataError, f"older_than={bad!r}")  # type: ignore[arg-type]
    for limit in (-1, 1.5, "all", True):
        await refused(
            client.sweep(older_than=_NOW, limit=limit),  # type: ignore[arg-type]
            InvalidDataError,
            f"limit={limit!r}",
        )


@check("C6", "F1", "F2", needs=["options"])
async def checkpoints_expire_and_their_fence_stays(context: Context) -> None:
    """Older than checkpoint_ttl, a checkpoint reads as None everywhere and never comes back;
    the claim goes on.
    """
    client = await context.open(checkpoint_ttl=timedelta(seconds=0.3))
    patient = await context.open(checkpoint_ttl=_LONG)
    run_id, free = context.new_id("run"), context.new_id("run")
    owner = await client.checkpoints.claim(run_id)
    await client.checkpoints.put(checkpoint_of(run_id, "old", "t"), claim=owner)
    await client.checkpoints.put(checkpoint_of(free, "old", "t"))
    expect(await patient.checkpoints.get(run_id), "a checkpoint younger than an hour is gone")

    async def expired() -> bool:
        return all([await client.checkpoints.get(name) is None for name in (run_id, free)])

    await eventually(expired, "a checkpoint older than checkpoint_ttl reads as None")
    for _ in range(3):
        expect(await client.checkpoints.get(run_id) is None, "an expired checkpoint came back")
        points = [point async for point in client.checkpoints.iter_checkpoints()]
        expect_equal(points, [], "expired checkpoints are listed")
        threads = [point async for point in client.checkpoints.iter_checkpoints(thread_id="t")]
        expect_equal(threads, [], "expired checkpoints are listed for their thread")
    await client.checkpoints.put(checkpoint_of(run_id, "new", "t"), claim=owner)
    expect_equal(
        bare(await patient.checkpoints.get(run_id)),
        checkpoint_of(run_id, "new", "t"),
        "what the owner put after the expiry",
    )
    await eventually(expired, "the newer checkpoint expires too")
    await client.sweep(older_than=_LONG)
    newer = await client.checkpoints.claim(run_id)
    expect(newer.checkpoint is None, "a claim returned an expired checkpoint")
    expect(newer.epoch > owner.epoch, f"after an expiry: epoch {newer.epoch} after {owner.epoch}")
    await fenced(
        client.checkpoints.put(checkpoint_of(run_id, "late", "t"), claim=owner),
        "superseded",
        "a stale put after the expiry",
        clause="C6",
    )
    expect(await client.checkpoints.get(run_id) is None, "a stale put was stored after expiry")


@check("C6", needs=["options"])
async def a_checkpoint_ttl_is_checked(context: Context) -> None:
    """checkpoint_ttl is a positive timedelta or None, and counts from the last put."""
    for bad in (timedelta(0), timedelta(seconds=-1), 5, "1h"):
        error = await error_of(_try(context, bad))
        expect(isinstance(error, ConfigurationError), f"checkpoint_ttl={bad!r} gave {error!r}")
    client = await context.open(checkpoint_ttl=timedelta(seconds=1.5))
    run_id = context.new_id("run")
    loop = asyncio.get_running_loop()
    began = loop.time()
    puts = 0
    while loop.time() < began + 2:
        put_at = loop.time()
        await client.checkpoints.put(checkpoint_of(run_id, str(puts), "t"))
        found = await client.checkpoints.get(run_id)
        if loop.time() - put_at < 1:  # on a machine that stood still it may have expired
            expect(found, "a checkpoint that is renewed expired")
        puts += 1
        await asyncio.sleep(0.05)


async def _try(context: Context, ttl: object) -> None:
    backend = await context.make(checkpoint_ttl=ttl)
    await backend.aclose()
