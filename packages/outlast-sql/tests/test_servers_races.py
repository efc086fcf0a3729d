"""What meets in a database on a server: each call sees and leaves one state, whoever waits.

The statements of PostgreSQL see the state in which they began, and go on with newer rows after a
wait; MariaDB's default isolation level keeps what a transaction read first (H-Q13, H-Q17). So the
other one always holds the scope's row while the driver's call begins.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from server_support import Admin, root_of, until
from server_ways import SERVERS, server_driver, url_of
from sql_support import Owner, claim_id

from outlast.driver import Entry, Fence, Index, PreconditionFailedError, Scope
from outlast.errors import FencedError, OutlastError
from outlast_sql import SqlDriver

pytestmark = [pytest.mark.sql, pytest.mark.server]

TASK = Scope("task", "t")
RUN = Scope("run", "r")


@pytest.fixture(params=list(SERVERS))
async def pair(
    request: pytest.FixtureRequest, namespace: str
) -> AsyncIterator[tuple[SqlDriver, Admin]]:
    """A driver, and another user who looks at the same rows."""
    admin = await Admin.on(root_of(url_of(request.param)))
    async with server_driver(request.param, namespace) as driver:
        yield driver, admin
    await admin.close()


@asynccontextmanager
async def holding(driver: SqlDriver, admin: Admin, scope: Scope) -> AsyncIterator[int]:
    """Hold the row of a scope in a transaction, which ends with the block; gives its number."""
    key = driver._key(scope)
    prefix = "'\\x{}'::bytea" if admin.is_postgres else "x'{}'"
    namespace, scope_id = (prefix.format(part.hex()) for part in (key.namespace, key.id))
    await admin.run("BEGIN")
    ((sid,),) = await admin.rows(
        f"SELECT sid FROM outlast_scope WHERE namespace = {namespace} AND kind = {key.kind}"
        f" AND id = {scope_id} FOR UPDATE"
    )
    try:
        yield sid
    finally:
        await admin.run("COMMIT")


async def meeting(
    driver: SqlDriver,
    admin: Admin,
    scope: Scope,
    call: Callable[[], Awaitable[Any]],
    *changes: str,
    is_claim: bool = False,
) -> Any:
    """What a call answers that begins, and waits, before others change the scope."""
    async with holding(driver, admin, scope) as sid:
        calling = asyncio.ensure_future(call())
        await until(admin.holds_up)
        for change in (*changes, *(() if is_claim else (MOVED,))):
            await admin.run(change.format(sid=sid))
    return await calling


NEW_ENTRY = (
    "INSERT INTO outlast_entry (sid, log, pos, entry_id, data) VALUES ({sid}, 0, 50, 'new', '2')"
)
MOVED = "UPDATE outlast_scope SET tail = tail + 50, empty_since = NULL WHERE sid = {sid}"
"""As every mutation moves it."""
NEW_DATA = "UPDATE outlast_register SET version = version + 1, data = 'new' WHERE sid = {sid}"


async def test_a_claim_returns_what_was_written_while_it_waited(
    pair: tuple[SqlDriver, Admin],
) -> None:
    """F5: the snapshot is final for all older claims, so it has all that they wrote."""
    driver, admin = pair
    for scope, register in ((RUN, "checkpoint"), (TASK, "state")):
        await driver.write(scope, register, b"old", fence=None)
        claimed = await meeting(
            driver, admin, scope, lambda scope=scope: driver.claim(scope, claim_id(1)), NEW_DATA
        )
        assert claimed.data == b"new"
        read = await driver.read(scope, register)
        assert (read.data, read.version, read.fence) == (b"new", claimed.version, claimed.fence)


async def test_a_claim_meets_a_first_write(pair: tuple[SqlDriver, Admin]) -> None:
    """F5: also where the register had never been written before."""
    driver, admin = pair
    await driver.append(TASK, "api", [Entry("a", b"1")], fence=None)
    claimed = await meeting(
        driver,
        admin,
        TASK,
        lambda: driver.claim(TASK, claim_id(1)),
        NEW_DATA + " AND register = 0",
    )
    assert claimed.data == b"new"


async def test_a_mutation_is_judged_by_the_fence_after_its_wait(
    pair: tuple[SqlDriver, Admin],
) -> None:
    """F2, H-Q1, H-Q13: whatever it saw before."""
    driver, admin = pair
    claimed = await driver.claim(TASK, claim_id(1))
    calls: list[Callable[[Fence], Awaitable[Any]]] = [
        lambda fence: driver.append(TASK, "api", [Entry(secrets.token_hex(4), b"1")], fence=fence),
        lambda fence: driver.write(TASK, "state", b"1", fence=fence, index=Index()),
        lambda fence: driver.write(TASK, "state", b"1", fence=fence, index=Index(), if_version=0),
        lambda fence: driver.replace(TASK, "api", [Entry("r", b"1")], fence=fence),
        lambda fence: driver.remove(TASK, fence=fence),
    ]
    for call in calls:
        owner = Owner(claimed.epoch, claim_id(1))
        with pytest.raises(FencedError) as caught:
            await meeting(
                driver,
                admin,
                TASK,
                lambda call=call, owner=owner: call(owner.fence()),
                f"UPDATE outlast_scope SET epoch = 9, claim_id = '{claim_id(9)}'"
                " WHERE sid = {sid}",
                is_claim=True,
            )
        assert caught.value.reason == "superseded"
        async with holding(driver, admin, TASK) as sid:
            await admin.run(
                f"UPDATE outlast_scope SET epoch = {claimed.epoch}, claim_id = '{claim_id(1)}'"
                f" WHERE sid = {sid}"
            )
    assert await driver.load(TASK, "api") == []
    assert (await driver.read(TASK, "state")).data is None


async def test_a_replacement_leaves_nothing_that_came_while_it_waited(
    pair: tuple[SqlDriver, Admin],
) -> None:
    """A7: the whole list, and the list alone."""
    driver, admin = pair
    await driver.append(TASK, "api", [Entry("old", b"1")], fence=None)
    new = [Entry("old", b"3"), Entry("b", b"4")]
    await meeting(
        driver,
        admin,
        TASK,
        lambda: driver.replace(TASK, "api", new, fence=None),
        NEW_ENTRY,
    )
    assert await driver.load(TASK, "api") == new
    await driver.append(TASK, "api", [Entry("new", b"5")], fence=None)
    assert await driver.load(TASK, "api") == [*new, Entry("new", b"5")]


async def test_a_removal_leaves_nothing_that_came_while_it_waited(
    pair: tuple[SqlDriver, Admin],
) -> None:
    """F7, C1: what it does not see would come back with the next append."""
    driver, admin = pair
    await driver.append(TASK, "api", [Entry("old", b"1")], fence=None)
    await driver.append(TASK, "user", [Entry("old", b"1")], fence=None)
    await meeting(driver, admin, TASK, lambda: driver.remove(TASK, fence=None), NEW_ENTRY, NEW_DATA)
    assert await driver.load(TASK, "api") == []
    assert (await driver.read(TASK, "state")).data is None
    await driver.append(TASK, "api", [Entry("a", b"1")], fence=None)
    assert await driver.load(TASK, "api") == [Entry("a", b"1")]


async def test_an_append_that_waited_meets_the_known_id(pair: tuple[SqlDriver, Admin]) -> None:
    """A8: it changes nothing, and returns what is stored."""
    driver, admin = pair
    await driver.append(TASK, "api", [Entry("old", b"1")], fence=None)
    known = await meeting(
        driver,
        admin,
        TASK,
        lambda: driver.append(TASK, "api", [Entry("x", b"1"), Entry("new", b"3")], fence=None),
        NEW_ENTRY,
    )
    assert known == [Entry("new", b"2")]
    assert await driver.load(TASK, "api") == [Entry("old", b"1"), Entry("new", b"2")]


async def test_present_entries_that_went_while_it_waited_are_missed(
    pair: tuple[SqlDriver, Admin],
) -> None:
    """A8: in one step with the append."""
    driver, admin = pair
    await driver.append(TASK, "api", [Entry("old", b"1")], fence=None)
    with pytest.raises(PreconditionFailedError):
        await meeting(
            driver,
            admin,
            TASK,
            lambda: driver.append(TASK, "api", [Entry("x", b"")], fence=None, present=["old"]),
            "DELETE FROM outlast_entry WHERE sid = {sid}",
        )
    assert await driver.load(TASK, "api") == []


@pytest.mark.parametrize("emptied", ["register", "log"])
async def test_a_record_that_got_data_while_it_was_emptied_is_no_tombstone(
    pair: tuple[SqlDriver, Admin], emptied: str
) -> None:
    """C5: a sweep would take the data of the other one."""
    driver, admin = pair
    await driver.write(TASK, "state", b"1", fence=None, index=Index())
    await driver.write(TASK, "state", None, fence=None)
    if emptied == "log":
        await driver.append(TASK, "user", [Entry("a", b"1")], fence=None)
        call = lambda: driver.replace(TASK, "user", [], fence=None)  # noqa: E731
    else:
        await driver.write(TASK, "input", b"1", fence=None)
        call = lambda: driver.write(TASK, "input", None, fence=None)  # noqa: E731
    await meeting(driver, admin, TASK, call, NEW_ENTRY)
    page = await driver.sweep(older_than=0, limit=9, dry_run=False, after=None)
    assert page.tombstones == 0
    assert await driver.load(TASK, "api") == [Entry("new", b"2")]
    await driver.replace(TASK, "api", [], fence=None)
    page = await driver.sweep(older_than=0, limit=9, dry_run=False, after=None)
    assert page.tombstones == 1


@pytest.mark.parametrize("expected", ["version before", "version after"])
async def test_the_version_is_compared_after_the_wait(
    pair: tuple[SqlDriver, Admin], expected: str
) -> None:
    """S1: both ways."""
    driver, admin = pair
    version = await driver.write(TASK, "state", b"old", fence=None)
    if_version = version if expected == "version before" else version + 1

    async def write() -> int | None:
        try:
            return await driver.write(TASK, "state", b"mine", fence=None, if_version=if_version)
        except PreconditionFailedError:
            return None

    answer = await meeting(driver, admin, TASK, write, NEW_DATA)
    read = await driver.read(TASK, "state")
    if expected == "version before":
        assert (answer, read.data, read.version) == (None, b"new", version + 1)
    else:
        assert (answer, read.data, read.version) == (version + 2, b"mine", version + 2)


async def test_a_record_swept_while_a_claim_waited_is_made_anew(
    pair: tuple[SqlDriver, Admin],
) -> None:
    """F1, C5: above the floor, which the sweep raised meanwhile."""
    driver, admin = pair
    claimed = await driver.claim(TASK, claim_id(1), at_least=6)
    await driver.remove(TASK, fence=Owner(claimed.epoch, claim_id(1)).fence())
    key = driver._key(TASK)
    again = await meeting(
        driver,
        admin,
        TASK,
        lambda: driver.claim(TASK, claim_id(2)),
        "DELETE FROM outlast_scope WHERE sid = {sid}",
        "DELETE FROM outlast_register WHERE sid = {sid}",
        "UPDATE outlast_floor SET epoch = 6, version = 6"
        f" WHERE namespace = '{key.namespace.decode()}'",
    )
    assert again.epoch == 7
    assert await driver.write(TASK, "state", b"1", fence=Owner(7, claim_id(2)).fence()) == 7


async def test_sweeps_and_claims_of_many_never_repeat_an_epoch(
    pair: tuple[SqlDriver, Admin],
) -> None:
    """F1, C5, H-Q14: eight contenders, and two that sweep all the while."""
    driver, _ = pair
    scopes = [Scope("run", f"r{number}") for number in range(3)]
    seen: dict[Scope, list[int]] = {scope: [] for scope in scopes}

    async def contend(number: int) -> None:
        for turn in range(6):
            scope = scopes[(number + turn) % len(scopes)]
            owner = secrets.token_hex(16)
            value = await driver.claim(scope, owner)
            seen[scope].append(value.epoch)
            fence = Owner(value.epoch, owner)
            try:
                await driver.write(scope, "checkpoint", b"1", fence=fence.fence())
                await driver.remove(scope, fence=fence.fence())
            except FencedError:
                continue

    async def sweep() -> None:
        while not done.is_set():
            await driver.sweep(older_than=0, limit=10, dry_run=False, after=None)

    done = asyncio.Event()
    sweeping = [asyncio.ensure_future(sweep()) for _ in range(2)]
    try:
        await asyncio.gather(*(contend(number) for number in range(8)))
    finally:
        done.set()
        await asyncio.gather(*sweeping)
    for epochs in seen.values():
        assert len(set(epochs)) == len(epochs)


async def test_first_mutations_of_the_same_and_of_other_scopes_all_pass(
    pair: tuple[SqlDriver, Admin],
) -> None:
    """H-Q6, H-Q14: who comes second finds the record, and nobody is told of a deadlock."""
    driver, admin = pair
    await asyncio.gather(
        *(
            driver.append(
                Scope("task", f"t{number // 4}"), "api", [Entry(f"{number}", b"")], fence=None
            )
            for number in range(32)
        )
    )
    for number in range(8):
        entries = await driver.load(Scope("task", f"t{number}"), "api")
        assert sorted(int(entry.id) for entry in entries) == list(range(4 * number, 4 * number + 4))
    await admin.see_idle_transactions_end()


async def test_a_load_never_skips_what_is_committed_later(
    pair: tuple[SqlDriver, Admin],
) -> None:
    """A5, H-Q17: positions are given out under the lock of the scope's row, not before."""
    driver, admin = pair
    await driver.append(TASK, "api", [Entry("a", b"1")], fence=None)

    async with holding(driver, admin, TASK) as sid:
        await admin.run(NEW_ENTRY.format(sid=sid), MOVED.format(sid=sid))
        later = asyncio.ensure_future(driver.append(TASK, "api", [Entry("b", b"3")], fence=None))
        await until(admin.holds_up)
        assert [entry.id for entry in await driver.load(TASK, "api")] == ["a"]
    await later
    assert [entry.id for entry in await driver.load(TASK, "api")] == ["a", "new", "b"]


async def test_look_alike_ids_are_different_scopes_and_entries(
    pair: tuple[SqlDriver, Admin],
) -> None:
    """I1, H-Q15: no collation folds them."""
    driver, _ = pair
    ids = [
        "Run",
        "run",
        "run ",
        " run",
        "é",
        "e",
        "e\N{COMBINING ACUTE ACCENT}",
        "😀",
        "😁",
        "\0",
        "%",
    ]
    for number, name in enumerate(ids):
        entries = [Entry(other, name.encode()) for other in ids]
        assert await driver.append(Scope("task", name), "api", entries, fence=None) == []
        assert (await driver.claim(Scope("run", name), claim_id(number))).epoch == 1
    for name in ids:
        assert await driver.load(Scope("task", name), "api") == [
            Entry(other, name.encode()) for other in ids
        ]


@pytest.mark.parametrize("pair", [way for way in SERVERS if way != "mysql"], indirect=True)
async def test_one_statement_does_what_nothing_speaks_against(
    pair: tuple[SqlDriver, Admin], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: one round trip for each call, and no transaction; new scopes excepted, and MySQL, which
    knows no compound statements.
    """
    driver, admin = pair
    await driver.claim(TASK, claim_id(1))  # The first of a namespace makes its floor.
    await driver.claim(RUN, claim_id(1))

    async def transaction(step: Any) -> Any:
        raise AssertionError(f"a transaction for {step}")

    owner = Owner(1, claim_id(1))
    if admin.is_postgres:
        monkeypatch.setattr(driver, "_transaction", transaction)
        assert (await driver.claim(Scope("run", "new"), claim_id(3), parent="p")).parent == "p"
        assert (await driver.claim(TASK, claim_id(2))).epoch == 2
        owner = Owner(2, claim_id(2))
    monkeypatch.setattr(driver, "_transaction", transaction)
    for count in (1, 2, 5):
        entries = [Entry(f"{count}.{number}", b"1") for number in range(count)]
        assert await driver.append(TASK, "api", entries, fence=owner.fence()) == []
    version = await driver.write(TASK, "state", b"1", fence=owner.fence(), index=Index("p", "s", 5))
    await driver.write(TASK, "state", b"1", fence=owner.fence(), index=Index(), if_version=version)
    await driver.write(TASK, "input", b"1", fence=owner.fence())
    if admin.is_postgres:
        await driver.replace(
            TASK, "api", [Entry("1.0", b"2"), Entry("x", b"")], fence=owner.fence()
        )
    await driver.remove(TASK, fence=owner.fence())
    run = Owner(1, claim_id(1))
    await driver.write(RUN, "checkpoint", b"1", fence=run.fence(), index=Index("t"))
    await driver.remove(RUN, fence=run.fence())
    await driver.read(RUN, "checkpoint")
    await driver.load(TASK, "api", last=3)


async def test_a_refusal_leaves_the_connection_usable(pair: tuple[SqlDriver, Admin]) -> None:
    """C8, H-Q6: no transaction stays open behind any of the refusals."""
    driver, admin = pair
    claimed = await driver.claim(TASK, claim_id(1))
    owner = Owner(claimed.epoch, claim_id(1))
    await driver.append(TASK, "api", [Entry("a", b"1")], fence=owner.fence())
    stale = Fence(claimed.epoch, claim_id(2), 1, "00")
    for _ in range(15):
        with pytest.raises(OutlastError):
            await driver.append(TASK, "api", [Entry("b", b"1")], fence=stale)
        with pytest.raises(OutlastError):
            await driver.write(TASK, "state", b"", fence=owner.fence(), if_version=77)
        with pytest.raises(OutlastError):
            await driver.write(TASK, "state", b"", fence=None)
        assert await driver.append(TASK, "api", [Entry("a", b"2")], fence=owner.fence())
    await admin.see_idle_transactions_end()
    assert await driver.load(TASK, "api") == [Entry("a", b"1")]
