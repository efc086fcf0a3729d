"""Lost answers, lost races, sweeps and pauses: each at the one moment where it could do harm."""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from file_kit import RUN, TASK, TINY, Claimed, claim, entries, ids_of, look, sweep_all
from heads_kit import MemoryHeadDriver, MemoryObjects

from outlast.driver import Entry, PreconditionFailedError, Scope, Where
from outlast.errors import (
    CorruptDataError,
    FencedError,
    OutcomeUnknownError,
    OutlastError,
    UnavailableError,
)
from outlast.heads import Head, Layout, key_of

pytestmark = pytest.mark.file

CACHED = msgspec.structs.replace(TINY, cached_heads=8)


def once(
    name: str, action: Callable[[], Awaitable[object]]
) -> Callable[[str, str], Awaitable[None]]:
    """A hook that does ``action`` before the next call of this name, and never again."""
    is_done = False

    async def before(called: str, key: str) -> None:
        nonlocal is_done
        if called == name and not is_done:
            is_done = True
            await action()

    return before


# --- Round trips


async def test_the_usual_calls_are_one_round_trip() -> None:
    driver = MemoryHeadDriver(Layout())
    store = driver.store

    async def trips(call: Coroutine[Any, Any, Any]) -> list[str]:
        store.calls.clear()
        await call
        return store.calls.copy()

    mine = Claimed(TASK, await driver.claim(TASK, "a" * 32))
    assert store.calls == ["read", "create", "floor"]
    assert await trips(driver.append(TASK, "api", entries("a"), fence=mine.fence())) == ["swap"]
    assert await trips(driver.write(TASK, "state", b"s", fence=mine.fence())) == ["swap"]
    assert await trips(driver.remove(TASK, fence=mine.fence())) == ["swap"]
    assert await trips(driver.read(TASK, "state")) == ["read"]
    assert await trips(driver.load(TASK, "api")) == ["read"]
    other = driver.sibling()
    other.store.calls.clear()
    await claim(other, TASK)
    assert other.store.calls == ["read", "swap"]


async def test_a_refusal_is_never_based_on_a_remembered_head() -> None:
    old, new = (first := MemoryHeadDriver(CACHED)), first.sibling()
    mine = await claim(old, TASK)
    await old.append(TASK, "api", entries("a", "b"), fence=mine.fence())
    theirs = await claim(new, TASK)
    assert await old.append(TASK, "user", entries("u"), fence=theirs.fence()) == []
    await new.replace(TASK, "api", entries("b"), fence=theirs.fence())
    with pytest.raises(FencedError) as caught:
        await old.append(TASK, "api", entries("a"), fence=mine.fence())
    assert (caught.value.reason, caught.value.stored_epoch) == ("superseded", 2)
    taken_up = Claimed(TASK, await old.claim(TASK, theirs.fence().claim_id))
    await new.replace(TASK, "api", entries("c"), fence=taken_up.fence())
    assert await old.append(TASK, "api", entries("b"), fence=taken_up.fence()) == []
    with pytest.raises(PreconditionFailedError):
        await old.append(TASK, "api", [], fence=taken_up.fence(), present=["x"])
    assert ids_of(await new.load(TASK, "api")) == ["c", "b"]


@pytest.mark.parametrize("layout", [Layout(), CACHED], ids=["default", "tiny"])
async def test_the_cost_of_an_append_does_not_grow_with_the_log(layout: Layout) -> None:
    driver = MemoryHeadDriver(layout)
    mine = await claim(driver, TASK)
    data = b"x" * (1000 if layout.tail_bytes > 1000 else 20)

    async def cost(appends: int, first: int) -> tuple[float, float]:
        store = driver.store
        store.calls.clear()
        store.sent = 0
        for number in range(first, first + appends):
            await driver.append(TASK, "api", [Entry(f"m{number}", data)], fence=mine.fence())
        return len(store.calls) / appends, store.sent / appends

    early_calls, early_bytes = await cost(1000, 0)
    for number in range(1000, 5000, 250):
        batch = [Entry(f"m{place}", data) for place in range(number, number + 250)]
        await driver.append(TASK, "api", batch, fence=mine.fence())
    late_calls, late_bytes = await cost(1000, 5000)
    assert late_calls < 1.2 * early_calls
    assert late_bytes < 1.5 * early_bytes
    assert len(await driver.load(TASK, "api")) == 6000


async def test_the_newest_entries_are_read_without_the_others() -> None:
    driver = MemoryHeadDriver(CACHED)
    mine = await claim(driver, TASK)
    for number in range(2000):
        await driver.append(TASK, "api", entries(f"m{number}", size=40), fence=mine.fence())
    store = driver.store
    for last in (1, 5, 40):
        store.calls.clear()
        store.received = 0
        found = await driver.load(TASK, "api", last=last)
        assert ids_of(found) == [f"m{number}" for number in range(2000 - last, 2000)]
        assert store.received < last * 100 + 2000
        assert len(store.calls) < 8


async def test_the_first_append_of_a_process_reads_ids_only() -> None:
    driver = MemoryHeadDriver(Layout())
    mine = await claim(driver, TASK)
    batch = [Entry(f"m{number}", bytes(30_000)) for number in range(500)]
    await driver.append(TASK, "api", batch, fence=mine.fence())
    other = driver.sibling()
    assert await other.append(TASK, "api", [Entry("m3", b"")], fence=mine.fence()) == [batch[3]]
    await other.append(TASK, "api", [Entry("new", b"")], fence=mine.fence())
    assert other.store.calls == ["read", "read_ids", "read_pieces", "swap"]


# --- Answers that do not arrive


@pytest.mark.parametrize("fault", ["lose", "drop"])
async def test_an_unanswered_claimed_mutation_is_settled_with_one_effect(fault: str) -> None:
    driver = MemoryHeadDriver(CACHED)
    mine = await claim(driver, TASK)
    for number in range(20):
        getattr(driver.store, fault).append("swap")
        batch = [Entry(f"m{number}", b"x" * 30)]
        assert await driver.append(TASK, "api", batch, fence=mine.fence()) == []
        getattr(driver.store, fault).append("swap")
        version = await driver.write(TASK, "state", b"s" * number * 3, fence=mine.fence())
        value = await driver.read(TASK, "state")
        assert (value.data, value.version) == (b"s" * number * 3, version)
    getattr(driver.store, fault).append("swap")
    await driver.replace(TASK, "user", entries("a"), fence=mine.fence())
    assert ids_of(await driver.load(TASK, "api")) == [f"m{number}" for number in range(20)]
    getattr(driver.store, fault).append("swap")
    await driver.remove(TASK, fence=mine.fence())
    assert (await look(driver, TASK)).is_empty
    await sweep_all(driver)
    assert not driver.store.objects.pieces


@pytest.mark.parametrize("fault", ["lose", "drop"])
async def test_an_unanswered_claim_is_settled_with_one_epoch(fault: str) -> None:
    driver = MemoryHeadDriver(Layout())
    getattr(driver.store, fault).append("create")
    assert (await driver.claim(TASK, "a" * 32)).epoch == 1
    getattr(driver.store, fault).append("swap")
    assert (await driver.claim(TASK, "b" * 32)).epoch == 2


@pytest.mark.parametrize("fault", ["lose", "drop"])
async def test_without_a_claim_an_unanswered_mutation_is_unknown(fault: str) -> None:
    driver = MemoryHeadDriver(Layout())
    getattr(driver.store, fault).append("create")
    with pytest.raises(OutcomeUnknownError):
        await driver.append(TASK, "api", entries("a"), fence=None)
    found = ids_of(await driver.load(TASK, "api"))
    assert found == (["a"] if fault == "lose" else [])


async def test_what_follows_an_unanswered_attempt_does_not_say_that_nothing_was_applied() -> None:
    driver = MemoryHeadDriver(CACHED)
    mine = await claim(driver, TASK)
    other = driver.sibling()

    async def supersede() -> None:
        driver.store.before = once("read", lambda: claim(other, TASK))

    driver.store.before = once("swap", supersede)
    driver.store.lose.append("swap")
    with pytest.raises(FencedError) as fenced:
        await driver.append(TASK, "api", entries("a"), fence=mine.fence())
    assert fenced.value.applied is None
    assert ids_of(await other.load(TASK, "api")) == ["a"]
    again = await claim(driver, TASK)
    driver.store.lose.append("swap")
    driver.store.refuse.append("read")
    with pytest.raises(OutcomeUnknownError):
        await driver.append(TASK, "api", entries("b"), fence=again.fence())


async def test_a_request_that_arrives_late_is_refused() -> None:
    driver = MemoryHeadDriver(CACHED)
    mine = await claim(driver, TASK)
    late: list[Callable[[], Awaitable[object]]] = []

    class Delaying(MemoryObjects):
        async def swap(self, key: str, data: bytes, head: Head, token: object) -> object | None:
            if late:
                return await super().swap(key, data, head, token)
            late.append(lambda: MemoryObjects.swap(self, key, data, head, token))
            raise OutcomeUnknownError("delayed")

    driver.store = Delaying(driver.store.objects)
    assert await driver.append(TASK, "api", entries("a"), fence=mine.fence()) == []
    before = dict(driver.store.objects.heads)
    assert await late[0]() is None
    assert driver.store.objects.heads == before
    assert ids_of(await driver.load(TASK, "api")) == ["a"]


async def test_a_refused_write_leaves_no_pieces_behind() -> None:
    driver = MemoryHeadDriver(CACHED)
    mine = await claim(driver, TASK)
    driver.store.refuse.append("swap")
    with pytest.raises(UnavailableError):
        await driver.write(TASK, "state", bytes(100), fence=mine.fence())
    assert not driver.store.objects.pieces
    driver.store.before = once("swap", lambda: driver.sibling().claim(TASK, "b" * 32))
    with pytest.raises(FencedError):
        await driver.write(TASK, "state", bytes(100), fence=mine.fence())
    assert not driver.store.objects.pieces


# --- Pieces that move under a reader or writer


async def _filled(driver: MemoryHeadDriver, *ids: str) -> Claimed:
    mine = await claim(driver, TASK)
    for entry_id in ids:
        await driver.append(TASK, "api", entries(entry_id, size=30), fence=mine.fence())
    return mine


async def test_a_reader_whose_pieces_were_replaced_reads_the_new_ones() -> None:
    driver = MemoryHeadDriver(CACHED)
    mine = await _filled(driver, *"abcdefghijkl")
    await driver.write(TASK, "state", b"1" * 99, fence=mine.fence())
    other = driver.sibling()

    async def replace() -> None:
        await driver.replace(TASK, "api", entries(*"zyxwvu", size=60), fence=mine.fence())
        await driver.write(TASK, "state", b"2" * 99, fence=mine.fence())

    for read, expected in (
        (lambda: other.load(TASK, "api"), entries(*"zyxwvu", size=60)),
        (lambda: other.read(TASK, "state"), b"2" * 99),
        (lambda: other.claim(TASK, mine.fence().claim_id), b"2" * 99),
    ):
        other.store.before = once("read_pieces", replace)
        found = await read()
        assert (found if isinstance(found, list) else found.data) == expected
    other.store.before = once("read_pieces", lambda: driver.remove(TASK, fence=mine.fence()))
    assert await other.load(TASK, "api") == []


@pytest.mark.parametrize("name", ["read_ids", "read_pieces"])
async def test_a_writer_whose_pieces_were_replaced_starts_anew(name: str) -> None:
    driver = MemoryHeadDriver(CACHED)
    mine = await _filled(driver, *"abcdefghijkl")
    other = driver.sibling()
    replaced = entries(*"pqrstuvw", size=60)
    other.store.before = once(
        name, lambda: driver.replace(TASK, "api", replaced, fence=mine.fence())
    )
    batch = entries(*"a12345678", size=30)
    fence = mine.fence()._replace(seq=1000)
    assert await other.append(TASK, "api", batch, fence=fence) == []
    assert await other.load(TASK, "api") == replaced + batch


async def test_a_piece_that_is_missing_under_an_unchanged_head_is_corruption() -> None:
    driver = MemoryHeadDriver(CACHED)
    mine = await _filled(driver, *"abcdefghijkl")
    await driver.write(TASK, "state", b"1" * 99, fence=mine.fence())
    driver.store.objects.pieces.clear()
    other = driver.sibling()
    for call in (
        other.load(TASK, "api"),
        other.read(TASK, "state"),
        other.claim(TASK, "b" * 32),
        other.append(TASK, "api", entries("m"), fence=mine.fence()),
        other.scan("task", where=Where(), after=None, limit=5),
    ):
        with pytest.raises(CorruptDataError, match="not there"):
            await call


# --- Sweeps


async def test_a_sweep_takes_the_pieces_of_broken_off_writes_and_no_others() -> None:
    driver = MemoryHeadDriver(CACHED)
    mine = await _filled(driver, *"abcdefghijklmnopqrstuvwxyz")
    await driver.write(TASK, "state", b"1" * 99, fence=mine.fence())
    objects = driver.store.objects
    referenced = set(objects.pieces)
    for key, name in ((key_of(TASK), "left"), (key_of(RUN), "alone")):
        objects.pieces[key, name] = b"", objects.time
    before = await look(driver, TASK)
    stored = dict(objects.heads)
    assert await sweep_all(driver, older_than=1.0) == (0, 0)
    objects.time += 2
    assert await sweep_all(driver, older_than=1.0, dry_run=True) == (0, 2)
    assert objects.heads == stored
    assert await sweep_all(driver, older_than=1.0) == (0, 2)
    assert set(objects.pieces) == referenced
    assert await look(driver, TASK) == before
    assert await driver.append(TASK, "api", entries("more"), fence=mine.fence()) == []


async def test_a_write_that_was_prepared_before_a_sweep_does_not_refer_to_what_it_took() -> None:
    driver = MemoryHeadDriver(CACHED)
    mine = await _filled(driver, *"abcdefgh")
    other = driver.sibling()

    async def pause_for_long() -> None:
        driver.store.objects.time += 1000
        assert (await sweep_all(other, older_than=100.0))[1] >= 1

    for call in (
        lambda: driver.write(TASK, "state", b"1" * 99, fence=mine.fence()),
        lambda: driver.append(TASK, "api", entries("i", "j", "k", size=60), fence=mine.fence()),
        lambda: driver.replace(TASK, "user", entries(*"lmnop", size=60), fence=mine.fence()),
    ):
        driver.store.before = once("swap", pause_for_long)
        await call()
    seen = await look(other, TASK)
    assert seen.registers[0] == b"1" * 99
    assert ids_of(seen.logs[0]) == list("abcdefghijk")
    assert ids_of(seen.logs[1]) == list("lmnop")


async def test_a_record_that_changed_since_it_was_judged_is_not_swept() -> None:
    driver = MemoryHeadDriver(CACHED)
    mine = await claim(driver, TASK)
    other = driver.sibling()
    other.store.before = once(
        "delete", lambda: driver.append(TASK, "api", entries("a"), fence=mine.fence())
    )
    assert await sweep_all(other) == (0, 0)
    assert ids_of(await driver.load(TASK, "api")) == ["a"]


async def _live_and_be_swept(driver: MemoryHeadDriver, scope: Scope) -> tuple[int, int]:
    """A whole life of a record; its highest epoch and version."""
    version = 0
    for _ in range(3):
        mine = await claim(driver, scope)
        register = "state" if scope.kind == "task" else "checkpoint"
        version = await driver.write(scope, register, b"x", fence=mine.fence())
    await driver.remove(scope, fence=mine.fence())
    assert (await sweep_all(driver))[0] == 1
    return mine.epoch, version


async def test_a_record_made_during_another_life_and_sweep_is_above_both() -> None:
    for scope in (TASK, RUN):
        driver = MemoryHeadDriver(CACHED)
        other = driver.sibling()
        lives: list[tuple[int, int]] = []

        async def live(other: MemoryHeadDriver = other, scope: Scope = scope) -> None:
            lives.append(await _live_and_be_swept(other, scope))  # noqa: B023

        driver.store.before = once("create", live)
        mine = await claim(driver, scope)
        register = "state" if scope.kind == "task" else "checkpoint"
        version = await driver.write(scope, register, b"y", fence=mine.fence())
        assert mine.epoch > lives[0][0]
        assert version > lives[0][1]


async def test_an_unclaimed_record_made_during_another_life_is_above_it() -> None:
    for size in (10, 200):
        driver = MemoryHeadDriver(CACHED)
        other = driver.sibling()
        lives: list[tuple[int, int]] = []

        async def live(other: MemoryHeadDriver = other) -> None:
            lives.append(await _live_and_be_swept(other, TASK))  # noqa: B023

        driver.store.before = once("create", live)
        version = await driver.write(TASK, "state", bytes(size), fence=None)
        assert version > lives[0][1]
        value = await driver.read(TASK, "state")
        assert (value.data, value.version) == (bytes(size), version)
        assert (await claim(driver, TASK)).epoch > lives[0][0]


async def test_a_sweep_of_another_record_does_not_end_updates_of_a_new_one() -> None:
    driver = MemoryHeadDriver(CACHED)
    await driver.write(TASK, "state", b"old", fence=None)
    other = next(
        scope
        for scope in (Scope("task", f"other {number}") for number in range(1000))
        if key_of(scope)[:6] == key_of(TASK)[:6]
    )
    await _live_and_be_swept(driver.sibling(), other)
    for updater in (driver, driver.sibling()):
        versions = [(await updater.read(TASK, "state")).version]
        with suppress(PreconditionFailedError):
            await updater.write(TASK, "state", b"1", fence=None, if_version=versions[-1])
        versions.append((await updater.read(TASK, "state")).version)
        version = await updater.write(TASK, "state", b"2", fence=None, if_version=versions[-1])
        assert version > versions[-1]
        with pytest.raises(PreconditionFailedError):
            await updater.write(TASK, "state", b"3", fence=None, if_version=versions[-1])
    assert (await driver.read(TASK, "state")).data == b"2"


async def test_a_claim_broken_off_before_it_read_the_floor_is_raised_by_whoever_comes_next() -> (
    None
):
    for comes_next in ("itself", "another", "an unclaimed write"):
        driver = MemoryHeadDriver(CACHED)
        lives: list[tuple[int, int]] = []

        async def live(driver: MemoryHeadDriver = driver) -> None:
            lives.append(await _live_and_be_swept(driver.sibling(), TASK))  # noqa: B023

        driver.store.before = once("create", live)
        driver.store.refuse.append("floor")
        unclaimed = comes_next == "an unclaimed write"
        with pytest.raises(OutlastError):
            await (
                driver.write(TASK, "state", b"z", fence=None)
                if unclaimed
                else driver.claim(TASK, "a" * 32)
            )
        following = driver.sibling()
        if unclaimed:
            assert await following.write(TASK, "state", b"w", fence=None) > lives[0][1]
        claim_id = ("a" if comes_next == "itself" else "b") * 32
        mine = Claimed(TASK, await following.claim(TASK, claim_id))
        assert mine.epoch > lives[0][0]
        assert await following.write(TASK, "state", b"v", fence=mine.fence()) > lives[0][1]


# --- All at once


@pytest.mark.parametrize("seed", range(6))
async def test_under_random_faults_logs_hold_what_was_accepted_in_the_order_of_epochs(
    seed: int,
) -> None:
    rng = random.Random(seed)
    first = MemoryHeadDriver(CACHED)
    done: list[tuple[int, str]] = []
    tried: set[str] = set()
    claims: list[int] = []

    async def use(driver: MemoryHeadDriver) -> None:
        store = driver.store

        async def meddle(name: str, key: str) -> None:
            for _ in range(rng.randint(0, 3)):
                await asyncio.sleep(0)
            if rng.random() < 0.05:
                rng.choice((store.lose, store.drop)).append(rng.choice(("swap", "create")))
            if rng.random() < 0.01:
                store.refuse.append(rng.choice(("read", "read_pieces", "put_piece", "swap")))

        store.before = meddle
        mine: Claimed | None = None
        for _ in range(80):
            try:
                if mine is None or rng.random() < 0.05:
                    mine = await claim(driver, TASK)
                    claims.append(mine.epoch)
                if rng.random() < 0.1:
                    await sweep_all(driver, older_than=rng.choice((0.0, 5.0)))
                    continue
                if rng.random() < 0.2:
                    await driver.write(
                        TASK, "state", bytes(rng.choice((1, 99))), fence=mine.fence()
                    )
                    continue
                entry_id = f"{mine.epoch}-{secrets.token_hex(3)}"
                tried.add(entry_id)
                entry = Entry(entry_id, rng.randbytes(rng.choice((1, 50, 150))))
                assert await driver.append(TASK, "api", [entry], fence=mine.fence()) == []
                done.append((mine.epoch, entry_id))
                store.objects.time += 1
            except FencedError:
                mine = None
                for _ in range(rng.randint(0, 200)):
                    await asyncio.sleep(0)
            except (UnavailableError, OutcomeUnknownError):
                continue

    await asyncio.gather(*(use(first.sibling()) for _ in range(5)))
    log = ids_of(await first.load(TASK, "api"))
    assert len(set(log)) == len(log)
    assert {entry_id for _, entry_id in done} <= set(log) <= tried
    epochs = [int(entry_id.partition("-")[0]) for entry_id in log]
    assert epochs == sorted(epochs)
    assert len(set(claims)) == len(claims)
    assert len(done) > 40
    first.store.objects.time += 100
    await sweep_all(first, older_than=50.0)
    assert await sweep_all(first, older_than=50.0) == (0, 0)
    assert ids_of(await first.load(TASK, "api")) == log


@pytest.mark.parametrize("epochs", [1, 3])
async def test_a_swept_claim_that_meets_a_record_in_the_making_is_told_that_its_own_is_gone(
    epochs: int,
) -> None:
    """Until its claimer has read the floor, its epoch is low; no fence was lost (F13)."""
    driver = MemoryHeadDriver(CACHED)
    old = driver.sibling()
    for _ in range(epochs):
        mine = await claim(old, TASK)
    await old.remove(TASK, fence=mine.fence())
    await sweep_all(old)
    refusals: list[FencedError] = []

    async def write_late() -> None:
        with pytest.raises(FencedError) as caught:
            await old.write(TASK, "state", b"late", fence=mine.fence())
        refusals.append(caught.value)

    driver.store.before = once("floor", write_late)
    assert (await claim(driver, TASK)).epoch > epochs
    assert [error.reason for error in refusals] == ["no_record"]


async def test_a_new_record_with_a_lower_epoch_than_any_that_was_swept_has_lost_one() -> None:
    """The alarm stays where it is true: nothing was swept, and the store went back in time."""
    driver = MemoryHeadDriver(Layout())
    await driver.claim(TASK, "a" * 32)
    before = dict(driver.store.objects.heads)
    mine = await claim(driver.sibling(), TASK)
    driver.store.objects.heads = before
    with pytest.raises(FencedError) as caught:
        await driver.sibling().write(TASK, "state", b"late", fence=mine.fence())
    assert caught.value.reason == "lost"
