"""Scans and sweeps: what goes through the buckets of a namespace, one after the other."""

import hashlib
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from outlast.driver import PRIMARY, Item, Page, ScopeKind, SweepPage, Where
from outlast_redis import _scripts
from outlast_redis._answers import attribute, value_of
from outlast_redis._keys import BUCKETS, KIND_CODES, Keys
from outlast_redis._links import Link
from outlast_redis._scripts import run, run_all

_SWEPT_TOGETHER: Final = 32
_MOST_TOGETHER: Final = 64


async def scan(
    link: Link, keys: Keys, kind: ScopeKind, where: Where, after: str | None, limit: int
) -> Page:
    """`Driver.scan`: ids from the index, then what is stored of them, filtered by the server."""
    found = await _find(link, keys, kind, where.parent, after, limit)
    groups = [
        (bucket, [member for _, member in members])
        for bucket, members in groupby(found, key=lambda place: place[0])
    ]
    arguments = [
        PRIMARY[kind],
        attribute(where.parent),
        attribute(where.status),
        "" if where.updated_before is None else where.updated_before,
        int(where.with_empty),
    ]
    answers = await run_all(
        link,
        [
            (_scripts.MATCH, [keys.head(bucket, member) for member in members], arguments)
            for bucket, members in groups
        ],
    )
    items: list[Item] = []
    for (_, members), (now, *matches) in zip(groups, answers, strict=True):
        items += (
            Item(_id_of(members[int(place)]), value_of(now, fields)) for place, *fields in matches
        )
    return Page(items, _id_of(found[-1][1]) if len(found) == limit else None)


def _id_of(member: bytes) -> str:
    return member[1:].decode()


async def _find(
    link: Link, keys: Keys, kind: ScopeKind, parent: str | None, after: str | None, limit: int
) -> list[tuple[int, bytes]]:
    """The next scopes in the order of buckets and ids, each with its bucket, as members."""
    code = KIND_CODES[kind]
    prefix = code
    if parent is not None:
        digest = hashlib.sha1(attribute(parent).encode(), usedforsecurity=False)
        prefix = code.upper() + digest.hexdigest().encode()
    first = b"[" + prefix
    end = b"(" + prefix[:-1] + bytes([prefix[-1] + 1])
    low = first if after is None else b"(" + prefix + after.encode()
    bucket = 0 if after is None else keys.bucket(after)
    found: list[tuple[int, bytes]] = []
    together = 1
    while bucket < BUCKETS and len(found) < limit:
        # A full store answers from one bucket; of an empty one, many are asked at once.
        numbers = range(bucket, min(bucket + together, BUCKETS))
        lows = [low, *[first] * (len(numbers) - 1)]
        count = limit - len(found)
        answers = await link.send_all(
            [
                (index, ("ZRANGEBYLEX", index, start, end, "LIMIT", 0, count))
                for index, start in zip(map(keys.index, numbers), lows, strict=True)
            ]
        )
        for number, members in zip(numbers, answers, strict=True):
            found += ((number, code + member[len(prefix) :]) for member in members)
        bucket, low = numbers.stop, first
        together = min(2 * together, _MOST_TOGETHER)
    return found[:limit]


async def sweep(
    link: Link, keys: Keys, age: int, limit: int, *, dry_run: bool, after: str | None
) -> SweepPage:
    """`Driver.sweep`, ``age`` in microseconds; a cursor is a bucket and how many to leave out."""
    bucket, skipped = map(int, (after or "0:0").split(":"))
    tombstones = debris = 0
    while bucket < BUCKETS:
        numbers = range(bucket, min(bucket + _SWEPT_TOGETHER, BUCKETS))
        answers = await run_all(
            link,
            [
                (
                    _scripts.EXPIRED,
                    [keys.empty(number), keys.staged(number)],
                    [age, limit, skipped if number == bucket else 0],
                )
                for number in numbers
            ],
        )
        for number, (members, generations) in zip(numbers, answers, strict=True):
            chosen: list[bytes] = members[: limit - tombstones]
            is_done = len(chosen) == len(members) < limit
            lists: list[bytes] = generations if is_done else []
            counts = [len(chosen), len(lists)]
            if not dry_run and (chosen or lists):
                counts = await _sweep_bucket(link, keys, number, age, chosen, lists)
            tombstones += counts[0]
            debris += counts[1]
            if not is_done:
                # What a dry run has counted is still there: it goes on behind it.
                behind = (skipped if number == bucket else 0) + len(chosen) if dry_run else 0
                return SweepPage(tombstones, debris, f"{number}:{behind}")
            if tombstones + debris >= limit:
                return SweepPage(tombstones, debris, f"{number + 1}:0")
        bucket, skipped = numbers.stop, 0
    return SweepPage(tombstones, debris, None)


async def _sweep_bucket(
    link: Link,
    keys: Keys,
    bucket: int,
    age: int,
    members: Sequence[bytes],
    generations: Sequence[bytes],
) -> list[int]:
    """Remove what is still as old as it was when it was found; return how much."""
    removed: list[int] = await run(
        link,
        _scripts.SWEEP,
        [
            keys.index(bucket),
            keys.empty(bucket),
            keys.floor(bucket),
            keys.staged(bucket),
            *(keys.head(bucket, member) for member in members),
            *(key for name in generations for key in keys.generation(bucket, name)),
        ],
        [age, len(members), *members, *generations],
    )
    return removed


__all__ = ["scan", "sweep"]
