"""What `outlast.driver.Driver` promises, held to head drivers of two layouts on two stores.

The memory driver passes the same tests: they say what the interface means, not what heads do.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from file_kit import (
    OTHER,
    RUN,
    TASK,
    TINY,
    claim,
    entries,
    ids_of,
    look,
    sweep_all,
)
from file_kit import InlineFileDriver as FileDriver
from heads_kit import MemoryHeadDriver

from outlast.backends.file import LAYOUT
from outlast.backends.memory import MemoryDriver
from outlast.driver import (
    Driver,
    Entry,
    Fence,
    Index,
    PreconditionFailedError,
    Scope,
    StoredFence,
    Value,
    Where,
)
from outlast.errors import FencedError, StaleWriteError
from outlast.heads import Layout

pytestmark = pytest.mark.file

KINDS = ["memory", "objects", "objects tiny", "objects together", "file", "file tiny"]
SMALLEST = msgspec.structs.replace(TINY, tail_entries=1, max_refs=2, piece_bytes=1, merge_bytes=0)


def make(kind: str, folder: Path) -> Driver:
    match kind:
        case "memory":
            return MemoryDriver(namespace="n")
        case "objects":
            return MemoryHeadDriver(Layout())
        case "objects tiny":
            return MemoryHeadDriver(msgspec.structs.replace(TINY, cached_heads=4))
        case "objects together":
            driver = MemoryHeadDriver(msgspec.structs.replace(TINY, cached_heads=4))
            driver.store.gathers = True
            return driver
        case "objects smallest":
            return MemoryHeadDriver(SMALLEST)
        case "file":
            return FileDriver(folder / "s", layout=LAYOUT)
        case _:
            return FileDriver(folder / "s", layout=TINY)


@pytest.fixture(params=KINDS)
async def driver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Driver]:
    made = make(request.param, tmp_path)
    await made.setup(create=True)
    yield made
    await made.aclose()


async def test_a_scope_without_a_record_reads_as_nothing(driver: Driver) -> None:
    assert await driver.read(TASK, "state") == Value()
    assert await driver.load(TASK, "api") == []
    assert await driver.load(TASK, "api", last=3) == []


async def test_a_claim_makes_a_record_without_data(driver: Driver) -> None:
    value = await driver.claim(TASK, "a" * 32)
    assert value.data is None
    assert value.fence == StoredFence(1, "a" * 32, 0, "")
    assert (await driver.read(TASK, "state")).data is None
    assert await driver.read(TASK, "input") == value


async def test_a_claim_returns_the_primary_register_and_changes_no_data(driver: Driver) -> None:
    mine = await claim(driver, TASK)
    await driver.write(TASK, "state", b"s" * 50, fence=mine.fence(), index=Index("p", "running", 3))
    await driver.append(TASK, "api", entries("a"), fence=mine.fence())
    before = await driver.read(TASK, "state")
    value = await driver.claim(TASK, "b" * 32)
    assert value.data == b"s" * 50
    assert value.version == before.version
    assert value.fence == StoredFence(2, "b" * 32, 0, "")
    assert ids_of(await driver.load(TASK, "api")) == ["a"]


async def test_a_repeated_claim_changes_nothing_and_returns_the_seq(driver: Driver) -> None:
    await driver.claim(TASK, "a" * 32)
    await driver.append(TASK, "api", entries("a"), fence=Fence(1, "a" * 32, 7, "op"))
    for at_least in (None, 1, 9):
        value = await driver.claim(TASK, "a" * 32, at_least=at_least)
        assert value.fence == StoredFence(1, "a" * 32, 7, "op")


async def test_an_epoch_may_be_asked_for_if_it_is_higher(driver: Driver) -> None:
    assert (await driver.claim(TASK, "a" * 32, at_least=40)).epoch == 40
    for epoch in (40, 39, 1):
        with pytest.raises(FencedError) as caught:
            await driver.claim(TASK, "b" * 32, at_least=epoch)
        assert (caught.value.reason, caught.value.stored_epoch) == ("superseded", 40)
    assert (await driver.claim(TASK, "b" * 32, at_least=41)).epoch == 41
    assert (await driver.claim(TASK, "c" * 32)).epoch == 42


async def test_the_parent_of_a_claim_is_found_and_survives_the_data(driver: Driver) -> None:
    mine = await claim(driver, RUN, parent="t")
    where = Where(parent="t", with_empty=True)
    page = await driver.scan("run", where=where, after=None, limit=5)
    assert [(item.id, item.value.parent) for item in page.items] == [("r", "t")]
    await driver.write(RUN, "checkpoint", b"c", fence=mine.fence(), index=Index("t2", None, 1))
    stored = await _fence(driver, RUN)
    assert (await driver.claim(RUN, stored.claim_id, parent="t4")).parent == "t2"
    await driver.write(RUN, "checkpoint", None, fence=mine.fence())
    await driver.remove(RUN, fence=mine.fence())
    assert (await driver.read(RUN, "checkpoint")).parent == "t2"
    assert (await driver.scan("run", where=where, after=None, limit=5)).items == []
    repeated = await driver.claim(RUN, (await _fence(driver, RUN)).claim_id, parent="t3")
    assert repeated.parent == "t3"


async def _fence(driver: Driver, scope: Scope) -> StoredFence:
    fence = (await driver.read(scope, "state" if scope.kind == "task" else "checkpoint")).fence
    assert fence is not None
    return fence


async def test_versions_grow_with_every_write_of_the_register_and_only_with_those(
    driver: Driver,
) -> None:
    versions = [0]
    for data in (b"a", b"b", b"c" * 100, None, None, b"d"):
        version = await driver.write(TASK, "state", data, fence=None)
        assert version == (await driver.read(TASK, "state")).version > versions[-1]
        versions.append(version)
    await driver.write(TASK, "input", b"i", fence=None)
    await driver.append(TASK, "api", entries("a"), fence=None)
    assert (await driver.read(TASK, "state")).version == versions[-1]
    await driver.remove(TASK, fence=None)
    assert (await driver.read(TASK, "state")).version > versions[-1]
    assert (await driver.read(TASK, "state")).data is None


async def test_a_write_may_name_the_version_it_expects(driver: Driver) -> None:
    assert await driver.write(TASK, "state", b"a", fence=None, if_version=0) > 0
    version = (await driver.read(TASK, "state")).version
    for wrong in (0, version - 1, version + 1):
        with pytest.raises(PreconditionFailedError):
            await driver.write(TASK, "state", b"b", fence=None, if_version=wrong)
    assert await driver.write(TASK, "state", b"b", fence=None, if_version=version) > version
    mine = await claim(driver, TASK)
    with pytest.raises(FencedError) as caught:
        await driver.write(TASK, "state", b"c", fence=None, if_version=1)
    assert caught.value.reason == "claimed"
    with pytest.raises(PreconditionFailedError):
        await driver.write(TASK, "state", b"c", fence=mine.fence(), if_version=1)
    never_written = (await driver.read(TASK, "input")).version
    await driver.write(TASK, "input", b"i", fence=mine.fence(), if_version=never_written)


async def test_emptying_or_removing_what_is_not_there_makes_no_record(driver: Driver) -> None:
    assert await driver.write(TASK, "state", None, fence=None) == 0
    await driver.remove(TASK, fence=None)
    await driver.replace(TASK, "api", [], fence=None)
    assert await driver.append(TASK, "api", [], fence=None) == []
    assert await driver.read(TASK, "state") == Value()


async def test_a_claimed_mutation_never_makes_a_record(driver: Driver) -> None:
    fence = Fence(1, "a" * 32, 1, "op")
    for call in _mutations(driver, TASK, fence):
        with pytest.raises(FencedError) as caught:
            await call
        assert caught.value.reason == "no_record"
    assert await driver.read(TASK, "state") == Value()


def _mutations(driver: Driver, scope: Scope, fence: Fence | None) -> list[Any]:
    return [
        driver.write(scope, "state", b"new", fence=fence),
        driver.write(scope, "state", None, fence=fence),
        driver.append(scope, "api", entries("new"), fence=fence),
        driver.append(scope, "api", [], fence=fence, present=["gone"])
        if fence
        else driver.append(scope, "api", entries("n"), fence=fence),
        driver.replace(scope, "api", entries("new"), fence=fence),
        driver.remove(scope, fence=fence),
    ]


async def test_a_refused_mutation_changes_nothing_and_says_why(driver: Driver) -> None:
    old = await claim(driver, TASK)
    await driver.write(TASK, "state", b"s", fence=old.fence())
    await driver.append(TASK, "api", entries("a", "b"), fence=old.fence())
    new = await claim(driver, TASK)
    stored = Fence(*(await _fence(driver, TASK)))
    await driver.append(TASK, "api", entries("c"), fence=new.fence())
    before = await look(driver, TASK)
    for fence, reason in (
        (None, "claimed"),
        (old.fence(), "superseded"),
        (stored._replace(epoch=9, seq=9), "lost"),
        (stored._replace(claim_id="9" * 32, seq=9), "lost"),
        (stored._replace(seq=1, op="other"), "stale"),
        (stored._replace(seq=0), "stale"),
    ):
        for call in _mutations(driver, TASK, fence):
            with pytest.raises(FencedError) as caught:
                await call
            assert caught.value.reason == reason
            assert caught.value.stored_epoch == 2
            assert isinstance(caught.value, StaleWriteError) is (reason == "stale")
        assert await look(driver, TASK) == before


async def test_a_repeated_mutation_has_one_effect_and_succeeds(driver: Driver) -> None:
    mine = await claim(driver, TASK)
    fence = mine.fence()
    version = await driver.write(TASK, "state", b"s", fence=fence)
    assert await driver.write(TASK, "state", b"s", fence=fence, if_version=0) == version
    fence = mine.fence()
    assert await driver.append(TASK, "api", entries("a", "b"), fence=fence) == []
    assert await driver.append(TASK, "api", entries("a", "b"), fence=fence) == []
    fence = mine.fence()
    await driver.replace(TASK, "api", entries("c"), fence=fence)
    await driver.replace(TASK, "api", entries("c"), fence=fence)
    assert ids_of(await driver.load(TASK, "api")) == ["c"]
    fence = mine.fence()
    await driver.remove(TASK, fence=fence)
    await driver.remove(TASK, fence=fence)
    assert (await look(driver, TASK)).is_empty


async def test_an_unclaimed_record_keeps_its_data_when_it_is_claimed(driver: Driver) -> None:
    await driver.append(TASK, "api", entries(*"abcdefghijkl"), fence=None)
    await driver.write(TASK, "state", b"s", fence=None)
    assert await _fence(driver, TASK) == StoredFence()
    value = await driver.claim(TASK, "a" * 32)
    assert (value.data, value.epoch) == (b"s", 1)
    assert ids_of(await driver.load(TASK, "api")) == list("abcdefghijkl")


async def test_a_log_keeps_the_order_of_appends_whatever_its_length(driver: Driver) -> None:
    mine = await claim(driver, TASK)
    expected: list[Entry] = []
    rng = random.Random(5)
    for number in range(60):
        batch = [
            Entry(f"{number}.{place}", rng.randbytes(rng.choice((0, 1, 10, 90, 400))))
            for place in range(rng.choice((1, 1, 1, 2, 9)))
        ]
        assert await driver.append(TASK, "api", batch, fence=mine.fence()) == []
        expected += batch
        if number % 7 == 0:
            assert await driver.load(TASK, "api") == expected
    assert await driver.load(TASK, "api") == expected
    assert await driver.load(TASK, "user") == []
    for last in (0, 1, 2, 3, 4, 5, 9, 30, len(expected) - 1, len(expected), 10_000):
        wanted = expected[max(0, len(expected) - last) :]
        assert await driver.load(TASK, "api", last=last) == wanted, last
        data = [entry.data for entry in wanted]
        assert await driver.load_data(TASK, "api", list, last=last) == data, last


async def test_an_append_of_known_ids_returns_their_entries_and_changes_nothing(
    driver: Driver,
) -> None:
    mine = await claim(driver, TASK)
    ids = [f"m{number}" for number in range(40)]
    for entry_id in ids:
        await driver.append(TASK, "api", entries(entry_id), fence=mine.fence())
    before = await look(driver, TASK)
    batch = [Entry("new", b""), Entry("m39", b"x"), Entry("m0", b"x"), Entry("m17", b"")]
    assert await driver.append(TASK, "api", batch, fence=mine.fence()) == entries(
        "m39", "m0", "m17"
    )
    assert await look(driver, TASK) == before
    for entry_id in ids:
        found = await driver.append(TASK, "api", [Entry(entry_id, b"")], fence=mine.fence())
        assert found == entries(entry_id)
    assert await driver.append(TASK, "user", entries("m3"), fence=mine.fence()) == []


async def test_an_append_may_name_ids_that_must_be_there(driver: Driver) -> None:
    mine = await claim(driver, TASK)
    await driver.append(TASK, "api", entries(*"abcdefghij"), fence=mine.fence())
    assert (
        await driver.append(TASK, "api", entries("k"), fence=mine.fence(), present=["a", "j"]) == []
    )
    before = await look(driver, TASK)
    for present in (["z"], ["a", "z"]):
        with pytest.raises(PreconditionFailedError):
            await driver.append(TASK, "api", entries("l"), fence=mine.fence(), present=present)
    assert await look(driver, TASK) == before
    fence = mine.fence()
    assert await driver.append(TASK, "api", [], fence=fence, present=["a", "k"]) == []
    assert (await _fence(driver, TASK)).seq == fence.seq


async def test_a_replaced_log_is_the_new_one_and_frees_the_other_ids(driver: Driver) -> None:
    mine = await claim(driver, TASK)
    await driver.append(TASK, "api", entries(*"abcdefghijklmnop"), fence=mine.fence())
    await driver.append(TASK, "user", entries("u"), fence=mine.fence())
    for ids in ("pa", "qrstuvwxyzabc", "", "b"):
        await driver.replace(TASK, "api", entries(*ids), fence=mine.fence())
        assert ids_of(await driver.load(TASK, "api")) == list(ids)
    assert await driver.append(TASK, "api", entries(*"acdefghij"), fence=mine.fence()) == []
    assert ids_of(await driver.load(TASK, "api")) == list("bacdefghij")
    assert ids_of(await driver.load(TASK, "user")) == ["u"]


async def test_removing_keeps_the_fence_and_the_claim_may_write_again(driver: Driver) -> None:
    mine = await claim(driver, TASK)
    await driver.write(TASK, "state", b"s" * 99, fence=mine.fence(), index=Index("p", "s", 1))
    await driver.append(TASK, "api", entries(*"abcdefghijklmnop"), fence=mine.fence())
    fence = mine.fence()
    await driver.remove(TASK, fence=fence)
    assert (await look(driver, TASK)).is_empty
    assert await _fence(driver, TASK) == StoredFence(*fence)
    assert await driver.append(TASK, "api", entries("b"), fence=mine.fence()) == []
    await driver.write(TASK, "state", b"t", fence=mine.fence())
    value = await driver.read(TASK, "state")
    assert (value.data, value.parent) == (b"t", "p")


async def test_large_values_and_batches_are_kept_whole(driver: Driver) -> None:
    rng = random.Random(3)
    state, message = rng.randbytes(9 * 2**20), rng.randbytes(9 * 2**20)
    batch = [Entry(f"b{number}", rng.randbytes(300_000)) for number in range(20)]
    await driver.write(TASK, "state", state, fence=None)
    await driver.append(TASK, "api", [Entry("big", message)], fence=None)
    await driver.append(TASK, "api", batch, fence=None)
    await driver.append(TASK, "api", entries("small"), fence=None)
    assert (await driver.read(TASK, "state")).data == state
    assert await driver.load(TASK, "api") == [Entry("big", message), *batch, *entries("small")]
    assert await driver.load(TASK, "api", last=2) == [batch[-1], *entries("small")]


async def test_a_scan_lists_every_match_once_and_goes_on_behind_an_id(driver: Driver) -> None:
    for number in range(40):
        index = Index("p" if number % 2 else None, f"s{number % 3}", number)
        await driver.write(
            Scope("task", f"t{number}"), "state", b"x" * number, fence=None, index=index
        )
    await driver.claim(Scope("task", "claimed"), "a" * 32)
    await driver.write(RUN, "checkpoint", b"c", fence=None, index=Index("p", None, 1))

    async def listed(where: Where, limit: int) -> list[str]:
        found: list[str] = []
        after: str | None = None
        for _ in range(100):
            page = await driver.scan("task", where=where, after=after, limit=limit)
            assert len(page.items) <= limit
            found += [item.id for item in page.items]
            assert all(
                item.value.data == b"x" * int(item.id[1:]) for item in page.items if item.value.data
            )
            if page.next is None:
                return found
            after = page.next
        raise AssertionError("endless")

    order = await listed(Where(), 1000)
    assert sorted(order) == sorted(f"t{number}" for number in range(40))
    for limit in (1, 3, 39, 40, 41):
        assert await listed(Where(), limit) == order
    for where, matches in (
        (Where(parent="p"), range(1, 40, 2)),
        (Where(status="s1"), range(1, 40, 3)),
        (Where(updated_before=7), range(7)),
        (Where("p", "s0", 30), range(3, 30, 6)),
    ):
        assert await listed(where, 4) == [name for name in order if int(name[1:]) in matches]
    with_empty = await listed(Where(with_empty=True), 7)
    assert set(with_empty) == {*order, "claimed"}
    place = order.index("t7")
    await driver.remove(Scope("task", "t7"), fence=None)
    await sweep_all(driver)
    page = await driver.scan("task", where=Where(), after="t7", limit=5)
    assert [item.id for item in page.items] == order[place + 1 : place + 6]


async def test_a_sweep_takes_tombstones_and_bare_claims_and_nothing_else(driver: Driver) -> None:
    mine = await claim(driver, TASK)
    await driver.append(TASK, "api", entries(*"abcdefghijklmnopq"), fence=mine.fence())
    await driver.remove(TASK, fence=mine.fence())
    await claim(driver, RUN)
    await driver.append(OTHER, "api", entries(*"abcdefghijklmnopq"), fence=None)
    kept = await look(driver, OTHER)
    assert await sweep_all(driver, older_than=3600.0) == (0, 0)
    assert (await sweep_all(driver, dry_run=True))[0] == 2
    assert await sweep_all(driver) == (2, 0)
    assert await driver.read(TASK, "state") == Value()
    assert await driver.read(RUN, "checkpoint") == Value()
    assert await look(driver, OTHER) == kept
    assert await sweep_all(driver) == (0, 0)


@pytest.mark.parametrize("driver", [kind for kind in KINDS if kind != "memory"], indirect=True)
async def test_a_call_of_a_slow_sweep_leaves_the_rest_to_the_next(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E6: however long a store takes, no call goes through hundreds of records."""
    monkeypatch.setattr("outlast.heads.sweeping._SECONDS", -1.0)
    for number in range(40):
        await claim(driver, Scope("task", f"t{number:02}"))
    first = await driver.sweep(older_than=0.0, limit=1000, dry_run=True, after=None)
    assert 0 < first.tombstones < 40
    assert first.next is not None
    assert await sweep_all(driver) == (40, 0)


async def test_epochs_and_versions_do_not_come_back_after_a_sweep(driver: Driver) -> None:
    epoch = version = 0
    for _ in range(3):
        old = await claim(driver, TASK)
        assert old.epoch > epoch
        epoch = old.epoch
        new_version = await driver.write(TASK, "state", b"s", fence=old.fence())
        assert new_version > version
        version = new_version
        await driver.remove(TASK, fence=old.fence())
        assert await sweep_all(driver) == (1, 0)
        with pytest.raises(FencedError) as caught:
            await driver.write(TASK, "state", b"late", fence=old.fence())
        assert caught.value.reason == "no_record"
        version = max(version, await driver.write(TASK, "state", b"unclaimed", fence=None))
        with pytest.raises(FencedError) as caught:
            await driver.write(TASK, "state", b"late", fence=old.fence())
        assert caught.value.reason == "lost"


@pytest.mark.parametrize(
    "kind", ["objects tiny", "objects together", "objects smallest", "file tiny"]
)
def test_random_mutations_do_what_they_do_in_memory(kind: str, tmp_path: Path) -> None:
    for seed in range(12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        _compare(MemoryDriver(namespace="n"), make(kind, folder), random.Random(seed))


def _compare(reference: Driver, driver: Driver, rng: random.Random) -> None:
    """Do the same to both, at random, and compare all answers."""

    async def both(name: str, *arguments: Any, **options: Any) -> Any:
        answers: list[Any] = []
        for one in (reference, driver):
            try:
                answer = await getattr(one, name)(*arguments, **options)
            except (FencedError, PreconditionFailedError) as error:
                answer = type(error), getattr(error, "reason", None)
            answers.append(_plain(answer))
        assert answers[0] == answers[1], (name, arguments, options)
        return answers[0]

    async def run() -> None:
        await driver.setup(create=True)
        scopes = [Scope("task", "a"), Scope("task", "b"), Scope("run", "a")]
        fences: dict[Scope, list[Fence]] = {scope: [] for scope in scopes}
        for number in range(250):
            scope = rng.choice(scopes)
            register = rng.choice(("state", "input")) if scope.kind == "task" else "checkpoint"
            fence = _some_fence(fences[scope], rng)
            data = rng.choice((None, b"", b"small", rng.randbytes(60)))
            batch = [
                Entry(entry_id, rng.randbytes(rng.choice((0, 5, 70))))
                for entry_id in rng.sample([f"m{name}" for name in range(60)], rng.randint(0, 5))
            ]
            log = rng.choice(("api", "user"))
            choice = rng.random()
            if choice < 0.1:
                claim_id = rng.choice("abcdef") * 32
                at_least = rng.choice((None, None, rng.randint(1, 50)))
                if_epoch = rng.choice((None, None, 0, rng.randint(1, 50)))
                if rng.random() < 0.3 and await _exists(reference, scope):
                    if_epoch = (await reference.read(scope, "state")).epoch
                await both(
                    "claim",
                    scope,
                    claim_id,
                    at_least=at_least,
                    if_epoch=if_epoch,
                    parent=rng.choice((None, "p")),
                )
                stored = await _fence(reference, scope) if await _exists(reference, scope) else None
                if stored is not None and stored.epoch:
                    fences[scope].append(Fence(*stored))
            elif choice < 0.3:
                index = Index(rng.choice((None, "p", "q")), rng.choice((None, "s")), number)
                await both("write", scope, register, data, fence=fence, index=index)
            elif choice < 0.75 and scope.kind == "task":
                present = rng.sample([f"m{name}" for name in range(60)], rng.choice((0, 0, 0, 1)))
                taken = {entry.id for entry in batch}
                present = [name for name in present if name not in taken]
                await both("append", scope, log, batch, fence=fence, present=present)
            elif choice < 0.8 and scope.kind == "task":
                await both("replace", scope, log, batch, fence=fence)
            elif choice < 0.83:
                await both("remove", scope, fence=fence)
            elif choice < 0.85:
                # Of records, sweeps leave other floors in each; of pieces, nothing is left over.
                assert await sweep_all(driver, older_than=3600.0) == (0, 0)
                page = await driver.sweep(older_than=0.0, limit=99, dry_run=False, after="piece|")
                assert page.debris == 0
            elif scope.kind == "task":
                last = rng.choice((None, 0, 1, 2, 7, 40))
                await both("load", scope, log, last=last)
                await both("load_data", scope, log, list, last=last)
            for name in ("state", "input") if scope.kind == "task" else ("checkpoint",):
                await both("read", scope, name)
        for scope in scopes:
            assert await look(reference, scope) == await look(driver, scope)
        assert (await sweep_all(reference))[0] == (await sweep_all(driver))[0]
        await driver.aclose()

    asyncio.run(run())


async def _exists(driver: Driver, scope: Scope) -> bool:
    register = "state" if scope.kind == "task" else "checkpoint"
    return (await driver.read(scope, register)).fence is not None


def _some_fence(fences: list[Fence], rng: random.Random) -> Fence | None:
    """None, the next of the newest claim, or one of an old claim or mutation."""
    if not fences or rng.random() < 0.15:
        return None
    if rng.random() < 0.85:
        newest = fences[-1]
        following = newest._replace(seq=newest.seq + rng.randint(1, 3), op=f"{rng.random()}")
        fences.append(following)
        return following
    return rng.choice(fences)


def _plain(answer: Any) -> Any:
    """An answer without what drivers may choose freely."""
    match answer:
        case Value():
            return answer.data, answer.fence, answer.parent
        case int():
            return None
        case _:
            return answer
