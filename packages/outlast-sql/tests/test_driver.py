"""Every sentence of `Driver`'s docstrings, for all ways to open SQLite and for the reference."""

from collections.abc import Iterable

import pytest
from sql_support import Owner, claim_id

from outlast.driver import (
    Decoding,
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

pytestmark = [pytest.mark.sql, pytest.mark.sqlite]

TASK = Scope("task", "t")
RUN = Scope("run", "t")
E1, E2, E3 = Entry("1", b"one"), Entry("2", b"two"), Entry("3", b"three")


async def claimed(driver: Driver, scope: Scope = TASK, number: int = 1) -> Owner:
    value = await driver.claim(scope, claim_id(number))
    assert value.fence is not None
    return Owner(value.fence.epoch, value.fence.claim_id)


async def ids(driver: Driver, where: Where = Where(), limit: int = 100) -> list[str]:  # noqa: B008
    page = await driver.scan("task", where=where, after=None, limit=limit)
    return [item.id for item in page.items]


async def sweep(driver: Driver, *, older_than: float = 0.0, dry_run: bool = False) -> int:
    page = await driver.sweep(older_than=older_than, limit=100, dry_run=dry_run, after=None)
    assert page.next is None
    return page.tombstones


class TestClaim:
    async def test_epochs_grow_by_one_and_ids_are_kept(self, driver: Driver) -> None:
        """The claim that is returned is the one that is stored."""
        for number in (1, 2, 3):
            value = await driver.claim(TASK, claim_id(number))
            assert value.fence == StoredFence(number, claim_id(number))
            assert await driver.read(TASK, "state") == value

    async def test_a_claim_returns_the_primary_register_unchanged(self, driver: Driver) -> None:
        """F3: claiming changes no data; F5: it shows what was there in that step."""
        owner = await claimed(driver)
        version = await driver.write(TASK, "state", b"s", fence=owner.fence(), index=Index())
        value = await driver.claim(TASK, claim_id(2))
        assert (value.data, value.version) == (b"s", version)

    async def test_the_stored_claim_id_claims_nothing_new(self, driver: Driver) -> None:
        """F10: the counter goes on where the store is, and at_least is not looked at."""
        owner = await claimed(driver)
        fence = owner.fence()
        await driver.append(TASK, "api", [E1], fence=fence)
        value = await driver.claim(TASK, owner.claim_id, at_least=1)
        assert value.fence == StoredFence(*fence)

    async def test_a_new_claim_resets_the_counter(self, driver: Driver) -> None:
        """The seq of the former owner is nothing to the new one."""
        owner = await claimed(driver)
        for _ in range(3):
            await driver.append(TASK, "api", [], fence=owner.fence())
        successor = await claimed(driver, number=2)
        await driver.append(TASK, "api", [E1], fence=successor.fence())

    async def test_at_least_is_taken_if_it_is_larger(self, driver: Driver) -> None:
        """F9: then the epoch is that number; otherwise the claim is refused."""
        value = await driver.claim(TASK, claim_id(1), at_least=2**52)
        assert value.epoch == 2**52
        with pytest.raises(FencedError, match="at_least") as caught:
            await driver.claim(TASK, claim_id(2), at_least=2**52)
        assert caught.value.stored_epoch == 2**52
        assert (await driver.read(TASK, "state")).fence == StoredFence(2**52, claim_id(1))

    async def test_a_claim_may_depend_on_an_epoch(self, driver: Driver) -> None:
        """F1: the next one is the store's, and what is refused changes nothing."""
        for seen, reason in ((3, "no_record"), (0, None), (0, "superseded"), (2, "no_record")):
            if reason is None:
                assert (await driver.claim(TASK, claim_id(1), if_epoch=seen)).epoch == 1
                continue
            with pytest.raises(FencedError, match=f"if_epoch={seen}") as caught:
                await driver.claim(TASK, claim_id(2), if_epoch=seen, parent="p")
            assert caught.value.reason == reason
        assert (await driver.read(TASK, "state")).fence == StoredFence(1, claim_id(1))
        assert (await driver.read(TASK, "state")).parent is None
        assert (await driver.claim(TASK, claim_id(2), if_epoch=1)).epoch == 2

    async def test_parent_is_kept_and_replaced_by_a_claim(self, driver: Driver) -> None:
        """A claimed run without data is found by its thread."""
        await driver.claim(RUN, claim_id(1), parent="thread")
        value = await driver.claim(RUN, claim_id(2))
        assert value.parent == "thread"
        page = await driver.scan(
            "run", where=Where(parent="thread", with_empty=True), after=None, limit=9
        )
        assert [item.id for item in page.items] == ["t"]
        assert (await driver.claim(RUN, claim_id(3), parent="other")).parent == "other"

    async def test_kinds_do_not_meet(self, driver: Driver) -> None:
        """A run of the same id as a task is another scope."""
        await claimed(driver)
        assert await driver.read(RUN, "checkpoint") == Value()


class TestFence:
    @pytest.mark.parametrize(
        ("fence", "reason"),
        [
            (Fence(1, claim_id(1), 9, "0" * 16), "superseded"),
            (Fence(3, claim_id(3), 9, "0" * 16), "lost"),
            (Fence(2, claim_id(9), 9, "0" * 16), "lost"),
            (Fence(2, claim_id(2), 0, "0" * 16), "stale"),
            (None, "claimed"),
        ],
        ids=["older", "newer", "other id", "late", "unclaimed"],
    )
    async def test_every_mutation_is_refused(
        self, driver: Driver, fence: Fence | None, reason: str
    ) -> None:
        """F2, F6, F8: with the reason and the stored epoch, and nothing is changed."""
        await claimed(driver)
        owner = await claimed(driver, number=2)
        await driver.write(TASK, "state", b"s", fence=owner.fence(), index=Index(status="x"))
        await driver.append(TASK, "api", [E1], fence=owner.fence())
        before = await driver.read(TASK, "state")
        for call in (
            driver.write(TASK, "state", b"new", fence=fence, index=Index()),
            driver.write(TASK, "state", None, fence=fence),
            driver.write(TASK, "state", b"new", fence=fence, index=Index(), if_version=99),
            driver.append(TASK, "api", [E2], fence=fence),
            driver.append(TASK, "api", [E1], fence=fence),
            driver.append(TASK, "api", [E2], fence=fence, present=["absent"]),
            driver.replace(TASK, "api", [], fence=fence),
            driver.remove(TASK, fence=fence),
        ):
            with pytest.raises(FencedError) as caught:
                await call
            assert caught.value.reason == reason
            assert caught.value.stored_epoch == 2
            assert isinstance(caught.value, StaleWriteError) == (reason == "stale")
        assert (await driver.read(TASK, "state"))._replace(age=0) == before._replace(age=0)
        assert await driver.load(TASK, "api") == [E1]

    async def test_a_claimed_mutation_creates_nothing(self, driver: Driver) -> None:
        """F12: without a record it is refused."""
        fence = Fence(1, claim_id(1), 1, "0" * 16)
        for call in (
            driver.write(TASK, "state", b"s", fence=fence, index=Index()),
            driver.append(TASK, "api", [E1], fence=fence),
            driver.replace(TASK, "api", [E1], fence=fence),
            driver.remove(TASK, fence=fence),
        ):
            with pytest.raises(FencedError) as caught:
                await call
            assert caught.value.reason == "no_record"
        assert await driver.read(TASK, "state") == Value()

    async def test_a_repetition_has_one_effect_and_succeeds(self, driver: Driver) -> None:
        """F6: the same seq and op again is the retry after a lost reply."""
        owner = await claimed(driver)
        fence = owner.fence()
        version = await driver.write(TASK, "state", b"s", fence=fence, index=Index())
        assert await driver.write(TASK, "state", b"s", fence=fence, index=Index()) == version
        again = driver.write(TASK, "state", b"s", fence=fence, index=Index(), if_version=0)
        assert await again == version
        fence = owner.fence()
        for _ in range(2):
            assert await driver.append(TASK, "api", [E1], fence=fence) == []
        fence = owner.fence()
        for _ in range(2):
            await driver.replace(TASK, "api", [E2], fence=fence)
        assert await driver.load(TASK, "api") == [E2]
        fence = owner.fence()
        await driver.remove(TASK, fence=fence)
        emptied = (await driver.read(TASK, "state")).version
        await driver.remove(TASK, fence=fence)
        assert (await driver.read(TASK, "state")).version == emptied

    async def test_a_mutation_that_changes_nothing_stores_its_seq(self, driver: Driver) -> None:
        """F6: an append without entries moves the fence; gaps are fine."""
        owner = await claimed(driver)
        owner.seq = 40
        fence = owner.fence()
        await driver.append(TASK, "api", [], fence=fence)
        assert (await driver.read(TASK, "state")).fence == StoredFence(*fence)

    async def test_unclaimed_writes_make_a_record_that_a_claim_keeps(self, driver: Driver) -> None:
        """F8: epoch 0 has no owner; the claim that comes takes the data over."""
        await driver.write(TASK, "state", b"s", fence=None, index=Index())
        await driver.append(TASK, "api", [E1], fence=None)
        assert (await driver.read(TASK, "state")).fence == StoredFence()
        value = await driver.claim(TASK, claim_id(1))
        assert (value.data, value.epoch) == (b"s", 1)
        assert await driver.load(TASK, "api") == [E1]
        with pytest.raises(FencedError, match="claimed"):
            await driver.append(TASK, "api", [E2], fence=None)


class TestRegister:
    async def test_versions_grow_with_every_write_deletions_included(self, driver: Driver) -> None:
        """S1: and are those of the register alone."""
        owner = await claimed(driver)
        seen = [(await driver.read(TASK, "state")).version]
        for data in (b"a", b"b", None, b"c"):
            version = await driver.write(TASK, "state", data, fence=owner.fence(), index=Index())
            value = await driver.read(TASK, "state")
            assert (value.version, value.data) == (version, data)
            seen.append(version)
            await driver.write(TASK, "input", b"i", fence=owner.fence())
            assert (await driver.read(TASK, "state")).version == version
        await driver.remove(TASK, fence=owner.fence())
        seen.append((await driver.read(TASK, "state")).version)
        assert seen == sorted(set(seen))

    async def test_if_version_decides_whether_it_is_written(self, driver: Driver) -> None:
        """S1: by the version, after the fence; nothing changes otherwise, the seq neither."""
        owner = await claimed(driver)
        first = (await driver.read(TASK, "state")).version
        fence = owner.fence()
        version = await driver.write(
            TASK, "state", b"a", fence=fence, index=Index(), if_version=first
        )
        for wrong in (first, version + 1):
            with pytest.raises(PreconditionFailedError):
                await driver.write(
                    TASK, "state", b"b", fence=owner.fence(), index=Index(), if_version=wrong
                )
        value = await driver.read(TASK, "state")
        assert (value.data, value.fence) == (b"a", StoredFence(*fence))

    async def test_if_version_zero_is_a_scope_without_a_record(self, driver: Driver) -> None:
        """A first write can insist on being the first."""
        with pytest.raises(PreconditionFailedError):
            await driver.write(TASK, "state", b"a", fence=None, index=Index(), if_version=1)
        assert await driver.read(TASK, "state") == Value()
        await driver.write(TASK, "state", b"a", fence=None, index=Index(), if_version=0)
        with pytest.raises(PreconditionFailedError):
            await driver.write(TASK, "state", b"b", fence=None, index=Index(), if_version=0)

    async def test_emptying_without_a_record_makes_none(self, driver: Driver) -> None:
        """It returns 0, and the scope stays unknown."""
        assert await driver.write(TASK, "state", None, fence=None) == 0
        assert await driver.read(TASK, "state") == Value()
        assert await ids(driver, Where(with_empty=True)) == []

    async def test_the_index_comes_with_the_primary_register(self, driver: Driver) -> None:
        """A write replaces all attributes, emptying keeps the parent, others leave them alone."""
        owner = await claimed(driver)
        index = Index(parent="p", status="running", updated_at=7)
        await driver.write(TASK, "state", b"s", fence=owner.fence(), index=index)
        await driver.write(TASK, "input", b"i", fence=owner.fence())
        assert await ids(driver, Where(parent="p", status="running", updated_before=8)) == ["t"]
        await driver.write(TASK, "state", None, fence=owner.fence())
        assert await ids(driver, Where(parent="p", with_empty=True)) == ["t"]
        assert await ids(driver, Where(status="running", with_empty=True)) == []
        await driver.write(TASK, "state", b"s", fence=owner.fence(), index=Index(status="done"))
        assert await ids(driver, Where(parent="p")) == []
        assert await ids(driver, Where(status="done")) == ["t"]

    async def test_age_counts_from_the_write_of_the_data(self, driver: Driver) -> None:
        """C6: claims and writes elsewhere do not make it younger; without data it is 0."""
        owner = await claimed(driver)
        assert (await driver.read(TASK, "state")).age == 0.0
        await driver.write(TASK, "state", b"s", fence=owner.fence(), index=Index())
        ages = [(await driver.read(TASK, "state")).age]
        await driver.append(TASK, "api", [E1], fence=owner.fence())
        ages.append((await driver.read(TASK, "state")).age)
        ages.append((await driver.claim(TASK, claim_id(2))).age)
        assert ages == sorted(ages)
        assert 0.0 <= ages[0] <= ages[-1] < 60.0

    async def test_registers_are_independent(self, driver: Driver) -> None:
        """S4: emptying one leaves the other."""
        for register in ("state", "input"):
            await driver.write(TASK, register, register.encode(), fence=None)
        await driver.write(TASK, "state", None, fence=None)
        assert (await driver.read(TASK, "state")).data is None
        assert (await driver.read(TASK, "input")).data == b"input"


class TestLog:
    async def test_order_is_append_order_and_batches_stay_together(self, driver: Driver) -> None:
        """A4."""
        await driver.append(TASK, "api", [E3], fence=None)
        await driver.append(TASK, "user", [E2], fence=None)
        await driver.append(TASK, "api", [E2, E1], fence=None)
        assert await driver.load(TASK, "api") == [E3, E2, E1]
        assert await driver.load(TASK, "user") == [E2]

    @pytest.mark.parametrize(
        ("last", "expected"), [(None, 3), (0, 0), (1, 1), (2, 2), (3, 3), (99, 3)]
    )
    async def test_last_gives_the_newest_in_order(
        self, driver: Driver, last: int | None, expected: int
    ) -> None:
        """A10."""
        await driver.append(TASK, "api", [E1, E2, E3], fence=None)
        assert await driver.load(TASK, "api", last=last) == [E1, E2, E3][3 - expected :]
        assert await driver.load(Scope("task", "none"), "api", last=last) == []

    async def test_a_known_id_changes_nothing_and_returns_what_is_stored(
        self, driver: Driver
    ) -> None:
        """A8: of a batch all known ones, in its order; the seq is not stored."""
        owner = await claimed(driver)
        await driver.append(TASK, "api", [E1, E2], fence=owner.fence())
        before = await driver.read(TASK, "state")
        batch = [Entry("2", b"other"), E3, Entry("1", b"other")]
        assert await driver.append(TASK, "api", batch, fence=owner.fence()) == [E2, E1]
        assert await driver.read(TASK, "state") == before
        assert await driver.load(TASK, "api") == [E1, E2]
        assert await driver.load(TASK, "user") == []

    async def test_present_must_still_be_there(self, driver: Driver) -> None:
        """The step that appends also checks the ids that were left out."""
        await driver.append(TASK, "api", [E1], fence=None)
        assert await driver.append(TASK, "api", [E2], fence=None, present=["1"]) == []
        with pytest.raises(PreconditionFailedError):
            await driver.append(TASK, "api", [E3], fence=None, present=["1", "9"])
        with pytest.raises(PreconditionFailedError):
            await driver.append(Scope("task", "new"), "api", [E3], fence=None, present=["1"])
        assert await driver.load(TASK, "api") == [E1, E2]
        assert await driver.read(Scope("task", "new"), "state") == Value()

    async def test_nothing_appended_to_nothing_makes_no_record(self, driver: Driver) -> None:
        """Neither does replacing nothing by nothing."""
        assert await driver.append(TASK, "api", [], fence=None) == []
        await driver.replace(TASK, "api", [], fence=None)
        await driver.remove(TASK, fence=None)
        assert await driver.read(TASK, "state") == Value()

    async def test_replace_sets_the_whole_log_and_frees_ids(self, driver: Driver) -> None:
        """A7, A8: what a replacement left out may be appended again."""
        await driver.replace(TASK, "api", [E1, E2], fence=None)
        await driver.append(TASK, "user", [E1], fence=None)
        await driver.replace(TASK, "api", [E3, E2], fence=None)
        assert await driver.load(TASK, "api") == [E3, E2]
        await driver.append(TASK, "api", [Entry("1", b"anew")], fence=None)
        assert await driver.load(TASK, "api") == [E3, E2, Entry("1", b"anew")]
        await driver.replace(TASK, "api", [], fence=None)
        assert await driver.load(TASK, "api") == []
        assert await driver.load(TASK, "user") == [E1]

    @pytest.mark.parametrize("last", [None, 2])
    async def test_data_come_whole_or_behind_their_header(
        self, driver: Driver, last: int | None
    ) -> None:
        """`load_data` gives a `Decoding` either, and whole data where a header is not there."""
        owner = await claimed(driver)
        entries = [Entry(f"{number}", b"head\n%d" % number) for number in range(3)]
        await driver.append(TASK, "api", entries, fence=owner.fence())
        wanted = [0, 1, 2] if last is None else [1, 2]
        decode = Numbers()
        assert await driver.load_data(TASK, "api", decode, last=last) == wanted
        for strange in (b"HEAD\n3", b"head", b"", b"head\nx"):
            await driver.append(TASK, "api", [Entry("3", strange)], fence=owner.fence())
            with pytest.raises(ValueError, match="strange"):
                await driver.load_data(TASK, "api", decode, last=last)
            await driver.replace(TASK, "api", entries, fence=owner.fence())
        assert await driver.load_data(TASK, "user", decode, last=last) == []


class Numbers(Decoding[list[int]]):
    """Decodes a header and a number."""

    header = b"head\n"

    def __call__(self, data: Iterable[bytes], /) -> list[int]:
        parts = [each.partition(self.header) for each in data]
        if not all(header and number.isdigit() for _, header, number in parts):
            raise ValueError("strange")
        return [int(number) for _, _, number in parts]

    def decode_rest(self, rest: Iterable[bytes | None], /) -> list[int] | None:
        numbers = list(rest)
        known = [int(number) for number in numbers if number is not None and number.isdigit()]
        return known if len(known) == len(numbers) else None


class TestRemove:
    async def test_everything_of_the_scope_goes_and_the_fence_stays(self, driver: Driver) -> None:
        """F7, C1: and nothing of another."""
        other = Scope("task", "t1")
        owner = await claimed(driver)
        for scope, number in ((TASK, 1), (other, 2)):
            its_owner = owner if scope == TASK else await claimed(driver, other, number)
            index = Index("p", "x", 5)
            await driver.write(scope, "state", b"s", fence=its_owner.fence(), index=index)
            await driver.write(scope, "input", b"i", fence=its_owner.fence())
            await driver.append(scope, "api", [E1], fence=its_owner.fence())
            await driver.append(scope, "user", [E2], fence=its_owner.fence())
        fence = owner.fence()
        await driver.remove(TASK, fence=fence)
        for register in ("state", "input"):
            value = await driver.read(TASK, register)
            assert (value.data, value.fence, value.parent) == (None, StoredFence(*fence), "p")
            assert (await driver.read(other, register)).data is not None
        for log in ("api", "user"):
            assert await driver.load(TASK, log) == []
            assert await driver.load(other, log) != []
        assert await ids(driver) == ["t1"]
        assert await ids(driver, Where(status="x", with_empty=True)) == ["t1"]

    async def test_the_owner_may_write_again_and_a_late_write_may_not(self, driver: Driver) -> None:
        """F7."""
        owner = await claimed(driver)
        late = owner.fence()
        await driver.remove(TASK, fence=owner.fence())
        with pytest.raises(StaleWriteError):
            await driver.append(TASK, "api", [E1], fence=late)
        await driver.append(TASK, "api", [E2], fence=owner.fence())
        assert await driver.load(TASK, "api") == [E2]


class TestScan:
    async def test_pages_join_to_the_whole_in_a_fixed_order(self, driver: Driver) -> None:
        """L1, L2, L4: whatever the limit, each id once."""
        names = sorted(f"t{number}" for number in range(25))
        for name in reversed(names):
            await driver.write(Scope("task", name), "state", b"", fence=None, index=Index())
        for limit in (1, 7, 25, 100):
            found: list[str] = []
            after = None
            while True:
                page = await driver.scan("task", where=Where(), after=after, limit=limit)
                assert len(page.items) <= limit
                found += [item.id for item in page.items]
                after = page.next
                if after is None:
                    break
            assert found == names

    async def test_it_goes_on_behind_an_id_that_is_gone(self, driver: Driver) -> None:
        """L4."""
        for name in ("a", "c"):
            await driver.write(Scope("task", name), "state", b"", fence=None, index=Index())
        page = await driver.scan("task", where=Where(), after="b", limit=9)
        assert [item.id for item in page.items] == ["c"]

    async def test_filters_are_exact_and_combine(self, driver: Driver) -> None:
        """L3: the value comes with the attributes that matched."""
        for number in range(12):
            index = Index(
                parent=("p", "P", None)[number % 3],
                status=("running", "paused")[number % 2],
                updated_at=number,
            )
            await driver.write(
                Scope("task", f"{number:02}"), "state", b"%d" % number, fence=None, index=index
            )
        assert await ids(driver, Where(parent="p")) == ["00", "03", "06", "09"]
        assert await ids(driver, Where(parent="p", status="running")) == ["00", "06"]
        assert await ids(driver, Where(status="running", updated_before=4)) == ["00", "02"]
        assert await ids(driver, Where(updated_before=0)) == []
        assert await ids(driver, Where(status="Running")) == []
        page = await driver.scan("task", where=Where(parent="p"), after="03", limit=1)
        assert [(item.id, item.value.data, item.value.parent) for item in page.items] == [
            ("06", b"6", "p")
        ]

    async def test_an_item_is_what_read_returns(self, driver: Driver) -> None:
        """With its version and fence."""
        owner = await claimed(driver)
        await driver.write(TASK, "state", b"s", fence=owner.fence(), index=Index("p"))
        (item,) = (await driver.scan("task", where=Where(), after=None, limit=9)).items
        assert item.value._replace(age=0) == (await driver.read(TASK, "state"))._replace(age=0)

    async def test_empty_records_are_listed_only_if_asked_for(self, driver: Driver) -> None:
        """Claimed only, deleted, or with data elsewhere but in the primary register."""
        await driver.claim(Scope("task", "claimed"), claim_id(1))
        await driver.append(Scope("task", "logged"), "api", [E1], fence=None)
        await driver.write(Scope("task", "deleted"), "state", b"s", fence=None, index=Index())
        await driver.remove(Scope("task", "deleted"), fence=None)
        assert await ids(driver) == []
        assert await ids(driver, Where(with_empty=True)) == ["claimed", "deleted", "logged"]


class TestSweep:
    async def test_only_records_without_data_go(self, driver: Driver) -> None:
        """C4, C5: tombstones and claims without data."""
        await driver.claim(Scope("task", "claimed"), claim_id(1))
        await driver.claim(Scope("run", "claimed"), claim_id(1))
        for name, call in (
            ("state", driver.write(Scope("task", "state"), "state", b"s", fence=None)),
            ("input", driver.write(Scope("task", "input"), "input", b"s", fence=None)),
            ("api", driver.append(Scope("task", "api"), "api", [E1], fence=None)),
            ("user", driver.replace(Scope("task", "user"), "user", [E1], fence=None)),
        ):
            await call
            await driver.claim(Scope("task", name), claim_id(2))
        assert await sweep(driver, dry_run=True) == 2
        assert await ids(driver, Where(with_empty=True)) == [
            "api",
            "claimed",
            "input",
            "state",
            "user",
        ]
        assert await sweep(driver) == 2
        assert await sweep(driver) == 0
        assert await ids(driver, Where(with_empty=True)) == ["api", "input", "state", "user"]

    @pytest.mark.parametrize(
        "how",
        ["remove", "write", "replace", "each in turn"],
    )
    async def test_whatever_took_the_last_data_leaves_a_tombstone(
        self, driver: Driver, how: str
    ) -> None:
        """The record counts as empty in the very step that empties it."""
        owner = await claimed(driver)
        if how in {"write", "each in turn"}:
            await driver.write(TASK, "state", b"s", fence=owner.fence(), index=Index())
            await driver.write(TASK, "input", b"s", fence=owner.fence())
        if how in {"replace", "each in turn"}:
            await driver.append(TASK, "api", [E1], fence=owner.fence())
        assert await sweep(driver, dry_run=True) == (1 if how == "remove" else 0)
        if how in {"write", "each in turn"}:
            await driver.write(TASK, "state", None, fence=owner.fence())
            assert await sweep(driver, dry_run=True) == 0
            await driver.write(TASK, "input", None, fence=owner.fence())
        if how == "each in turn":
            assert await sweep(driver, dry_run=True) == 0
        if how in {"replace", "each in turn"}:
            await driver.replace(TASK, "api", [], fence=owner.fence())
        if how == "remove":
            await driver.remove(TASK, fence=owner.fence())
        assert await sweep(driver, dry_run=True) == 1

    async def test_age_counts_from_the_last_change(self, driver: Driver) -> None:
        """C5: a claim is a change, and so is a mutation that only stores its seq."""
        owner = await claimed(driver)
        assert await sweep(driver, older_than=3600, dry_run=True) == 0
        await driver.append(TASK, "api", [E1], fence=owner.fence())
        await driver.remove(TASK, fence=owner.fence())
        assert await sweep(driver, older_than=3600, dry_run=True) == 0
        await driver.append(TASK, "api", [], fence=owner.fence())
        assert await sweep(driver, older_than=0, dry_run=True) == 1

    async def test_epochs_and_versions_never_repeat(self, driver: Driver) -> None:
        """F1, S1: the floor is raised to what was swept, for every scope of the namespace."""
        owner = await claimed(driver)
        for number in (2, 3):
            owner = await claimed(driver, number=number)
        for _ in range(5):
            version = await driver.write(TASK, "state", b"s", fence=owner.fence(), index=Index())
        await driver.remove(TASK, fence=owner.fence())
        version = (await driver.read(TASK, "state")).version
        assert await sweep(driver) == 1
        assert await driver.read(TASK, "state") == Value()
        with pytest.raises(FencedError) as caught:
            await driver.append(TASK, "api", [E1], fence=owner.fence())
        assert caught.value.reason == "no_record"
        for scope in (TASK, Scope("task", "another"), RUN):
            assert (await driver.claim(scope, claim_id(4))).epoch > owner.epoch
        other = Scope("task", "third")
        assert await driver.write(other, "state", b"s", fence=None, index=Index()) > version

    async def test_the_floor_is_not_compared_with_at_least(self, driver: Driver) -> None:
        """F9: the issuer of the number answers for its growth."""
        await driver.claim(TASK, claim_id(1), at_least=100)
        assert await sweep(driver) == 1
        assert (await driver.claim(TASK, claim_id(2), at_least=7)).epoch == 7

    @pytest.mark.parametrize("dry_run", [True, False])
    async def test_pages_of_a_sweep_count_each_record_once(
        self, driver: Driver, dry_run: bool
    ) -> None:
        """Whether they stay or go meanwhile."""
        for number in range(25):
            await driver.claim(Scope("task", f"{number}"), claim_id(1))
        removed, after = 0, None
        while True:
            page = await driver.sweep(older_than=0, limit=10, dry_run=dry_run, after=after)
            removed += page.tombstones
            after = page.next
            if after is None:
                break
        assert removed == 25
        assert len(await ids(driver, Where(with_empty=True))) == (25 if dry_run else 0)
