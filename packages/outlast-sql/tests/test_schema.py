"""What lies in the tables: identities, order, cost, and that nothing stays behind."""
# ruff: noqa: ASYNC240 - a test has its loop to itself

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from sql_support import Open, Owner, Raw, claim_id
from sqlalchemy import UniqueConstraint
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect

from outlast.driver import Entry, Index, Scope, Value, Where
from outlast_sql import SqlDriver
from outlast_sql._schema import create_statements, metadata

pytestmark = [pytest.mark.sql, pytest.mark.sqlite]

TASK = Scope("task", "t")

AWKWARD = [
    "t",
    "T",
    "t ",
    " t",
    "t\t",
    "t\0",
    "\0",
    "t1",
    "t10",
    "a/b",
    "a//b",
    "a:b",
    "..",
    "./x",
    "/x",
    "\\",
    "CON",
    "{",
    "}",
    "%",
    "_",
    "'",
    '"; DROP TABLE outlast_scope; --',
    "é",
    "e\u0301",
    "ß",
    "ss",
    "ı",
    "İ",
    "😀",
    "😁",
    "x" * 512,
    "x" * 511,
    "日" * 170,
]


async def test_ids_that_look_alike_never_meet(open_driver: Open) -> None:
    """I1 to I3 (H-Q15): as scopes, entries, parents and namespaces."""
    driver = await open_driver()
    for name in AWKWARD:
        scope = Scope("task", name)
        index = Index(parent=name, status=name[:10])
        await driver.write(scope, "state", name.encode(), fence=None, index=index)
        assert await driver.append(TASK, "user", [Entry(name, name.encode())], fence=None) == []
    for name in AWKWARD:
        assert (await driver.read(Scope("task", name), "state")).data == name.encode()
        page = await driver.scan("task", where=Where(parent=name), after=None, limit=99)
        assert [item.id for item in page.items] == [name]
    page = await driver.scan("task", where=Where(), after=None, limit=99)
    assert [item.id.encode() for item in page.items] == sorted(name.encode() for name in AWKWARD)
    assert [entry.id for entry in await driver.load(TASK, "user")] == AWKWARD
    for namespace in ("Test", "test ", "tes", "t\u00e9st", "test\0"):
        other = await open_driver(namespace=namespace)
        assert await other.read(TASK, "state") == Value()
        assert await other.load(TASK, "user") == []
        page = await other.scan("task", where=Where(with_empty=True), after=None, limit=99)
        assert page.items == []
        value = await other.claim(TASK, claim_id(1))
        assert value.epoch == 1
        await other.remove(TASK, fence=Owner(1, claim_id(1)).fence())
        swept = await other.sweep(older_than=0, limit=9, dry_run=False, after=None)
        assert swept.tombstones == 1
    assert (await driver.read(TASK, "state")).data == b"t"


async def test_order_does_not_come_from_a_clock(
    open_driver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A4: the clock stands still, then jumps back, and nothing is negative or out of order."""
    driver = await open_driver()
    now = time.time_ns()
    for number in range(50):
        jump = 0 if number < 25 else 3600 * 10**9
        monkeypatch.setattr(time, "time_ns", lambda jump=jump: now - jump)
        await driver.append(TASK, "api", [Entry(f"{number}", b"")], fence=None)
        await driver.write(TASK, "state", b"s", fence=None, index=Index())
    found = [entry.id for entry in await driver.load(TASK, "api")]
    assert found == [f"{number}" for number in range(50)]
    monkeypatch.setattr(time, "time_ns", lambda: now - 7200 * 10**9)
    assert (await driver.read(TASK, "state")).age == 0.0
    await driver.remove(TASK, fence=None)
    page = await driver.sweep(older_than=3600, limit=9, dry_run=False, after=None)
    assert page.tombstones == 0


async def test_order_is_that_of_the_commits(open_driver: Open, path: Path) -> None:
    """A5, A6 (H-Q17): no position is taken before the lock is, so no load skips an entry."""
    first, second = await open_driver(), await open_driver()
    loads: list[list[str]] = []

    async def append(driver: SqlDriver, name: str) -> None:
        for number in range(60):
            await driver.append(TASK, "api", [Entry(f"{name}{number}", b"x")], fence=None)

    writing = asyncio.gather(append(first, "a"), append(second, "b"))
    while not writing.done():
        loads.append([entry.id for entry in await first.load(TASK, "api")])
        loads.append([entry.id for entry in await second.load(TASK, "api")])
    await writing
    whole = [entry.id for entry in await first.load(TASK, "api")]
    assert len(whole) == 120
    assert all(load == whole[: len(load)] for load in loads)
    assert [len(load) for load in loads] == sorted(len(load) for load in loads)


async def test_in_memory_all_calls_share_one_connection() -> None:
    """H-Q19: tasks at the same time see one database, another driver another one."""
    driver = SqlDriver.from_url("sqlite:///:memory:", namespace="test")
    other = SqlDriver.from_url("sqlite://", namespace="test")
    await driver.setup(create=True)
    await other.setup(create=True)
    calls = [
        driver.append(TASK, "api", [Entry(str(number), b"")], fence=None) for number in range(50)
    ]
    assert await asyncio.gather(*calls) == [[]] * 50
    assert len(await driver.load(TASK, "api")) == 50
    assert await other.load(TASK, "api") == []
    assert driver.capabilities.data_survives == frozenset()
    assert driver.capabilities.reach == "process"
    await driver.aclose()
    await other.aclose()


async def test_a_commit_is_synced_and_other_settings_hold(open_driver: Open, path: Path) -> None:
    """D1: the settings under which an acknowledged write survives the machine."""
    driver = await open_driver()
    writer, *readers = driver._lanes

    def setting(lane: Any, name: str) -> object:
        return lane._db.execute(f"PRAGMA {name}").fetchone()[0]

    assert len(readers) == 2
    assert setting(writer, "journal_mode") == "wal"
    assert setting(writer, "synchronous") == 2
    assert setting(writer, "secure_delete") == 1
    assert [setting(lane, "query_only") for lane in readers] == [1, 1]
    assert {setting(lane, "busy_timeout") for lane in driver._lanes} == {0}
    assert driver.capabilities.fences_survive == {"process", "server"}
    assert driver.capabilities.max_message_bytes >= 8 * 2**20
    assert await driver.hazards() == ()


async def test_the_cost_of_an_append_is_flat(open_driver: Open) -> None:
    """A9: neither the steps of SQLite's machine nor the pages written grow with the log."""
    driver = await open_driver()
    db = driver._lanes[0]._db
    measured: dict[str, list[int]] = {"steps": [], "pages": []}
    number = 0
    for target in (100, 10_000):
        batch = [Entry(f"{n:08}", os.urandom(200)) for n in range(number, target)]
        number = target
        await driver.append(TASK, "api", batch, fence=None)
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        db.set_progress_handler(count, 1)
        db.execute("PRAGMA wal_checkpoint(RESTART)")
        steps = 0
        for _ in range(50):
            await driver.append(TASK, "api", [Entry(f"{number:08}", b"x" * 200)], fence=None)
            number += 1
        measured["steps"].append(steps)
        (_, pages, _) = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        measured["pages"].append(pages)
        db.set_progress_handler(None, 0)
    assert measured["steps"][1] <= measured["steps"][0] * 1.1, measured
    assert measured["pages"][1] <= measured["pages"][0] * 1.5, measured


@pytest.mark.parametrize(
    ("where", "index"),
    [
        (Where(), "autoindex_outlast_scope_1 (namespace=? AND kind=? AND id>?)"),
        (Where(status="x"), "outlast_scope_status (namespace=? AND kind=? AND status=? AND id>?)"),
        (Where(parent="p"), "outlast_scope_parent (namespace=? AND kind=? AND parent=? AND id>?)"),
    ],
    ids=["all", "status", "parent"],
)
async def test_a_scan_goes_through_an_index_in_order(
    open_driver: Open, where: Where, index: str
) -> None:
    """L1: a page costs its own length, whatever the store holds; nothing is sorted."""
    driver = await open_driver()
    plans: list[str] = []
    db = driver._lanes[1]._db
    for lane in driver._lanes[1:]:
        lane._db.set_trace_callback(plans.append)
    await driver.scan("task", where=where, after="a", limit=5)
    for lane in driver._lanes[1:]:
        lane._db.set_trace_callback(None)
    plan = " | ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {plans[0]}").fetchall())
    assert index in plan
    assert "SCAN" not in plan
    assert "TEMP B-TREE" not in plan


async def test_after_removal_and_sweep_nothing_of_the_task_is_left(
    open_driver: Open, path: Path
) -> None:
    """C3: no row, nor a trace in the free parts of the file or in the write-ahead log."""
    driver = await open_driver()
    name = "the-task-that-goes"
    secret = b"what was said there"
    gone, stays = Scope("task", name), Scope("task", "stays")
    run = Scope("run", f"{name}-run")
    for scope in (gone, stays):
        for number in range(200):
            entries = [Entry(f"{scope.id}-{number}", secret * (number % 40))]
            await driver.append(scope, "api", entries, fence=None)
            if number % 20 == 0:
                await driver.replace(scope, "user", entries, fence=None)
                await driver.write(scope, "state", secret * 500, fence=None, index=Index(name))
    await driver.claim(run, claim_id(1), parent=name)
    await driver.write(stays, "state", b"s", fence=None, index=Index(status="x"))
    await driver.remove(gone, fence=None)
    await driver.remove(run, fence=Owner(1, claim_id(1)).fence())
    await driver.sweep(older_than=0, limit=99, dry_run=False, after=None)
    with Raw(path) as raw:
        for table in metadata.tables:
            for row in raw.db.execute(f"SELECT * FROM {table}"):
                assert name.encode() not in b" ".join(v for v in row if isinstance(v, bytes))
    log = path.with_name(path.name + "-wal")
    assert log.stat().st_size == 0
    assert name.encode() not in path.read_bytes()
    assert len(await driver.load(stays, "api")) == 200


async def test_space_is_used_again(open_driver: Open, path: Path) -> None:
    """Replacing and overwriting do not let the file grow."""
    driver = await open_driver()
    sizes = []
    for number in range(30):
        entries = [Entry(f"{number}.{part}", os.urandom(2000)) for part in range(100)]
        await driver.replace(TASK, "api", entries, fence=None)
        await driver.write(TASK, "state", os.urandom(20_000), fence=None, index=Index())
        with Raw(path) as raw:
            sizes.append(raw.db.execute("PRAGMA page_count").fetchone()[0])
    assert sizes[-1] <= sizes[2] * 1.2


async def test_what_is_stored_is_not_much_more_than_what_was_given(
    open_driver: Open, path: Path
) -> None:
    """2,000 messages of 1 KiB take less than twice their size."""
    driver = await open_driver()
    for first in range(0, 2000, 100):
        batch = [Entry(f"message-{first + part:032}", os.urandom(1024)) for part in range(100)]
        await driver.append(TASK, "api", batch, fence=None)
    await driver.aclose()
    assert path.stat().st_size < 2 * 2000 * 1024


async def test_a_log_of_64_mib_and_an_entry_of_16_mib(open_driver: Open) -> None:
    """V5: nothing is cut, and nothing is too large below the declared limits."""
    driver = await open_driver(timeout=60.0)
    whole = [Entry(str(number), os.urandom(2**20)) for number in range(48)]
    whole.append(Entry("big", os.urandom(16 * 2**20)))
    await driver.replace(TASK, "api", whole, fence=None)
    assert await driver.load(TASK, "api") == whole
    assert await driver.load(TASK, "api", last=1) == whole[-1:]


@pytest.mark.parametrize(
    "dialect",
    [module.dialect() for module in (sqlite, postgresql, mysql)],
    ids=["sqlite", "postgresql", "mysql"],
)
def test_the_tables_are_bytes_in_every_dialect(dialect: Dialect) -> None:
    """H-Q15, H-Q5, H-Q16: no text type whose collation folds ids, no JSON, no short blob."""
    statements = "\n".join(create_statements(dialect))
    assert statements.count("CREATE TABLE") == len(metadata.tables)
    for word in ("TEXT", "CHAR(", "JSON", "VARCHAR"):
        assert word not in statements.upper()
    payload = {"sqlite": "data BLOB", "postgresql": "data BYTEA", "mysql": "data LONGBLOB"}
    assert payload[dialect.name] in statements
    if dialect.name == "mysql":
        assert "entry_id VARBINARY(512)" in statements


def test_every_key_fits_into_an_index_of_mysql() -> None:
    """At most 3,072 bytes."""

    def size(column: Any) -> int:
        return getattr(column.type, "length", None) or 8

    for table in metadata.tables.values():
        keys = [table.primary_key.columns, *(index.columns for index in table.indexes)]
        keys += [
            constraint.columns
            for constraint in table.constraints
            if isinstance(constraint, UniqueConstraint)
        ]
        for key in keys:
            assert sum(size(column) for column in key) <= 3072, (table.name, list(key))
