"""Damaged files and disks that are full, closed or broken: what the driver says and leaves."""

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from file_kit import (
    OTHER,
    RUN,
    SCOPES,
    TASK,
    Claimed,
    InlineFileDriver,
    claim,
    drive,
    entries,
    files_below,
    head_files,
    ids_of,
    look,
    paths_below,
    run_worker,
    sweep_all,
)
from file_workload import workload, worlds_of

from outlast.backends import _directory, _objects
from outlast.backends._fs import FileSystem
from outlast.backends.file import FileDriver
from outlast.driver import Entry, Scope, Value, Where
from outlast.errors import (
    CorruptDataError,
    OutcomeUnknownError,
    OutlastError,
    UnavailableError,
    UnsupportedVersionError,
)

pytestmark = pytest.mark.file


# --- Damage


async def test_a_damaged_record_is_corrupt_wherever_it_is_met(tmp_path: Path) -> None:
    driver = InlineFileDriver(tmp_path)
    await driver.setup(create=True)
    await driver.append(TASK, "api", entries(*"abcdefgh", size=50), fence=None)
    await driver.append(RUN, "api", entries("x"), fence=None)
    (head,) = head_files(tmp_path)
    whole = head.read_bytes()
    newer = whole[:4] + (9).to_bytes(2) + whole[6:]
    for damage, error in (
        (b"", CorruptDataError),
        (whole[:10], CorruptDataError),
        (whole[:-1], CorruptDataError),
        (bytes(len(whole)), CorruptDataError),
        (newer, UnsupportedVersionError),
    ):
        head.write_bytes(damage)
        for call in (
            driver.read(TASK, "state"),
            driver.load(TASK, "api"),
            driver.claim(TASK, "a" * 32),
            driver.append(TASK, "api", entries("i"), fence=None),
            driver.remove(TASK, fence=None),
            driver.scan("task", where=Where(with_empty=True), after=None, limit=9),
        ):
            with pytest.raises(error) as caught:
                await call
            assert str(head) in str(caught.value)
            assert caught.value.applied is False
        await sweep_all(driver)
        assert head.read_bytes() == damage
    head.write_bytes(whole)
    assert ids_of(await driver.load(TASK, "api")) == list("abcdefgh")


async def test_a_record_that_was_put_back_in_place_is_noticed_by_its_owner(tmp_path: Path) -> None:
    driver = InlineFileDriver(tmp_path)
    await driver.setup(create=True)
    mine = await claim(driver, TASK)
    await driver.append(TASK, "api", entries("a"), fence=mine.fence())
    (head,) = head_files(tmp_path)
    copied = head.read_bytes()
    await driver.append(TASK, "api", entries("b"), fence=mine.fence())
    head.write_bytes(copied)
    assert await driver.append(TASK, "api", entries("c"), fence=mine.fence()) == []
    assert ids_of(await driver.load(TASK, "api")) == ["a", "c"]


async def test_files_that_are_not_of_the_store_are_left_alone(tmp_path: Path) -> None:
    driver = InlineFileDriver(tmp_path)
    await driver.setup(create=True)
    await driver.append(TASK, "api", entries(*"abcdefgh", size=50), fence=None)
    strangers: list[Path] = []
    for path in paths_below(tmp_path):
        if path.is_dir():
            strangers += [path / name for name in (".DS_Store", "Icon", "x-y-z", "a" * 63)]
    for path in strangers:
        path.write_text("mine")
    page = await driver.scan("task", where=Where(with_empty=True), after=None, limit=9)
    assert [item.id for item in page.items] == ["t"]
    assert await sweep_all(driver) == (0, 0)
    assert all(path.read_text() == "mine" for path in strangers)


async def test_a_record_whose_pieces_are_gone_is_corrupt(tmp_path: Path) -> None:
    driver = InlineFileDriver(tmp_path)
    await driver.setup(create=True)
    mine = await claim(driver, TASK)
    await driver.append(TASK, "api", entries(*"abcdefgh", size=50), fence=mine.fence())
    for path in files_below(tmp_path):
        if path.parts[-3] == "piece":
            path.unlink()
    for one in (driver, InlineFileDriver(tmp_path)):
        for call in (
            one.load(TASK, "api"),
            one.append(TASK, "api", entries("a"), fence=mine.fence()),
        ):
            with pytest.raises(CorruptDataError, match="not there"):
                await call


async def test_a_record_under_another_ones_name_is_corrupt_and_a_sweep_leaves_it_alone(
    tmp_path: Path,
) -> None:
    driver = InlineFileDriver(tmp_path)
    await driver.setup(create=True)
    await driver.append(TASK, "api", entries("a"), fence=None)
    (head,) = head_files(tmp_path)
    await driver.append(OTHER, "api", entries(*"bcdefgh", size=50), fence=None)
    (other,) = (path for path in head_files(tmp_path) if path != head)
    kept = other.read_bytes()
    other.write_bytes(head.read_bytes())
    driver = InlineFileDriver(tmp_path)
    for call in (
        driver.load(OTHER, "api"),
        driver.scan("task", where=Where(with_empty=True), after=None, limit=9),
    ):
        with pytest.raises(CorruptDataError, match="moved or copied"):
            await call
    assert await sweep_all(driver) == (0, 0)
    other.write_bytes(kept)  # Whoever puts it back finds all its pieces.
    assert ids_of(await driver.load(OTHER, "api")) == list("bcdefgh")


# --- Disks that are full, closed or broken


async def test_a_file_that_may_not_grow_leaves_the_old_value(tmp_path: Path) -> None:
    driver = InlineFileDriver(tmp_path)
    await driver.setup(create=True)
    await driver.write(TASK, "state", b"old" * 5000, fence=None)
    await driver.append(TASK, "api", entries("a"), fence=None)
    before = await look(driver, TASK)
    files = paths_below(tmp_path)
    write, append, small = run_worker("write_limited", tmp_path, 32768)
    for line in (write, append):
        assert line[1:3] == ["UnavailableError", "False"]
        assert "ulimit -f" in line[3]
        assert str(tmp_path) in line[3]
    assert small == ["small", "done"]
    after = await look(driver, TASK)
    assert after == before._replace(logs=((*before.logs[0], Entry("small", b"")), ()))
    assert paths_below(tmp_path) == files


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 600 KiB."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield path
    is_free = subprocess.run(["umount", str(path)], check=False).returncode == 0
    if not is_free:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
    assert is_free, "a file was left open"


async def test_a_full_disk_leaves_the_old_value_and_goes_on_when_there_is_space(
    small_disk: Path,
) -> None:
    driver = FileDriver(small_disk / "s", namespace="n")
    await driver.setup(create=True)
    mine = await claim(driver, TASK)
    await driver.write(TASK, "state", b"old" * 30_000, fence=mine.fence())
    filler = small_disk / "filler"
    filler.write_bytes(bytes(200_000))

    async def fill() -> None:
        for number in range(100):
            entry = Entry(f"m{number}", bytes(20_000))
            await driver.append(TASK, "api", [entry], fence=mine.fence())

    with pytest.raises(UnavailableError, match="no space left") as caught:
        await fill()
    assert caught.value.applied is False
    log = await driver.load(TASK, "api")
    assert ids_of(log) == [f"m{number}" for number in range(len(log))]
    with pytest.raises(UnavailableError, match="no space left"):
        await driver.write(TASK, "state", b"new" * 90_000, fence=mine.fence())
    assert (await driver.read(TASK, "state")).data == b"old" * 30_000
    assert not [path for path in files_below(small_disk) if path.suffix == ".tmp"]
    filler.unlink()
    await driver.write(TASK, "state", b"new" * 30_000, fence=mine.fence())
    await driver.aclose()


def readable_folder() -> Path:
    """A folder that everybody may read and only its owner may change."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    return folder


@pytest.mark.skipif(getattr(os, "geteuid", int)() != 0, reason="only root can become another user")
async def test_places_without_permission_are_named(tmp_path: Path) -> None:
    readable = readable_folder()
    try:
        (line, _) = run_worker("use_unprivileged", readable / "s", "create")
        assert line[1] == "ConfigurationError"
        assert f"no permission to read and write in {readable}" in line[3]
        driver = FileDriver(readable / "s", namespace="n")
        await driver.setup(create=True)
        await driver.append(TASK, "api", entries("a"), fence=None)
        await driver.aclose()
        (line, append) = run_worker("use_unprivileged", readable / "s", "create")
        assert line[1] == "ConfigurationError"
        assert append[1:3] == ["UnavailableError", "False"]
        (line, append) = run_worker("use_unprivileged", readable / "s", "verify")
        assert line == ["setup", "done"]
        assert append[1:3] == ["UnavailableError", "False"]
    finally:
        shutil.rmtree(readable)


class FailingFileSystem(FileSystem):
    """Fails at its ``k``-th call that changes the disk, once."""

    def __init__(self, k: int, code: int) -> None:
        self.left = k
        self.failed = ""
        self._code = code

    def _count(self, call: str, path: str = "") -> None:
        self.left -= 1
        if self.left == -1:
            self.failed = call
            raise OSError(self._code, os.strerror(self._code), path or None)

    def create(self, path: str) -> int:
        self._count("create", path)
        return super().create(path)

    def write(self, fd: int, data: bytes) -> None:
        super().write(fd, data[: len(data) // 2])
        self._count("write")
        super().write(fd, data[len(data) // 2 :])

    def set_mtime(self, fd: int, mtime_ns: int | None) -> None:
        self._count("set_mtime")
        super().set_mtime(fd, mtime_ns)

    def fsync(self, fd: int) -> None:
        self._count("fsync")
        super().fsync(fd)

    def rename(self, old: str, new: str) -> None:
        self._count("rename", old)
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._count("unlink", path)
        super().unlink(path)

    def open_lock(self, path: str) -> int:
        self._count("open_lock", path)
        return super().open_lock(path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_an_error_of_any_call_leaves_the_old_value_or_the_new_one_and_nothing_else(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_objects, "BUCKETS", ("00",))
    monkeypatch.setattr(_directory, "BUCKETS", ("00",))
    shared = "/dev/shm" if Path("/dev/shm").is_dir() else None
    outcomes: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        reference = InlineFileDriver(Path(folder) / "reference")
        drive(reference.setup(create=True))
        worlds, _ = drive(worlds_of(reference, reference, workload(8), lambda: None))
        k = 0
        while True:
            fs = FailingFileSystem(10**9, code)
            driver = InlineFileDriver(Path(folder) / str(k), fs)
            drive(driver.setup(create=True))
            fs.left = k
            claims: dict[str, Claimed] = {}
            for place, step in enumerate(workload(8)):
                try:
                    drive(step(driver, claims))
                except OutlastError as error:
                    outcome = type(error).__name__
                    allowed = worlds[place : place + (2 if error.applied is None else 1)]
                else:
                    outcome = "done"
                    allowed = worlds[place + 1 : place + 2]
                if not fs.failed:
                    continue
                outcomes.setdefault(fs.failed, set()).add(outcome)
                for scope in SCOPES:
                    seen = drive(look(driver, scope))
                    begun = seen.is_empty and outcome != "done"
                    assert begun or seen in [world[scope] for world in allowed], (k, fs.failed)
                break
            else:
                break
            left = [path.name for path in (Path(folder) / str(k)).rglob("*.tmp")]
            assert not left or fs.failed == "unlink", (k, fs.failed)
            mine = drive(claim(driver, TASK))
            assert drive(driver.append(TASK, "api", entries("next"), fence=mine.fence())) == []
            k += 1
    assert k > 100
    assert outcomes["rename"] == {"UnavailableError"}
    assert outcomes["write"] == {"UnavailableError"}
    assert "OutcomeUnknownError" in outcomes["fsync"]
    assert "UnavailableError" in outcomes["fsync"]
    assert outcomes["unlink"] <= {"done", "UnavailableError"}


async def test_a_name_that_cannot_be_made_durable_is_an_unknown_outcome(tmp_path: Path) -> None:
    class Failing(FileSystem):
        is_broken = False

        def fsync_dir(self, path: str) -> None:
            if self.is_broken:
                raise OSError(errno.EIO, "Input/output error")
            super().fsync_dir(path)

    fs = Failing()
    driver = InlineFileDriver(tmp_path, fs)
    await driver.setup(create=True)
    mine = await claim(driver, TASK)
    fs.is_broken = True
    for fence in (mine.fence(), None):
        scope = TASK if fence else Scope("task", "unclaimed")
        with pytest.raises(OutcomeUnknownError) as caught:
            await driver.append(scope, "api", entries("a"), fence=fence)
        assert caught.value.applied is None
        with pytest.raises(UnavailableError):
            await driver.load(scope, "api")
    fs.is_broken = False
    assert ids_of(await driver.load(TASK, "api")) == ["a"]


# --- Sweeps


async def test_after_removal_and_sweep_no_file_of_the_task_is_left(tmp_path: Path) -> None:
    driver = InlineFileDriver(tmp_path)
    await driver.setup(create=True)
    before = files_below(tmp_path)
    mine = await claim(driver, TASK)
    for number in range(60):
        await driver.append(TASK, "api", entries(f"m{number}", size=40), fence=mine.fence())
    await driver.write(TASK, "input", bytes(1000), fence=mine.fence())
    (head,) = head_files(tmp_path)
    digest = head.name
    (head.parent / f"{digest}.0123.tmp").write_bytes(b"half a he")
    (tmp_path / "outlast.json.0123.tmp").write_bytes(b"{")
    await driver.remove(TASK, fence=mine.fence())
    assert await sweep_all(driver, older_than=60.0) == (0, 0)
    assert await sweep_all(driver, dry_run=True) == (1, 2)
    assert await sweep_all(driver) == (1, 2)
    after = files_below(tmp_path)
    assert {path.parts[-2] for path in after if path not in before} <= {"floor", "lock"}
    assert not [
        path for path in after if digest in path.name or digest.encode() in path.read_bytes()
    ]
    assert await driver.read(TASK, "state") == Value()
