"""What a bucket must show before it is used: that it keeps conditions; and what would lose data."""

import asyncio
import contextlib
import json
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from outlast.errors import (
    ConfigurationError,
    CorruptDataError,
    OutlastError,
    UnsupportedVersionError,
)
from outlast.heads import gather_some
from outlast_s3._bucket import Answer, Bucket
from outlast_s3._errors import is_denied
from outlast_s3._store import Keys, Place

STORE_FORMAT: Final = 1
"""Of the names of objects; heads and pieces have format numbers of their own."""

_CONTENDERS: Final = 3


async def set_up(place: Place, deadline: float, *, create: bool, hint: str) -> None:
    """Verify a bucket and the store behind it; with ``create``, mark it as ours.

    Args:
        place: Where.
        deadline: The `outlast.heads.moment` until which it may take.
        create: Whether to write the mark if it is missing.
        hint: What to do about a bucket that is not set up, for people.

    Raises:
        ConfigurationError: There is no such bucket, it is not set up, or the store ignores
            conditions.
        UnsupportedVersionError: A newer version of outlast set it up.
        CorruptDataError: The mark cannot be read.
    """
    bucket, marker = place.bucket, place.keys.marker
    found = await bucket.send(deadline, "get_object", {"Key": marker})
    # Some stores make a bucket when something is put into it; a misspelt one is not what was meant.
    if found is None and await bucket.send(deadline, "head_bucket") is None:
        raise ConfigurationError(f"{bucket.described} does not exist; create the bucket first")
    if found is None and not create:
        raise ConfigurationError(f"{bucket.described} is not set up for outlast; {hint}")
    if found is not None:
        _check_format(found.body, f"object {marker!r} of {bucket.described}")
    probe = _Probe(bucket, place.keys, deadline)
    if found is None:
        await probe.race()
    place.can_delete = await probe.run()
    if found is None:
        body = json.dumps({"format": STORE_FORMAT}).encode()
        mark = {"Key": marker, "Body": body, "IfNoneMatch": "*"}
        await bucket.send(deadline, "put_object", mark)


def _check_format(body: bytes, where: str) -> None:
    try:
        stored = json.loads(body)["format"]
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptDataError(f"{where} cannot be decoded") from error
    if not isinstance(stored, int):
        raise CorruptDataError(f"{where} has lost its format number")
    if stored > STORE_FORMAT:
        raise UnsupportedVersionError(
            f"{where} has format {stored}, this version of outlast uses up to {STORE_FORMAT}; "
            "upgrade outlast"
        )


_proven: dict[tuple[str, str, str], bool] = {}
"""What this process found out, for each user of a bucket: whether a DELETE keeps its condition."""


class _Probe:
    """Tries conditions on objects of its own, and removes them.

    Whether requests of one moment are kept apart is tried only when a bucket is set up for the
    first time: it takes many requests, and one passed trial proves little.
    """

    def __init__(self, bucket: Bucket, keys: Keys, deadline: float) -> None:
        self._bucket = bucket
        self._deadline = deadline
        self._name, self._other, self._raced = (
            f"{keys.probes}{secrets.token_hex(16)}" for _ in range(3)
        )

    async def run(self) -> bool:
        """Whether a DELETE keeps its condition, too.

        Raises:
            ConfigurationError: A PUT does not.
        """
        if self._bucket.access not in _proven:
            _proven[self._bucket.access] = await self._run()
        return _proven[self._bucket.access]

    async def race(self) -> None:
        """Create one object several times at once.

        Raises:
            ConfigurationError: More than one of them succeeded, or another one is read.
        """
        creations = [
            partial(self._put, self._raced, str(number).encode(), IfNoneMatch="*")
            for number in range(_CONTENDERS)
        ]
        try:
            done = [etag for etag in await gather_some(creations, _CONTENDERS) if etag is not None]
            if len(done) > 1:
                raise self._unfit(f"it let {len(done)} creations of one object at once succeed")
            found = await self._get(self._raced)
            if done and (found is None or found.etag != done[0]):
                raise self._unfit("a read did not see the object that was just created")
        finally:
            await self._clean_up(self._raced)

    async def _run(self) -> bool:
        # Without the permission, sweeps and lists of tasks would be refused later on.
        await self._send("list_objects_v2", Prefix=self._name, MaxKeys=1)
        try:
            first = await self._put(self._name, b"1", IfNoneMatch="*")
            second = None if first is None else await self._put(self._name, b"2", IfMatch=first)
            if first is None or second is None:
                raise self._unfit("it refuses conditional requests whose condition holds")
            trials = [
                partial(self._ignored, "If-None-Match", self._name, IfNoneMatch="*"),
                partial(self._ignored, "If-Match", self._name, IfMatch=first),
                partial(self._ignored, "If-Match", self._other, IfMatch=second),
            ]
            # All of them end before one is judged: what is still under way would stay behind.
            for header in await gather_some(trials, len(trials)):
                if header is not None:
                    raise self._unfit(f"it ignores the condition {header} of a PUT")
            return await self._deletes(first, second)
        finally:
            await self._clean_up(self._name, self._other)

    async def _ignored(self, header: str, name: str, **condition: str) -> str | None:
        """The header, if a PUT succeeds whose condition does not hold."""
        return None if await self._put(name, b"3", **condition) is None else header

    async def _deletes(self, old: str, new: str) -> bool:
        """Whether a DELETE is refused for an old version, and done for the present one."""
        try:
            if await self._delete(old) is not None:
                return False
            found = await self._get(self._name)
            if found is None or found.etag != new or found.body != b"2":
                return False
            return await self._delete(new) is not None and await self._get(self._name) is None
        except ConfigurationError as error:
            if is_denied(error):
                raise
            return False  # It does not know the header.

    async def _clean_up(self, *names: str) -> None:
        with contextlib.suppress(OutlastError):  # A sweep removes what stays.
            removals = [partial(self._send, "delete_object", Key=name) for name in names]
            await gather_some(removals, len(removals))

    async def _put(self, name: str, body: bytes, **condition: str) -> str | None:
        done = await self._send("put_object", Key=name, Body=body, **condition)
        return None if done is None else done.etag

    async def _get(self, name: str) -> Answer | None:
        return await self._send("get_object", Key=name)

    async def _delete(self, etag: str) -> Answer | None:
        return await self._send("delete_object", Key=self._name, IfMatch=etag)

    async def _send(self, method: str, **parameters: Any) -> Answer | None:
        return await self._bucket.send(self._deadline, method, parameters)

    def _unfit(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"{self._bucket.described} cannot be used: {reason}, so two owners could both believe "
            "to have written; use a store with conditional writes (If-Match, If-None-Match)"
        )


async def hazards_of(place: Place, deadline: float) -> list[str]:
    """Settings of the bucket under which data stays that was deleted, or fences go (D2)."""
    described = place.bucket.described
    found: list[str] = []
    versioning, lifecycle = await asyncio.gather(
        _setting(place, deadline, "get_bucket_versioning"),
        _setting(place, deadline, "get_bucket_lifecycle_configuration"),
    )
    if versioning.get("Status") == "Enabled":
        found.append(
            f"{described} keeps old versions of objects: what was deleted stays there until a "
            "lifecycle rule removes noncurrent versions"
        )
    found += [
        f"{described} lets objects of this namespace expire (lifecycle rule "
        f"{rule.get('ID', 'without ID')!r}): accepted writes and fences will be lost"
        for rule in lifecycle.get("Rules", ())
        if _expires(rule, place.keys.root)
    ]
    return found


async def _setting(place: Place, deadline: float, method: str) -> Mapping[str, Any]:
    """A setting, or nothing where it is not known, not there, or not to be seen."""
    try:
        found = await place.bucket.send(deadline, method)
    except OutlastError:
        return {}
    return {} if found is None else found.fields


def _expires(rule: Mapping[str, Any], root: str) -> bool:
    """Whether a lifecycle rule removes objects below ``root``; those have no tags."""
    condition: Mapping[str, Any] = rule.get("Filter") or {}
    combined: Mapping[str, Any] = condition.get("And") or condition
    tags: Sequence[object] = combined.get("Tags") or [
        tag for tag in (combined.get("Tag"),) if tag is not None
    ]
    prefix = str(combined.get("Prefix") or rule.get("Prefix") or "")
    expiration: Mapping[str, Any] = rule.get("Expiration") or {}
    removes = rule.get("Status") == "Enabled" and ("Days" in expiration or "Date" in expiration)
    return removes and not tags and (root.startswith(prefix) or prefix.startswith(root))


__all__ = ["STORE_FORMAT", "hazards_of", "set_up"]
