"""What a decision may rest on."""

import msgspec
import pytest
from file_kit import TASK, TINY, claim, entries, ids_of
from heads_kit import MemoryHeadDriver

from outlast.driver import Entry
from outlast.errors import FencedError

pytestmark = pytest.mark.file

CACHED = msgspec.structs.replace(TINY, cached_heads=8)


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
