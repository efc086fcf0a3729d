"""What kind of file system a path is on: locks and crash safety depend on it."""

import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_NETWORK: Final = frozenset(
    {
        "9p",
        "afs",
        "autofs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "pvfs2",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
    }
)
_NETWORK_FUSE: Final = re.compile(
    r"fuse\..*(sshfs|s3|rclone|gcs|goofys|nfs|smb|cifs|dav|ceph|gluster|juicefs|mfs|blob|drive)"
)
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_MOUNTS: Final = "/proc/self/mountinfo"


class Mount(NamedTuple):
    """Where a file system is mounted, and of which type it is."""

    point: str
    type: str


def mount_of(path: str | os.PathLike[str]) -> Mount | None:
    """The mount that holds ``path``, which need not exist; ``None`` where that cannot be told."""
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
            text = file.read()
    except OSError:
        return None
    return find_mount(os.path.realpath(path), text)


def find_mount(path: str, mountinfo: str) -> Mount | None:
    """The mount that holds the real, absolute ``path``, by the text of ``/proc/self/mountinfo``."""
    found: Mount | None = None
    for mount in _mounts(mountinfo):
        inside = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        # Of two mounts on one point the later one hides the earlier one.
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def is_network(file_system: str) -> bool:
    """Whether a file system of this type is shared with other machines."""
    return file_system in _NETWORK or _NETWORK_FUSE.fullmatch(file_system) is not None


def network_mount(path: str | os.PathLike[str]) -> Mount | None:
    """The mount that holds ``path``, if it is shared with other machines."""
    mount = mount_of(path)
    return mount if mount is not None and is_network(mount.type) else None


def _mounts(mountinfo: str) -> Iterator[Mount]:
    for line in mountinfo.splitlines():
        # The fifth field is the mount point; behind a lone hyphen stands the type.
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if separator and len(fields) > 4:
            yield Mount(_ESCAPE.sub(_unescape, fields[4]), after.split(" ")[0])


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1], 8))


__all__ = ["Mount", "find_mount", "is_network", "mount_of", "network_mount"]
