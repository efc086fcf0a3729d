"""End to end: the two contracts over a database file, a lent engine, and a URL."""

import asyncio
import contextlib
import importlib.metadata
import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

import outlast
from outlast.driver import Scope
from outlast.registry import Registry
from outlast_sql import SqlBackend

pytestmark = [pytest.mark.sql, pytest.mark.sqlite]


async def live(backend: outlast.Backend) -> None:
    """A task's life, from its claim to its last trace."""
    tasks, checkpoints = backend.persistence, backend.checkpoints
    claim = await tasks.claim_task("t")
    await tasks.save_task_state("t", outlast.TaskState(id="t"), claim=claim)
    running = {"status": outlast.TaskStatus.RUNNING, "context": {"a.b": [1, 1.0, None, "\0"]}}
    await tasks.update_task_state("t", running, claim=claim)
    messages = [outlast.ApiMessage(id=str(n), role="user", content=f"{n}") for n in range(5)]
    await tasks.append_api_messages("t", messages[:3], claim=claim)
    await tasks.append_api_messages("t", messages, claim=claim)
    other = outlast.ApiMessage(id="1", role="user", content="other")
    with pytest.raises(outlast.ConflictError):
        await tasks.append_api_message("t", other, claim=claim)
    await tasks.save_task_input("t", outlast.TaskInput(message="go"), claim=claim)
    run = await checkpoints.claim("r", thread_id="t")
    partial = outlast.StreamCheckpoint(
        run_id="r", thread_id="t", message_id="m", model="x", text="half"
    )
    await checkpoints.put(partial, claim=run)

    assert await tasks.load_api_messages("t") == messages
    assert await tasks.load_api_messages("t", last=2) == messages[3:]
    listed = await tasks.list_task_states(status=outlast.TaskStatus.RUNNING)
    assert [state.context for state in listed] == [running["context"]]
    successor = await checkpoints.claim("r")
    assert successor.checkpoint is not None
    assert successor.checkpoint.text == "half"
    with pytest.raises(outlast.FencedError):
        await checkpoints.put(partial, claim=run)
    await tasks.delete_task("t", claim=claim)
    assert await tasks.load_task_state("t") is None
    report = await backend.sweep(older_than=timedelta(0))
    assert (report.tombstones, report.complete) == (2, True)
    assert (await tasks.claim_task("t")).epoch > claim.epoch


def test_a_backend_whose_loop_has_ended_is_closed_in_another(path: Path) -> None:
    """C7, X3: nothing that was opened stays."""
    before = set(threading.enumerate())
    backend = outlast.open_backend(f"sqlite:///{path}")
    asyncio.run(backend.open())
    opened = set(threading.enumerate()) - before
    assert opened
    asyncio.run(asyncio.wait_for(backend.aclose(), 10))
    for thread in opened:
        thread.join(5)
        assert not thread.is_alive()


ENDED_LOOP = """
import asyncio, sqlite3, sys, threading, time
import outlast

backend = outlast.open_backend(f"sqlite:///{sys.argv[1]}")
loop = asyncio.new_event_loop()
loop.run_until_complete(backend.open())
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("BEGIN IMMEDIATE")
saving = []

async def begin():
    for name in "abcde":
        save = backend.persistence.save_task_state(name, outlast.TaskState(id=name))
        saving.append(asyncio.ensure_future(save))
    await asyncio.sleep(0.1)

loop.run_until_complete(begin())
loop.close()
started = time.monotonic()
asyncio.run(backend.aclose())
print("late" if time.monotonic() - started > 8 else "in time", flush=True)
while threading.active_count() > 1 and time.monotonic() - started < 20:
    time.sleep(0.01)
print(threading.active_count())
"""


def test_calls_of_a_loop_that_ended_do_not_hold_up_closing(path: Path) -> None:
    """C7, X3: whether they run just then, or wait for the lock or for one another.

    In a process of its own: what is left of such a loop complains.
    """
    result = subprocess.run(
        [sys.executable, "-c", ENDED_LOOP, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=40,
    )
    assert result.stdout == "in time\n1\n"


@pytest.mark.parametrize("url", ["sqlite:///{path}", "sqlite+aiosqlite:///{path}", "sqlite://"])
async def test_a_task_lives_in_a_database_of_its_url(url: str, path: Path) -> None:
    """A1 to S5 in short; the suite of outlast-contract has them at length."""
    async with SqlBackend(url=url.format(path=path), namespace="n") as backend:
        assert backend.name == "sqlite"
        await live(backend)


async def test_a_task_lives_in_an_engine_of_the_application(path: Path) -> None:
    """C7: which goes on using it, during and after."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with SqlBackend(engine=engine) as backend:
        await live(backend)
        async with engine.begin() as connection:
            await connection.exec_driver_sql("CREATE TABLE mine (id)")
    async with engine.connect() as connection:
        count = await connection.exec_driver_sql("SELECT count(*) FROM mine")
        assert count.scalar() == 0
    await engine.dispose()


async def test_setup_false_verifies_and_names_the_command(path: Path) -> None:
    """The error names the backend and the operation, too."""
    backend = SqlBackend(url=f"sqlite:///{path}", setup=False)
    with pytest.raises(outlast.ConfigurationError, match="outlast setup sqlite:///") as caught:
        await backend.open()
    assert (caught.value.backend, caught.value.operation) == ("sqlite", "open")
    assert not path.exists()  # noqa: ASYNC240
    async with SqlBackend(url=f"sqlite:///{path}"):
        pass
    async with SqlBackend(url=f"sqlite:///{path}", setup=False) as verified:
        await verified.ping()


async def test_a_network_file_system_warns_or_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """D2 (H-Q4): by the table of mounts, here one of the test's own making."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 1 0:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:2 / {path.parent} rw - nfs4 server:/export rw,vers=4\n"
    )
    monkeypatch.setattr("outlast.filesystem._MOUNTS", str(mounts))
    with caplog.at_level(logging.WARNING, "outlast"):
        async with SqlBackend(url=f"sqlite:///{path}"):
            pass
    assert "network file system (nfs4" in caplog.text
    with pytest.raises(outlast.ConfigurationError, match="network file system"):
        await SqlBackend(url=f"sqlite:///{path}", strict=True).open()


def test_the_entry_point_imports_no_driver() -> None:
    """Neither does the package: SQLAlchemy comes with the first driver."""
    code = (
        "import sys, outlast_sql._plugin as plugin, outlast_sql\n"
        "drivers = {'sqlalchemy', 'aiosqlite', 'asyncpg', 'asyncmy', 'greenlet'}\n"
        "print([info.name for info in plugin.outlast_backends()], [*drivers & set(sys.modules)])"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout == "['sqlite', 'postgresql', 'mysql', 'mariadb'] []\n"


async def test_the_registry_finds_the_backend_by_its_entry_point(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value is the one in pyproject.toml, read from there: it need not be installed."""
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert 'sql = "outlast_sql._plugin"' in project
    entry = importlib.metadata.EntryPoint("sql", "outlast_sql._plugin", "outlast")
    monkeypatch.setattr("outlast.registry._registry", Registry(lambda: (entry,)))
    for url in (f"sqlite:///{path}", f"sqlite+aiosqlite:///{path}"):
        async with outlast.open_backend(url, namespace="prod", timeout=5.0) as backend:
            await live(backend)
    with pytest.raises(outlast.ConfigurationError, match="unknown option 'journal'"):
        outlast.open_backend(f"sqlite:///{path}", journal="off")


CALLS: dict[str, Callable[[outlast.PersistenceManager], Awaitable[object]]] = {
    "load_task_state": lambda tasks: tasks.load_task_state("t"),
    "load_api_messages": lambda tasks: tasks.load_api_messages("t"),
    "list_task_states": lambda tasks: tasks.list_task_states(),
    "claim_task": lambda tasks: tasks.claim_task("t"),
    "save_task_state": lambda tasks: tasks.save_task_state("t", outlast.TaskState(id="t")),
    "append_api_message": lambda tasks: tasks.append_api_message(
        "t", outlast.ApiMessage(id="b", role="user", content="")
    ),
    "save_api_messages": lambda tasks: tasks.save_api_messages("t", []),
    "delete_task": lambda tasks: tasks.delete_task("t"),
}


OWNED = [call for call in CALLS if call != "load_api_messages"]


@pytest.mark.parametrize(
    ("change", "calls"),
    [
        ("outlast_scope SET claim_id = 5", ["load_task_state", "save_task_state"]),
        ("outlast_scope SET op = 'text'", ["load_task_state"]),
        ("outlast_scope SET parent = x'80'", ["load_task_state"]),
        *(
            (
                f"outlast_scope SET epoch = {value}",
                [call for call in CALLS if "load_api" not in call],
            )
            for value in ("'text'", "1.5", "x'01'")
        ),
        ("outlast_scope SET seq = 'text'", ["load_task_state", "claim_task", "save_task_state"]),
        ("outlast_scope SET tail = 'text'", ["append_api_message", "save_api_messages"]),
        ("outlast_register SET version = 'text'", ["load_task_state", "save_task_state"]),
        ("outlast_register SET changed_at = 'text'", ["load_task_state"]),
        ("outlast_register SET data = 'text'", ["load_task_state"]),
        ("outlast_entry SET data = 'text'", ["load_api_messages"]),
        ("outlast_scope SET id = x'80'", ["list_task_states"]),
    ],
)
async def test_rows_that_outlast_did_not_write_are_corrupt(
    change: str, calls: list[str], path: Path
) -> None:
    """V8: never missing, and never an error of another kind (E3)."""
    async with SqlBackend(url=f"sqlite:///{path}") as backend:
        tasks = backend.persistence
        await tasks.save_task_state("t", outlast.TaskState(id="t"))
        await tasks.append_api_message("t", outlast.ApiMessage(id="a", role="user", content=""))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute(f"UPDATE {change}")
        for call in calls:
            with pytest.raises(outlast.CorruptDataError):
                await CALLS[call](tasks)


async def test_an_id_that_outlast_did_not_write_is_corrupt_where_it_is_read(path: Path) -> None:
    """V8: a message has its id within, so that loading messages reads no other."""
    async with SqlBackend(url=f"sqlite:///{path}") as backend:
        message = outlast.ApiMessage(id="a", role="user", content="")
        await backend.persistence.append_api_message("t", message)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("UPDATE outlast_entry SET entry_id = x'80'")
        assert await backend.persistence.load_api_messages("t") == [message]
        with pytest.raises(outlast.CorruptDataError):
            await backend.driver.load(Scope("task", "t"), "api")


@pytest.mark.parametrize(
    "change",
    [
        "outlast_floor SET epoch = 'text'",
        "outlast_floor SET version = 1.5",
        "outlast_scope SET epoch = 'text'",
        "outlast_scope SET empty_since = 1.5",
    ],
)
async def test_a_sweep_calls_damaged_rows_corrupt(change: str, path: Path) -> None:
    """V8: it removes nothing, and does not raise a floor that it cannot read."""
    async with SqlBackend(url=f"sqlite:///{path}") as backend:
        tasks = backend.persistence
        for task_id in "ab":
            await tasks.save_task_state(task_id, outlast.TaskState(id=task_id))
            await tasks.delete_task(task_id)
            if task_id == "a":
                await backend.sweep(older_than=timedelta(0))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute(f"UPDATE {change}")
        with pytest.raises(outlast.CorruptDataError):
            await backend.sweep(older_than=timedelta(0))


async def test_a_version_of_the_tables_that_is_no_number_is_corrupt(path: Path) -> None:
    """V8, on opening."""
    async with SqlBackend(url=f"sqlite:///{path}"):
        pass
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("DROP TABLE outlast_schema")
        other.execute("CREATE TABLE outlast_schema (version)")
        other.execute("INSERT INTO outlast_schema VALUES ('text')")
    with pytest.raises(outlast.CorruptDataError):
        await SqlBackend(url=f"sqlite:///{path}").open()
