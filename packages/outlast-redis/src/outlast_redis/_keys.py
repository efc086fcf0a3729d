"""Names of keys: what one script touches shares a hash tag, so that it lives in one slot (R9)."""

import zlib
from typing import Final, NamedTuple
from urllib.parse import quote

from outlast.driver import LOGS, REGISTERS, Scope, ScopeKind

BUCKETS: Final = 256
"""Over so many tags the scopes of a namespace are spread."""

KIND_CODES: Final[dict[ScopeKind, bytes]] = {"task": b"t", "run": b"r"}
LOG_CODES: Final = {"api": b"a", "user": b"u"}
PARTS: Final = {
    name: str(1 << place)
    for place, name in enumerate((*REGISTERS["task"], *LOGS["task"], *REGISTERS["run"]))
}
"""The bit of each register and log in the head's ``parts``."""


class LogKeys(NamedTuple):
    """The entries of a log, and where in it each id is."""

    entries: bytes
    ids: bytes


class Keys:
    """The names of one namespace.

    Attributes:
        format: What marks the namespace as ours.
        none: On the same slot, and never there.
        patterns: All names, as rules of an ACL.

    A namespace and a bucket make the tag, the namespace percent-encoded: no id, which may hold
    braces, has a say in it. Ids stand at the end, as they are.
    """

    def __init__(self, namespace: str) -> None:
        """Prepare the names of ``namespace``."""
        name = quote(namespace, safe="").encode()
        self.format = b"outlast:{%s}:format" % name
        self.none = b"outlast:{%s}:none" % name
        self.patterns = f"~outlast:{{{name.decode()}}}:* ~outlast:{{{name.decode()}.*"
        self._tags = [b"outlast:{%s.%02x}:" % (name, bucket) for bucket in range(BUCKETS)]

    def bucket(self, scope_id: str) -> int:
        """Which bucket a scope of this id belongs to, whatever its kind."""
        return zlib.crc32(scope_id.encode()) % BUCKETS

    def index(self, bucket: int) -> bytes:
        """All scopes of a bucket: by kind and id, and by kind, parent and id."""
        return self._tags[bucket] + b"index"

    def empty(self, bucket: int) -> bytes:
        """The scopes of a bucket that hold no data, by the time of their last change."""
        return self._tags[bucket] + b"empty"

    def floor(self, bucket: int) -> bytes:
        """What no epoch or version of a swept scope was above."""
        return self._tags[bucket] + b"floor"

    def staged(self, bucket: int) -> bytes:
        """The generations that were put aside, by the time of their last piece."""
        return self._tags[bucket] + b"staged"

    def head(self, bucket: int, member: bytes) -> bytes:
        """The record of a scope: fence, versions, index attributes, registers."""
        return self._tags[bucket] + b"head:" + member

    def generation(self, bucket: int, generation: bytes) -> LogKeys:
        """A log that was put aside."""
        return LogKeys(
            self._tags[bucket] + b"staged:" + generation,
            self._tags[bucket] + b"staged-ids:" + generation,
        )

    def of(self, scope: Scope) -> "ScopeKeys":
        """The names of one scope."""
        bucket = self.bucket(scope.id)
        return ScopeKeys(self, bucket, KIND_CODES[scope.kind] + scope.id.encode())


class ScopeKeys:
    """The names of one scope and of its bucket."""

    __slots__ = ("_keys", "bucket", "head", "member")

    def __init__(self, keys: Keys, bucket: int, member: bytes) -> None:
        """Name the scope that is ``member`` of a bucket's index."""
        self._keys = keys
        self.bucket = bucket
        self.member = member
        self.head = keys.head(bucket, member)

    @property
    def record(self) -> tuple[bytes, bytes, bytes, bytes]:
        """What every script on the record takes."""
        keys, bucket = self._keys, self.bucket
        return self.head, keys.index(bucket), keys.empty(bucket), keys.floor(bucket)

    def log(self, name: str) -> LogKeys:
        """One of the scope's logs."""
        tag = self.head.removesuffix(b"head:" + self.member)
        code = LOG_CODES[name]
        return LogKeys(tag + b"log:" + code + self.member, tag + b"ids:" + code + self.member)


__all__ = ["BUCKETS", "KIND_CODES", "PARTS", "Keys", "LogKeys", "ScopeKeys"]
