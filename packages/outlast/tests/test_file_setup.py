"""Paths, set-up, names and mounts of file stores."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from file_kit import (
    TASK,
    InlineFileDriver,
    entries,
    files_below,
    head_files,
    paths_below,
    sweep_all,
)

from outlast import filesystem
from outlast.backends._fs import explain
from outlast.backends.file import FileBackend, FileDriver
from outlast.driver import Scope, ScopeKind
from outlast.errors import (
    ConfigurationError,
    CorruptDataError,
    InvalidIdError,
    UnavailableError,
    UnsupportedVersionError,
)

pytestmark = pytest.mark.file


# --- URLs and paths


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///a/b", "/a/b"),
        ("file:///a%20b/%23%3F%C3%A9", "/a b/#?é"),
        ("FILE:///a", "/a"),
        ("file:///a/../b/", "/b"),
        ("file:/a", "/a"),
    ],
)
def test_a_url_names_an_absolute_path(url: str, path: str) -> None:
    assert FileDriver.from_url(url)._directory.root == path


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file://a/b", "host"),
        ("file://localhost/a", "host"),
        ("file://user:secret@host/a", "host"),
        ("file:a/b", "absolute"),
        ("file:///a?mode=x", "mode"),
        ("file:///a#b", "%23"),
        ("file:///a%00b", "directory"),
        ("file:///a%FF", "UTF-8"),
        ("file:///a\nb", "control"),
        ("file://", "absolute"),
    ],
)
def test_another_url_is_refused_with_what_to_write(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        FileDriver.from_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", b"bytes", 7, None])
def test_what_is_no_path_is_refused(path: object) -> None:
    with pytest.raises(ConfigurationError):
        FileDriver(path)  # type: ignore[arg-type]


def test_a_relative_path_stays_what_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    driver = FileDriver("store")
    monkeypatch.chdir("/")
    assert driver._directory.root == str(tmp_path / "store")


def test_a_backend_checks_its_arguments_without_touching_the_disk(tmp_path: Path) -> None:
    with pytest.raises(InvalidIdError):
        FileBackend(tmp_path / "s", namespace="")
    with pytest.raises(ConfigurationError):
        FileBackend(tmp_path / "s", timeout=0)
    FileBackend(tmp_path / "s")
    assert not (tmp_path / "s").exists()


# --- Set-up


async def test_verifying_makes_nothing_and_says_what_is_missing(tmp_path: Path) -> None:
    driver = FileDriver(tmp_path / "s", namespace="n")
    with pytest.raises(ConfigurationError, match="setup=True"):
        await driver.setup(create=False)
    assert not paths_below(tmp_path)
    await driver.setup(create=True)
    await driver.setup(create=False)
    await driver.setup(create=True)
    with pytest.raises(ConfigurationError, match="'other'"):
        await FileDriver(tmp_path / "s", namespace="other").setup(create=False)
    await driver.aclose()


async def test_a_file_in_the_way_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigurationError, match="file"):
            await FileDriver(path).setup(create=True)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match="dangling"):
        await FileDriver(tmp_path / "dangling").setup(create=True)


async def test_a_path_that_cannot_be_looked_at_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for create in (True, False):
        with pytest.raises(ConfigurationError, match="symbolic links") as refused:
            await FileDriver(tmp_path / "loop" / "s").setup(create=create)
        assert "setup=True" not in str(refused.value)


@pytest.mark.parametrize("name", ["outlast.json", "namespace.json"])
async def test_markers_of_newer_damaged_or_other_stores_are_told_apart(
    name: str, tmp_path: Path
) -> None:
    driver = InlineFileDriver(tmp_path)
    await driver.setup(create=True)
    (marker,) = (path for path in files_below(tmp_path) if path.name == name)
    content = json.loads(marker.read_text())
    for damage in ("", "{", "[]", '{"format": "1"}', "\0" * 30):
        marker.write_text(damage)
        with pytest.raises(CorruptDataError, match=name):
            await driver.setup(create=True)
    marker.write_text(json.dumps(content | {"format": 2, "more": 1}))
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        await driver.setup(create=True)
    marker.write_text(json.dumps(content | {"namespace": "other"}))
    with pytest.raises(CorruptDataError, match="moved or copied"):
        await driver.setup(create=False)
    marker.write_text(json.dumps(content))
    await driver.setup(create=False)


async def test_a_directory_with_other_files_in_it_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    driver = InlineFileDriver(tmp_path)
    await driver.setup(create=True)
    await sweep_all(driver)
    assert (tmp_path / "mine.txt").read_text() == "mine"


async def test_a_store_that_vanished_is_unavailable_and_not_empty(tmp_path: Path) -> None:
    driver = InlineFileDriver(tmp_path / "s")
    await driver.setup(create=True)
    await driver.append(TASK, "api", entries("a"), fence=None)
    await driver.ping()
    shutil.rmtree(tmp_path / "s")
    for call in (
        driver.ping(),
        driver.read(TASK, "state"),
        driver.load(TASK, "api"),
        driver.claim(TASK, "a" * 32),
        driver.append(TASK, "api", entries("b"), fence=None),
    ):
        with pytest.raises(UnavailableError, match="is gone") as caught:
            await call
        assert caught.value.applied is False


# --- Ids


AWKWARD = [
    "..",
    ".",
    "/etc/passwd",
    "../../x",
    "a/b",
    "a//b",
    "a",
    "A",
    "a ",
    "a.",
    "\u00e9",
    "e\u0301",
    "CON",
    "nul.txt",
    "a\0b",
    "a\nb",
    "{}",
    "x" * 512,
    "\U0001f600",
    "-rf",
    ".tmp",
    "%2e%2e",
]


async def test_awkward_ids_and_namespaces_stay_apart_and_below_the_directory(
    tmp_path: Path,
) -> None:
    root = tmp_path / "s"
    registers: dict[ScopeKind, str] = {"task": "state", "run": "checkpoint"}
    drivers: dict[str, FileDriver] = {}
    for namespace in ("n", "N", "..", "n/n"):
        drivers[namespace] = FileDriver(root, namespace=namespace)
        await drivers[namespace].setup(create=True)
        for scope_id in AWKWARD:
            for kind, register in registers.items():
                data = repr((namespace, kind, scope_id)).encode()
                await drivers[namespace].write(Scope(kind, scope_id), register, data, fence=None)
    for namespace, driver in drivers.items():
        for scope_id in AWKWARD:
            for kind, register in registers.items():
                value = await driver.read(Scope(kind, scope_id), register)
                assert value.data == repr((namespace, kind, scope_id)).encode()
        await driver.aclose()
    assert {path.parts[len(tmp_path.parts)] for path in paths_below(tmp_path)} == {"s"}
    files = [str(path.relative_to(root)) for path in paths_below(root)]
    assert len({name.casefold() for name in files}) == len(files)
    assert all(max(map(len, Path(name).parts)) < 143 for name in files)
    assert len(head_files(root)) == 4 * len(AWKWARD)


# --- Network file systems


MOUNTS = r"""
22 28 0:20 / /proc rw,nosuid shared:12 - proc proc rw
28 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
90 28 0:50 / /mnt/net rw shared:50 - nfs4 server:/export rw,vers=4.2
91 28 0:51 / /mnt/with\040space rw - cifs //server/share rw
92 90 254:1 / /mnt/net/local rw - xfs /dev/vdb rw
93 28 0:52 / /mnt/over rw - ext4 /dev/vdc rw
94 93 0:53 / /mnt/over rw - fuse.sshfs user@host: rw
95 28 0:54 / /mnt/plain rw - fuse.encfs encfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind", "is_network"),
    [
        ("/home/x", "ext4", False),
        ("/mnt/net", "nfs4", True),
        ("/mnt/net/a/b", "nfs4", True),
        ("/mnt/network", "ext4", False),
        ("/mnt/net/local/x", "xfs", False),
        ("/mnt/with space/x", "cifs", True),
        ("/mnt/over/x", "fuse.sshfs", True),
        ("/mnt/plain", "fuse.encfs", False),
        ("/proc/1", "proc", False),
    ],
)
def test_the_mount_that_holds_a_path_is_found(path: str, kind: str, is_network: bool) -> None:
    mount = filesystem.find_mount(path, MOUNTS)
    assert mount is not None
    assert mount.type == kind
    assert filesystem.is_network(mount.type) is is_network


async def test_a_network_file_system_is_a_hazard_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FileDriver(tmp_path / "not" / "yet")
    assert await driver.hazards() == ()
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"30 1 0:9 / {tmp_path} rw - nfs server:/x rw\n")
    monkeypatch.setattr(filesystem, "_MOUNTS", str(mounts))
    (text,) = await driver.hazards()
    assert "nfs" in text
    assert "local disk" in text
    monkeypatch.setattr(filesystem, "_MOUNTS", str(tmp_path / "missing"))
    assert await driver.hazards() == ()
    await driver.aclose()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "no space left"),
        (errno.EDQUOT, "quota"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permission"),
        (errno.ENOENT, "gone"),
        (errno.ENOTDIR, "not a directory"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENOLCK, "locks"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_an_error_of_the_system_says_where_and_what_to_do(code: int, words: str) -> None:
    text = explain(OSError(code, os.strerror(code)), "/some/where/file")
    assert words in text
    assert "/some/where" in text
