"""What is read for a load, and what a decision may rest on."""

import msgspec
import pytest
from file_kit import TASK, TINY, Claimed, claim, entries, ids_of
from heads_kit import MemoryHeadDriver

from outlast.driver import Entry
from outlast.errors import CorruptDataError, FencedError
from outlast.heads import Layout

pytestmark = pytest.mark.file

CACHED = msgspec.structs.replace(TINY, cached_heads=8)


async def _filled(layout: Layout, count: int) -> tuple[MemoryHeadDriver, Claimed]:
    """A driver that remembers the head of a log, and reads pieces with heads."""
    driver = MemoryHeadDriver(layout)
    driver.store.gathers = True
    mine = await claim(driver, TASK)
    for number in range(count):
        batch = entries(f"m{number:03}", size=30)
        await driver.append(TASK, "api", batch, fence=mine.fence())
    return driver, mine


async def test_a_load_behind_a_claim_or_a_write_is_one_round_trip() -> None:
    """Head and pieces at once; without a guess, the head comes first."""
    driver, _ = await _filled(Layout(), 100)
    other = driver.sibling()
    other.store.gathers = True
    for reader, first in ((driver, ["read_with"]), (other, ["read", "read_pieces"])):
        reader.store.calls.clear()
        assert len(await reader.load(TASK, "api")) == 100
        assert reader.store.calls == first
    await other.claim(TASK, "b" * 32)
    other.store.calls.clear()
    assert len(await other.load_data(TASK, "api", list)) == 100
    assert other.store.calls == ["read_with"]
    for last in (0, 1):
        driver.store.calls.clear()
        assert len(await driver.load(TASK, "api", last=last)) == last
        assert driver.store.calls == ["read"], "the tail is in the head"


async def test_a_wrong_guess_costs_a_round_trip_and_nothing_else() -> None:
    """Others appended, folded pieces, replaced the log, or removed it."""
    driver, mine = await _filled(CACHED, 20)
    other = driver.sibling()
    expected = await driver.load(TASK, "api")
    for number in range(40):
        batch = entries(f"n{number:03}", size=30)
        await other.append(TASK, "api", batch, fence=mine.fence())
        expected += batch
        assert await driver.load(TASK, "api") == expected
        assert await driver.load(TASK, "api", last=7) == expected[-7:]
    replaced = entries(*"zyxwvu", size=60)
    await other.replace(TASK, "api", replaced, fence=mine.fence())
    assert await driver.load(TASK, "api") == replaced
    await other.remove(TASK, fence=mine.fence())
    assert await driver.load(TASK, "api") == []
    driver.store.objects.heads.clear()
    assert await driver.load(TASK, "api") == []


async def test_a_piece_that_did_not_come_along_is_looked_for_before_it_is_called_lost() -> None:
    driver, _ = await _filled(CACHED, 20)
    driver.store.objects.pieces.clear()
    driver.store.calls.clear()
    with pytest.raises(CorruptDataError, match="not there"):
        await driver.load(TASK, "api")
    assert driver.store.calls == ["read_with", "read_pieces", "read", "read_pieces"]


async def test_a_server_that_is_behind_refuses_nobody() -> None:
    """F4: it does not know of a claim that another one accepted."""
    first = MemoryHeadDriver(CACHED)
    old = await claim(first, TASK)
    await first.append(TASK, "api", entries("a"), fence=old.fence())
    before = dict(first.store.objects.heads)
    new = await claim(first, TASK)
    for behind in (before, {}):
        driver = first.sibling()
        driver.store.may_be_behind, driver.store.behind = True, behind
        name = f"b{len(behind)}"
        assert await driver.append(TASK, "api", entries(name), fence=new.fence()) == []
        assert name in ids_of(await first.load(TASK, "api"))
    driver.store.behind = before
    assert (await driver.claim(TASK, old.fence().claim_id)).fence != old.fence()
    with pytest.raises(FencedError) as caught:
        await driver.write(TASK, "state", b"late", fence=new.fence())
    assert caught.value.reason == "superseded"


async def test_a_server_that_is_behind_does_not_say_that_all_is_done() -> None:
    """A1, A8: it still has an entry that a save left out, and an append of it is no repetition."""
    first = MemoryHeadDriver(CACHED)
    mine = await claim(first, TASK)
    again = Entry("a", b"the same")
    await first.append(TASK, "api", [again], fence=mine.fence())
    before = dict(first.store.objects.heads)
    await first.replace(TASK, "api", [], fence=mine.fence())
    driver = first.sibling()
    driver.store.may_be_behind, driver.store.behind = True, before
    assert await driver.append(TASK, "api", [again], fence=mine.fence()) == []
    assert await first.load(TASK, "api") == [again]


async def test_only_what_changes_nothing_is_read_twice() -> None:
    """P1: where the store compares anyway, a read that may be behind will do."""
    first = MemoryHeadDriver(CACHED)
    mine = await claim(first, TASK)
    driver = first.sibling()
    driver.store.may_be_behind = True
    fence = mine.fence()
    await driver.append(TASK, "api", entries("a"), fence=fence)
    assert driver.store.calls == ["read", "swap"]
    driver.store.calls.clear()
    await driver.append(TASK, "api", entries("a"), fence=fence)
    assert driver.store.calls == ["read_surely"], "a remembered head decides as little"
    driver.store.calls.clear()
    await driver.claim(TASK, mine.fence().claim_id)
    assert driver.store.calls == ["read", "read_surely"]
