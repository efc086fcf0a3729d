"""One claim_id is one claim, whatever is swept or dies in between (F1, F10)."""

import asyncio
import functools
import itertools
import logging
import random
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from file_kit import TASK, TINY, Claimed, claim, sweep_all
from heads_kit import MemoryHeadDriver, MemoryObjects

from outlast import TaskState
from outlast.contracts import Claim, DriverBackend
from outlast.driver import Scope
from outlast.errors import FencedError, OutlastError, UnavailableError
from outlast.heads import Floor, Head, key_of
from outlast.heads.encoding import decode_head, encode_head

pytestmark = pytest.mark.file

CACHED = msgspec.structs.replace(TINY, cached_heads=8)
OLD = 100.0
MINE, THEIRS = "a" * 32, "b" * 32


@functools.cache
def _neighbours(count: int) -> list[Scope]:
    """Tasks below one floor with `TASK`."""
    scopes = (Scope("task", f"other {number}") for number in itertools.count())
    bucket = key_of(TASK)[:7]
    found = (scope for scope in scopes if key_of(scope)[:7] == bucket)
    return list(itertools.islice(found, count))


async def _raise_floor(driver: MemoryHeadDriver, epoch: int, scope: Scope | None = None) -> None:
    """Sweep a record of another scope; young ones stay."""
    scope = scope or _neighbours(1)[0]
    await driver.claim(scope, THEIRS, at_least=epoch)
    _age(driver.store, scope)
    assert (await sweep_all(driver, older_than=OLD))[0] >= 1


def _age(store: MemoryObjects, scope: Scope) -> None:
    """Let the record be long unchanged."""
    key = key_of(scope)
    head = decode_head(store.objects.heads[key], scope, "here")
    head = msgspec.structs.replace(head, changed_at=0.0, version=head.version + 1)
    store.objects.heads[key] = encode_head(head)


def _stored(store: MemoryObjects, scope: Scope = TASK) -> Head:
    return decode_head(store.objects.heads[key_of(scope)], scope, "here")


@pytest.mark.parametrize("at_least", [None, 1, 3, 50])
@pytest.mark.parametrize("before", [0, 7, 20])
async def test_a_claim_is_the_same_whatever_others_are_swept(
    before: int, at_least: int | None
) -> None:
    driver = MemoryHeadDriver(CACHED)
    other = driver.sibling()
    if before:
        await _raise_floor(other, before)
    mine = Claimed(TASK, await driver.claim(TASK, MINE, at_least=at_least))
    assert mine.epoch == at_least or (at_least is None and mine.epoch > before)
    for epoch in (40, 60, 61):
        await _raise_floor(other, epoch)
        for client in (driver, other, driver.sibling()):
            for again in (None, at_least, mine.epoch + 9):
                assert (await client.claim(TASK, MINE, at_least=again)).epoch == mine.epoch
    await driver.write(TASK, "state", b"s", fence=mine.fence())
    assert (await other.claim(TASK, MINE)).epoch == mine.epoch


async def test_an_outside_number_goes_on_behind_a_claim_that_was_taken_up() -> None:
    driver = MemoryHeadDriver(CACHED)
    await _raise_floor(driver, 30)
    for attempt in (1, 2, 3):
        value = await driver.claim(TASK, f"{attempt:032}", at_least=attempt)
        assert value.epoch == attempt
        assert (await driver.sibling().claim(TASK, f"{attempt:032}")).epoch == attempt
    # Whoever leaves the number to the store gets one that was never used.
    assert (await driver.claim(TASK, THEIRS)).epoch > 30


@pytest.mark.parametrize("call", ["create", "floor", "announce", "list", "mark", "rise", "delete"])
@pytest.mark.parametrize("dies", [False, True], ids=["goes on", "dies"])
async def test_a_sweep_at_any_moment_of_a_claim_leaves_it_what_it_is(call: str, dies: bool) -> None:
    """The claim runs whole at each step of the sweep, which goes on or dies there."""
    step, count = {
        "create": ("read", 1),
        "floor": ("floor", 1),
        "announce": ("raise_floor", 1),
        "list": ("list_heads", 3),
        "mark": ("read_surely", 1),
        "rise": ("raise_floor", 2),
        "delete": ("delete", 1),
    }[call]
    driver, sweeper = (first := MemoryHeadDriver(CACHED)), first.sibling()
    gone = _neighbours(1)[0]
    await sweeper.claim(gone, THEIRS, at_least=9)
    _age(sweeper.store, gone)
    await driver.claim(_neighbours(2)[1], THEIRS)
    epochs: list[int] = []
    seen = 0

    async def meddle(name: str, key: str) -> None:
        nonlocal seen
        seen += name == step
        if name == step and seen == count:
            epochs.append((await driver.claim(TASK, MINE)).epoch)
            if dies:
                raise UnavailableError("the sweeper died")

    sweeper.store.before = meddle
    try:
        await sweep_all(sweeper, older_than=OLD)
    except UnavailableError:
        assert dies
    assert len(epochs) == 1
    for later in (10, 11, 12):
        assert (await driver.sibling().claim(TASK, MINE)).epoch == epochs[0]
        await _raise_floor(driver.sibling(), later + 90, _neighbours(3)[2])


async def test_a_sweep_marks_a_new_record_without_renewing_its_age() -> None:
    driver = MemoryHeadDriver(CACHED)
    await driver.claim(TASK, MINE)
    before = _stored(driver.store)
    await _raise_floor(driver.sibling(), 40)
    after = _stored(driver.store)
    assert (before.is_new, after.is_new) == (True, False)
    assert (before.changed_at, before.fence) == (after.changed_at, after.fence)


async def test_a_floor_that_an_older_version_raised_takes_no_epoch_twice() -> None:
    """It raised the epoch without marking records: nobody knows which claimers were told."""
    driver = MemoryHeadDriver(CACHED)
    mine = await driver.claim(TASK, MINE)
    await driver.store.raise_floor(key_of(TASK), Floor(5, 9))
    again = await driver.sibling().claim(TASK, MINE)
    assert again.epoch > max(mine.epoch, 5)
    assert (await driver.claim(TASK, MINE)).epoch == again.epoch


@pytest.mark.parametrize("seed", range(12))
async def test_under_random_faults_a_claim_id_has_one_epoch_and_no_epoch_two(seed: int) -> None:
    """Scopes below one floor live, are claimed by several processes at once, and are swept, while
    claims that were broken off arrive late.
    """
    rng = random.Random(seed)
    first = MemoryHeadDriver(CACHED)
    objects = first.store.objects
    living = 0

    def meddling(store: MemoryObjects) -> None:
        async def meddle(name: str, key: str) -> None:
            for _ in range(rng.choice((0, 0, 1, 3, 20))):
                await asyncio.sleep(0)
            if rng.random() < 0.05:
                rng.choice((store.lose, store.drop)).append(rng.choice(("swap", "create")))
            if rng.random() < 0.05:
                store.refuse.append(rng.choice(("read", "floor", "swap", "raise_floor")))

        store.before = meddle

    async def arrive_late(scope: Scope, claim_id: str) -> None:
        """A claim whose process dies behind its creation, which takes long to arrive."""
        driver = first.sibling()

        async def meddle(name: str, key: str) -> None:
            if name == "create":
                for _ in range(rng.randrange(600)):
                    await asyncio.sleep(0)
            elif name != "read":
                raise UnavailableError("its process has died")

        driver.store.before = meddle
        try:
            await driver.claim(scope, claim_id, at_least=None)
        except UnavailableError:
            return

    async def claim_once(scope: Scope, claim_id: str) -> int:
        driver = first.sibling()
        meddling(driver.store)
        while True:
            try:
                return (await driver.claim(scope, claim_id)).epoch
            except OutlastError:
                continue

    async def live(scope: Scope, tasks: asyncio.TaskGroup) -> None:
        nonlocal living
        used = [0]
        for number in range(6):
            claim_id = f"{number:032}"
            if rng.random() < 0.7:
                tasks.create_task(arrive_late(scope, f"{number + 1:032}"))
            epochs: set[int] = set()
            for _ in range(3):
                calls = (claim_once(scope, claim_id) for _ in range(rng.randint(1, 3)))
                epochs |= set(await asyncio.gather(*calls))
                for _ in range(rng.randrange(60)):
                    await asyncio.sleep(0)
            assert len(epochs) == 1, f"claim {claim_id} had epochs {epochs}, after {used}"
            assert min(epochs) > used[-1], f"epoch {epochs} after {used}"
            used += epochs
            while (data := objects.heads.get(key_of(scope))) is not None:
                head = decode_head(data, scope, "here")
                if head.fence.claim_id != claim_id:
                    break  # The next life has begun.
                if head.changed_at:
                    _age(first.store, scope)
                await asyncio.sleep(0)
        living -= 1

    async def sweep() -> None:
        sweeper = first.sibling()
        meddling(sweeper.store)
        while living:
            try:
                await sweep_all(sweeper, older_than=OLD)
            except OutlastError:
                continue

    async with asyncio.TaskGroup() as tasks:
        for scope in (TASK, *_neighbours(4)):
            living += 1
            tasks.create_task(live(scope, tasks))
        for _ in range(2):
            tasks.create_task(sweep())


@pytest.mark.parametrize("name", ["check_claim", "save_task_state", "update_task_state", "delete"])
async def test_every_call_of_a_swept_claim_says_that_its_record_is_gone(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while a claimer raises a new record above the floor; no fence was lost (F13)."""
    driver = MemoryHeadDriver(CACHED)
    swept: Claimed | None = None
    for _ in range(5):
        swept = await claim(driver, TASK)
    assert swept is not None
    await sweep_all(driver)
    owner = Claim(TASK, swept.epoch, swept.fence().claim_id)
    async with DriverBackend(driver.sibling()) as backend:
        tasks = backend.persistence
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "check_claim": lambda: tasks.check_claim(owner),
            "save_task_state": lambda: tasks.save_task_state("t", TaskState(id="t"), claim=owner),
            "update_task_state": lambda: tasks.update_task_state(
                "t", {"retry_count": 1}, claim=owner
            ),
            "delete": lambda: tasks.delete_task("t", claim=owner),
        }
        refusals: list[FencedError] = []

        async def meddle(called: str, key: str) -> None:
            if called == "floor" and not refusals:
                with pytest.raises(FencedError) as caught:
                    await calls[name]()
                refusals.append(caught.value)

        claimer = driver.sibling()
        claimer.store.before = meddle
        with caplog.at_level(logging.ERROR, "outlast"):
            assert (await claimer.claim(TASK, MINE)).epoch > owner.epoch
    assert [error.reason for error in refusals] == ["no_record"]
    assert not [record for record in caplog.records if record.name.startswith("outlast")]
