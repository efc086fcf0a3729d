"""What the tests of the file backend share: drivers without threads, and views of a store."""

import asyncio
import itertools
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest

from outlast.backends._fs import FileSystem
from outlast.backends._objects import FileStore
from outlast.backends._threads import Ticket
from outlast.backends.file import LAYOUT, FileDriver
from outlast.driver import LOGS, REGISTERS, Driver, Entry, Fence, Scope, StoredFence, Value
from outlast.errors import OutlastError
from outlast.heads import Layout, Operation

ResultT = TypeVar("ResultT")
ErrorT = TypeVar("ErrorT", bound=OutlastError)

TINY = msgspec.structs.replace(
    LAYOUT,
    tail_entries=3,
    tail_bytes=120,
    task_inline_bytes=24,
    run_inline_bytes=24,
    merge_bytes=160,
    piece_bytes=200,
    max_refs=4,
)
"""A layout under which a dozen small entries already make a tree of pieces."""

TASK, OTHER, RUN = Scope("task", "t"), Scope("task", "u"), Scope("run", "r")
SCOPES = (TASK, OTHER, RUN)


def drive(coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine that never waits, in this thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    coroutine.close()
    raise AssertionError("it waited")


class InlineFileStore(FileStore):
    """Tries again without a pause."""

    async def pause(self, seconds: float) -> None:
        self._ticket.check()


class InlineFileDriver(FileDriver):
    """The file driver in the calling thread, without an event loop."""

    def __init__(
        self, path: Path | str, fs: FileSystem | None = None, layout: Layout = TINY
    ) -> None:
        self.filesystem = fs or FileSystem()
        self.layout = layout
        super().__init__(path, namespace="n")

    async def _run(self, operation: Operation[ResultT]) -> ResultT:
        store = InlineFileStore(self._directory.path, self.filesystem, self._files, Ticket(10))
        return await operation(store)

    async def _call(self, function: Callable[[Ticket], ResultT]) -> ResultT:
        return function(Ticket(10))


class Claimed:
    """A claim on a driver: fences with growing seq."""

    def __init__(self, scope: Scope, value: Value) -> None:
        assert value.fence is not None
        self.scope = scope
        self.value = value
        self._fence = value.fence
        self._seqs = itertools.count(value.fence.seq + 1)

    @property
    def epoch(self) -> int:
        return self._fence.epoch

    def fence(self) -> Fence:
        seq = next(self._seqs)
        return Fence(self._fence.epoch, self._fence.claim_id, seq, f"{seq:016x}")


async def claim(driver: Driver, scope: Scope, **options: Any) -> Claimed:
    return Claimed(scope, await driver.claim(scope, secrets.token_hex(16), **options))


class Seen(NamedTuple):
    """All that can be read of a scope; versions and ages aside."""

    fence: StoredFence | None
    registers: tuple[bytes | None, ...]
    logs: tuple[tuple[Entry, ...], ...]

    @property
    def is_empty(self) -> bool:
        return not any(self.logs) and all(data is None for data in self.registers)


async def look(driver: Driver, scope: Scope) -> Seen:
    """Read all of a scope."""
    values = [await driver.read(scope, name) for name in REGISTERS[scope.kind]]
    logs = [await driver.load(scope, name) for name in LOGS[scope.kind]]
    return Seen(
        values[0].fence, tuple(value.data for value in values), tuple(tuple(log) for log in logs)
    )


async def sweep_all(
    driver: Driver, *, older_than: float = 0.0, dry_run: bool = False
) -> tuple[int, int]:
    """Sweep to the end; tombstones and debris."""
    tombstones = debris = 0
    after: str | None = None
    while True:
        page = await driver.sweep(older_than=older_than, limit=50, dry_run=dry_run, after=after)
        tombstones += page.tombstones
        debris += page.debris
        after = page.next
        if after is None:
            return tombstones, debris


WORKER = Path(__file__).parent / "file_worker.py"


def run_worker(*arguments: object) -> list[list[str]]:
    """Run a worker to its end; its lines, in words."""
    done = subprocess.run(
        [sys.executable, "-W", "error", WORKER, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line.split(maxsplit=3) for line in done.stdout.splitlines()]


@asynccontextmanager
async def worker(*arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker that runs beside the test, and does not outlive it."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, WORKER, *map(str, arguments), stdin=pipe, stdout=pipe
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def entries(*ids: str, size: int = 8) -> list[Entry]:
    return [Entry(entry_id, (entry_id.encode() * size)[:size]) for entry_id in ids]


def ids_of(log: Sequence[Entry]) -> list[str]:
    return [entry.id for entry in log]


def paths_below(folder: Path) -> list[Path]:
    """All files and directories, in order."""
    return sorted(folder.rglob("*"))


def files_below(folder: Path) -> list[Path]:
    """All files, in order."""
    return [path for path in paths_below(folder) if path.is_file()]


def head_files(folder: Path) -> list[Path]:
    """The heads of tasks."""
    return [path for path in files_below(folder) if path.parts[-3] == "task"]


async def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition, or fail at the deadline."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def failing_within(
    seconds: float,
    kind: type[ErrorT],
    call: Callable[[], Awaitable[object]],
    then: Callable[[], Awaitable[object]] | None = None,
) -> ErrorT:
    """The error of a call that fails, in less than so many seconds. A machine that stood still
    meanwhile proves nothing: the call is made, and timed, again.

    Args:
        seconds: Within which it must end.
        kind: Of the error.
        call: Makes the call.
        then: What is done behind each call.
    """
    loop = asyncio.get_running_loop()
    for _ in range(10):
        begin = loop.time()
        with pytest.raises(OutlastError) as caught:
            await call()
        took = loop.time() - begin
        if then is not None:
            await then()
        if took < seconds:
            assert isinstance(caught.value, kind), repr(caught.value)
            return caught.value
    raise AssertionError(f"it took longer than {seconds:g} s each time")
