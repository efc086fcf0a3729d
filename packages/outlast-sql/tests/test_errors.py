"""Bad URLs, options, engines and files: one kind of error, plain words, nothing left behind."""
# ruff: noqa: ASYNC221, ASYNC240 - a test has its loop to itself

import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sql_support import Open, Raw
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from outlast.driver import Driver, Entry, Scope
from outlast.errors import (
    ClosedError,
    ConfigurationError,
    CorruptDataError,
    OutcomeUnknownError,
    OutlastError,
    PayloadTooLargeError,
    UnavailableError,
    UnsupportedVersionError,
)
from outlast_sql import SqlBackend, SqlDriver
from outlast_sql._errors import translate

pytestmark = [pytest.mark.sql, pytest.mark.sqlite]

TASK = Scope("task", "t")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite://agent.db", "names a host; write sqlite:///file.db"),
        ("sqlite:agent.db", "has no slashes; write sqlite:///agent.db"),
        ("sqlite://user:hunter2@/agent.db", "names a host"),
        ("sqlite:///agent.db?mode=ro", "unknown option 'mode'"),
        ("sqlite:///agent.db?a=1&a=2", "unknown option 'a'"),
        ("sqlite:///agent.db#part", "fragment"),
        ("sqlite:///agent%00.db", "NUL"),
        ("sqlite+pysqlite:///agent.db", "reached through aiosqlite, not 'pysqlite'"),
        ("oracle:///agent.db", "dialect 'oracle'; supported: mariadb, mysql, postgresql, sqlite"),
        ("agent.db", "not a store URL"),
    ],
    ids=str,
)
def test_a_url_that_does_not_fit_is_refused(url: str, words: str) -> None:
    """Before anything is opened, naming what was wrong, without a secret (E4)."""
    with pytest.raises(ConfigurationError) as caught:
        SqlDriver.from_url(url, namespace="test")
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_option_that_is_unknown_is_named() -> None:
    """Options are never dropped in silence."""
    with pytest.raises(ConfigurationError, match="unknown option 'journal'"):
        SqlDriver.from_url("sqlite://", namespace="test", journal="off")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "either engine=... or url=..."),
        ({"url": "sqlite://", "engine": object()}, "either engine=... or url=..."),
        ({"engine": object()}, "must be an AsyncEngine"),
        ({"engine": create_engine("sqlite://")}, "not Engine"),
        ({"url": "sqlite://", "timeout": 0}, "timeout"),
        ({"url": "sqlite://", "timeout": "1"}, "timeout"),
    ],
    ids=["neither", "both", "no engine", "sync engine", "no time", "text for time"],
)
def test_a_backend_needs_one_fitting_engine_or_url(arguments: dict[str, Any], words: str) -> None:
    """Each is named."""
    with pytest.raises(ConfigurationError) as caught:
        SqlBackend(**arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("path", ["agent.db", "folder with space/agent?#%&.db", "é/日本.db"])
async def test_a_url_leads_to_its_file(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three slashes are relative, four absolute; a change of directory afterwards means nothing."""
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    escaped = path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    monkeypatch.chdir(tmp_path)
    relative = SqlDriver.from_url(f"sqlite:///{escaped}", namespace="test")
    absolute = SqlDriver.from_url(f"sqlite+aiosqlite:///{tmp_path}/{escaped}", namespace="test")
    assert not file.exists(), "the factory opens nothing"
    monkeypatch.chdir("/")
    await relative.setup(create=True)
    await absolute.setup(create=False)
    await relative.append(TASK, "api", [Entry("1", b"")], fence=None)
    assert await absolute.load(TASK, "api") == [Entry("1", b"")]
    await relative.aclose()
    await absolute.aclose()
    assert sorted(found.name for found in file.parent.iterdir()) == [file.name]


async def set_up(path: Path, *, create: bool = True) -> None:
    driver = SqlDriver.from_url(f"sqlite:///{path}", namespace="test", timeout=5.0)
    try:
        await driver.setup(create=create)
    finally:
        await driver.aclose()


def make_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("size", [1, 15, 16, 99, 100])
async def test_a_short_file_that_is_no_database_is_refused_and_kept(
    size: int, tmp_path: Path
) -> None:
    """SQLite would take it for an empty database, and write over it."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"n" * size)
    with pytest.raises(ConfigurationError, match="not an SQLite database"):
        await set_up(path, create=True)
    assert path.read_bytes() == b"n" * size


@pytest.mark.parametrize("create", [True, False])
async def test_a_pipe_is_refused_and_not_waited_for(path: Path, create: bool) -> None:
    """SQLite would call it an I/O error of the disk."""
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match="is no file, but a pipe"):
        await set_up(path, create=create)


def make_text(path: Path) -> None:
    path.write_text("this is no database, but it is long enough to be taken for one" * 20)


def make_file_above(path: Path) -> None:
    path.parent.rmdir()
    path.parent.touch()


def make_no_folder(path: Path) -> None:
    path.parent.rmdir()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_folder, "is a directory"),
        (make_text, "is not an SQLite database"),
        (make_file_above, "is not a directory"),
        (make_no_folder, "does not exist; create it first"),
    ],
)
@pytest.mark.parametrize("create", [True, False])
async def test_a_place_that_does_not_fit_is_a_configuration_error(
    tmp_path: Path, make: Callable[[Path], None], words: str, create: bool
) -> None:
    """With the path and what is wrong with it."""
    path = tmp_path / "folder" / "store.db"
    path.parent.mkdir()
    make(path)
    with pytest.raises(ConfigurationError) as caught:
        await set_up(path, create=create)
    if create or ("does not exist" not in words and "not a directory" not in words):
        assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value.__cause__, Exception)


@pytest.mark.parametrize("what", ["nothing", "an empty file", "tables of others"])
async def test_verifying_changes_nothing_and_names_the_command(path: Path, what: str) -> None:
    """X4: create=False neither makes a file nor a table."""
    if what == "an empty file":
        path.touch()
    elif what == "tables of others":
        with Raw(path) as raw:
            raw.db.execute("CREATE TABLE mine (id)")
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(ConfigurationError, match="run: outlast setup sqlite:///") as caught:
        await set_up(path, create=False)
    assert f"sqlite:///{path}" in str(caught.value)
    assert (path.read_bytes() if path.exists() else None) == before


async def test_tables_of_others_stay(path: Path) -> None:
    """The database may be the application's own."""
    with Raw(path) as raw:
        raw.db.execute("CREATE TABLE mine (id)")
        raw.db.execute("INSERT INTO mine VALUES (1)")
        await set_up(path)
        assert raw.db.execute("SELECT * FROM mine").fetchall() == [(1,)]


async def test_a_table_of_our_name_that_is_not_ours_is_refused(path: Path) -> None:
    """And nothing is made beside it."""
    with Raw(path) as raw:
        raw.db.execute("CREATE TABLE outlast_scope (id)")
        with pytest.raises(ConfigurationError, match="has a table 'outlast_scope', but no version"):
            await set_up(path)
        assert raw.db.execute("SELECT name FROM sqlite_master").fetchall() == [("outlast_scope",)]


async def test_a_table_that_is_gone_is_told(path: Path) -> None:
    """When the store is opened, and when it is used."""
    driver = SqlDriver.from_url(f"sqlite:///{path}", namespace="test")
    await driver.setup(create=True)
    with Raw(path) as raw:
        raw.db.execute("DROP TABLE outlast_entry")
        with pytest.raises(ConfigurationError, match="not set up"):
            await driver.append(TASK, "api", [Entry("1", b"")], fence=None)
        assert await driver.append(TASK, "api", [], fence=None) == []
    await driver.aclose()
    with pytest.raises(ConfigurationError, match="lost its table 'outlast_entry'"):
        await set_up(path)


@pytest.mark.parametrize("create", [True, False])
async def test_a_version_that_is_gone_is_told(path: Path, create: bool) -> None:
    """To set up again would be no help, and is not what the error says."""
    await set_up(path)
    with Raw(path) as raw:
        raw.db.execute("DELETE FROM outlast_schema")
        raw.db.commit()
        with pytest.raises(ConfigurationError, match="restore a backup"):
            await set_up(path, create=create)


@pytest.mark.parametrize("create", [True, False])
async def test_tables_of_a_newer_version_are_refused(path: Path, create: bool) -> None:
    """V8: and left as they are."""
    await set_up(path)
    with Raw(path) as raw:
        raw.db.execute("UPDATE outlast_schema SET version = 2")
        with pytest.raises(UnsupportedVersionError, match="upgrade"):
            await set_up(path, create=create)
        assert raw.db.execute("SELECT version FROM outlast_schema").fetchall() == [(2,)]


async def test_a_setup_that_fails_again_leaves_an_open_store_open(
    open_driver: Open, path: Path
) -> None:
    """What `initialize()` of an open backend does is no reason to close it."""
    driver = await open_driver()
    with Raw(path) as raw:
        raw.db.execute("UPDATE outlast_schema SET version = 2")
        with pytest.raises(UnsupportedVersionError):
            await driver.setup(create=True)
        raw.db.execute("UPDATE outlast_schema SET version = 1")
    assert await driver.append(TASK, "api", [Entry("1", b"")], fence=None) == []


async def test_a_damaged_file_is_corrupt_and_not_empty(path: Path) -> None:
    """V8: never reported as missing."""
    driver = SqlDriver.from_url(f"sqlite:///{path}", namespace="test")
    await driver.setup(create=True)
    entries = [Entry(str(number), bytes(500)) for number in range(500)]
    await driver.append(TASK, "api", entries, fence=None)
    await driver.aclose()
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[half:] = b"\xa5" * half
    path.write_bytes(data)
    driver = SqlDriver.from_url(f"sqlite:///{path}", namespace="test")
    await driver.setup(create=False)
    with pytest.raises(CorruptDataError, match="restore a backup"):
        await driver.load(TASK, "api")
    await driver.aclose()


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_file_that_is_taken_away_is_noticed(
    open_driver: Open, path: Path, tmp_path: Path, how: str
) -> None:
    """D1, E1: SQLite alone would go on writing into the file that nobody can open any more."""
    driver = await open_driver()
    await driver.append(TASK, "api", [Entry("1", b"")], fence=None)
    path.rename(tmp_path / "elsewhere.db")
    if how == "replaced":
        path.touch()
    for call in (
        driver.append(TASK, "api", [Entry("2", b"")], fence=None),
        driver.load(TASK, "api"),
        driver.ping(),
    ):
        with pytest.raises(UnavailableError, match="removed or replaced"):
            await call
    path.unlink(missing_ok=True)
    (tmp_path / "elsewhere.db").rename(path)
    assert await driver.load(TASK, "api") == [Entry("1", b"")]


async def test_closing_works_without_the_file(open_driver: Open, path: Path) -> None:
    """C7: it is not the time to complain."""
    driver = await open_driver()
    path.unlink()
    await driver.aclose()


async def test_use_before_setup_and_after_closing_is_closed(path: Path) -> None:
    """C7: closing again is fine, and does not open anything."""
    driver = SqlDriver.from_url(f"sqlite:///{path}", namespace="test")

    def calls(driver: Driver) -> list[Awaitable[object]]:
        return [driver.ping(), driver.read(TASK, "state"), driver.remove(TASK, fence=None)]

    for call in calls(driver):
        with pytest.raises(ClosedError):
            await call
    await driver.aclose()
    assert not path.exists()
    await driver.setup(create=True)
    await driver.setup(create=True)
    await driver.setup(create=False)
    await driver.ping()
    for _ in range(2):
        await driver.aclose()
    for call in calls(driver):
        with pytest.raises(ClosedError):
            await call


async def test_a_value_beyond_the_limit_of_sqlite_is_too_large(open_driver: Open) -> None:
    """V5: where a build of SQLite takes less than is declared, and the next call works."""
    driver = await open_driver()
    driver._lanes[0]._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000_000)
    with pytest.raises(PayloadTooLargeError):
        await driver.append(TASK, "api", [Entry("1", bytes(1_000_001))], fence=None)
    assert await driver.append(TASK, "api", [Entry("1", b"")], fence=None) == []


async def test_a_full_disk_is_unavailable_and_keeps_what_was_there(
    open_driver: Open, path: Path
) -> None:
    """E1, A7: the old list stays, and there is room again once something was deleted."""
    driver = await open_driver()
    old = [Entry(str(number), bytes(1000)) for number in range(20)]
    await driver.replace(TASK, "api", old, fence=None)
    with Raw(path) as raw:
        (pages,) = raw.db.execute("PRAGMA page_count").fetchone()
    driver._lanes[0]._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    for call in (
        driver.replace(TASK, "api", [Entry("big", bytes(200_000))], fence=None),
        driver.append(TASK, "api", [Entry("big", bytes(200_000))], fence=None),
    ):
        with pytest.raises(UnavailableError, match="full") as caught:
            await call
        assert caught.value.applied is False
    assert await driver.load(TASK, "api") == old
    await driver.replace(TASK, "api", [Entry("small", b"")], fence=None)
    assert await driver.load(TASK, "api") == [Entry("small", b"")]


QUOTA = textwrap.dedent("""
    import asyncio, resource, sys
    from outlast.driver import Entry, Scope
    from outlast.errors import OutcomeUnknownError, UnavailableError
    from outlast_sql import SqlDriver

    async def main():
        driver = SqlDriver.from_url("sqlite:///" + sys.argv[1], namespace="test")
        await driver.setup(create=True)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        done, failed = [], []
        for number in range(60):
            entry = Entry(str(number), bytes(10_000))
            try:
                await driver.append(Scope("task", "t"), "api", [entry], fence=None)
                done.append(entry.id)
            except (UnavailableError, OutcomeUnknownError) as error:
                failed.append((entry.id, error.applied))
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await driver.append(Scope("task", "t"), "api", [Entry("last", b"")], fence=None)
        found = [entry.id for entry in await driver.load(Scope("task", "t"), "api")]
        await driver.aclose()
        assert failed and done, (done, failed)
        assert found[-1] == "last"
        assert set(done) <= set(found), (done, found)
        refused = {name for name, applied in failed if applied is False}
        assert not refused & set(found), (refused, found)
        print("fine")

    asyncio.run(main())
""")


def test_a_write_that_the_system_refuses_ends_in_a_known_way(path: Path) -> None:
    """E2: acknowledged appends are there, refused ones are not, and it recovers."""
    result = subprocess.run(
        [sys.executable, "-c", QUOTA, str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.stdout == "fine\n", result.stderr


READ_ONLY = textwrap.dedent("""
    import asyncio, os, sys
    import aiosqlite, sqlalchemy.dialects.sqlite.aiosqlite, outlast_sql._sqlite
    from outlast.driver import Entry, Scope
    from outlast.errors import ConfigurationError
    from outlast_sql import SqlDriver

    if os.geteuid() == 0:  # To root nothing is forbidden.
        os.setgid(65534)
        os.setuid(65534)

    async def main():
        driver = SqlDriver.from_url("sqlite:///" + sys.argv[1], namespace="test")
        try:
            await driver.setup(create=True)
            await driver.append(Scope("task", "t"), "api", [Entry("2", b"")], fence=None)
        except ConfigurationError as error:
            print(error)
        finally:
            await driver.aclose()

    asyncio.run(main())
""")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("file", "read-only for this process"),
        ("directory", "may not write to its directory"),
        ("unreadable", "may not read it"),
        ("hidden", "cannot be opened: Permission denied"),
    ],
)
async def test_missing_permissions_are_told(what: str, words: str) -> None:
    """A process without rights is told which it lacks."""
    # Not below pytest's folder, which is closed to other users.
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        path = folder / "store.db"
        if what != "directory":
            await set_up(path)
            path.chmod({"file": 0o444, "unreadable": 0o000, "hidden": 0o644}[what])
        folder.chmod({"directory": 0o555, "hidden": 0o000}.get(what, 0o777))
        result = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(path)],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        folder.chmod(0o755)
    assert words in result.stdout, result.stderr


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_IOERR, OutcomeUnknownError),
        (sqlite3.SQLITE_IOERR_FSYNC, OutcomeUnknownError),
        (sqlite3.SQLITE_NOMEM, OutcomeUnknownError),
        (sqlite3.SQLITE_FULL, UnavailableError),
        (sqlite3.SQLITE_BUSY, UnavailableError),
        (sqlite3.SQLITE_INTERRUPT, UnavailableError),
    ],
)
def test_a_commit_that_fails_is_unknown_unless_it_was_rolled_back(
    code: int, expected: type[OutlastError]
) -> None:
    """E2: after a failed fsync, a crash may yet recover the transaction."""
    error = sqlite3.OperationalError("failed")
    error.sqlite_errorcode = code
    assert type(translate(error, "/x.db", committing=True)) is expected
    before = translate(error, "/x.db")
    assert isinstance(before, UnavailableError)
    assert before.applied is False


async def test_an_engine_that_shares_its_connection_is_not_disturbed(path: Path) -> None:
    """A transaction of the application on the same connection is never joined, nor ended."""
    engine = create_async_engine("sqlite+aiosqlite://")
    driver = SqlDriver.from_engine(engine, namespace="test", timeout=10.0)
    await driver.setup(create=True)
    async with engine.connect() as connection:
        await connection.exec_driver_sql("CREATE TABLE mine (id)")
        await connection.exec_driver_sql("BEGIN")
        await connection.exec_driver_sql("INSERT INTO mine VALUES (1)")
        begin = time.monotonic()
        for call in (
            driver.append(TASK, "api", [Entry("1", b"")], fence=None),
            driver.load(TASK, "api"),
        ):
            with pytest.raises(UnavailableError, match="transaction of another user"):
                await call
        assert time.monotonic() - begin < 5  # not the ten seconds of a lock
        await connection.exec_driver_sql("COMMIT")
        rows = (await connection.exec_driver_sql("SELECT id FROM mine")).fetchall()
        assert [tuple(row) for row in rows] == [(1,)]
        await connection.commit()
    await driver.append(TASK, "api", [Entry("1", b"")], fence=None)
    await driver.aclose()
    await engine.dispose()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit since Python 3.12")
async def test_an_engine_without_autocommit_is_refused(path: Path) -> None:
    """Its connections are never outside of a transaction."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"autocommit": False})
    driver = SqlDriver.from_engine(engine, namespace="test")
    with pytest.raises(ConfigurationError, match="autocommit=False"):
        await driver.setup(create=True)
    await engine.dispose()


async def test_a_lent_engine_gets_its_connection_back_as_it_was(path: Path) -> None:
    """C7: never closed, one connection in use meanwhile, and with its own settings afterwards."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}", pool_size=1, max_overflow=0)

    async def settings() -> list[object]:
        async with engine.connect() as connection:
            names = ("busy_timeout", "synchronous", "secure_delete", "query_only")
            found = [
                (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar() for name in names
            ]
            raw: Any = await connection.get_raw_connection()
            return [*found, raw.driver_connection.isolation_level]

    before = await settings()
    driver = SqlDriver.from_engine(engine, namespace="test")
    await driver.setup(create=True)
    await driver.append(TASK, "api", [Entry("1", b"")], fence=None)
    await driver.aclose()
    assert await settings() == before
    await driver.setup(create=False)
    assert await driver.load(TASK, "api") == [Entry("1", b"")]
    await driver.aclose()
    await engine.dispose()


def test_limits_of_this_process_are_what_the_tests_expect() -> None:
    """The file size is unlimited, or the quota test above proves little."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
