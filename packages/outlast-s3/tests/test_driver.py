"""Requests, names, listings, clocks and sweeps of the driver itself (S7, S9 to S11)."""

import asyncio
import re
import time
from datetime import timedelta
from typing import Any

import pytest
from s3_support import (
    HOST,
    KEYS,
    Forward,
    HttpProxy,
    Open,
    Owner,
    Request,
    Store,
    claim_id,
)

import outlast
from outlast import StreamCheckpoint
from outlast.driver import Entry, Index, Scope, Where
from outlast.errors import CorruptDataError, UnavailableError
from outlast.heads import key_of, moment
from outlast_s3 import S3Driver
from outlast_s3._store import PROBE_SECONDS, S3Store

pytestmark = [pytest.mark.s3, pytest.mark.server]

TASK = Scope("task", "t")
AWKWARD = ["m//n", "m/n", "a/", "/a", "..", "a\\b", "x" * 512, "\x00", "{", "%2F", "A", "a", "é"]


async def test_each_mutation_and_read_is_one_request(open_driver: Open, proxy: HttpProxy) -> None:
    """P1; and what a claim costs."""
    driver = await open_driver(proxy.port)

    async def requests(call: Any) -> list[str]:
        proxy.requests.clear()
        await call
        return [line.partition(" ")[0] for line in proxy.requests]

    assert await requests(driver.claim(TASK, claim_id(1))) == ["GET", "PUT", "GET"]
    owner = Owner((await driver.read(TASK, "state")).fence)
    await driver.write(TASK, "input", b"x", fence=owner.fence())
    assert await requests(driver.claim(TASK, claim_id(2))) == ["GET", "PUT"]
    owner = Owner((await driver.read(TASK, "state")).fence)
    for number in range(5):
        entry = [Entry(f"m{number}", b"x" * 500)]
        append = driver.append(TASK, "api", entry, fence=owner.fence())
        assert await requests(append) == ["PUT"]
        index = Index("p", "s", number)
        write = driver.write(TASK, "state", b"x" * 16_000, fence=owner.fence(), index=index)
        assert await requests(write) == ["PUT"]
    assert await requests(driver.read(TASK, "state")) == ["GET"]
    assert await requests(driver.load(TASK, "api")) == ["GET"]
    assert await requests(driver.replace(TASK, "api", [], fence=owner.fence())) == ["PUT"]
    assert await requests(driver.remove(TASK, fence=owner.fence())) == ["PUT"]
    free = Scope("run", "r")
    await driver.write(free, "checkpoint", b"1", fence=None)
    await driver.write(free, "checkpoint", b"2", fence=None)
    large = driver.write(free, "checkpoint", b"x" * 200_000, fence=None)
    assert await requests(large) == ["PUT"]


async def test_a_long_log_is_asked_for_at_once_where_its_head_was_seen(
    open_driver: Open, proxy: HttpProxy
) -> None:
    """P1: its pieces do not wait for the head, and a piece that is gone by then does no harm."""
    driver, other = await open_driver(proxy.port), await open_driver()
    owner = Owner((await driver.claim(TASK, claim_id(1))).fence)
    entries = [Entry(f"m{number}", b"x" * 1000) for number in range(40)]
    await driver.append(TASK, "api", entries, fence=owner.fence())
    together = asyncio.Barrier(2)

    async def answer_together(request: Request, forward: Forward) -> bytes | None:
        await together.wait()
        return await forward(request)

    rule = proxy.always(lambda request: request.method == "GET", answer_together)
    assert await driver.load(TASK, "api") == entries
    proxy.stop(rule)
    more = [Entry(f"n{number}", b"x" * 1000) for number in range(40)]
    for entry in more:  # One by one: the newest piece is rewritten.
        await other.append(TASK, "api", [entry], fence=owner.fence())
    assert await driver.load(TASK, "api") == [*entries, *more]


async def test_names_of_objects_suit_any_store(
    server: Store, open_driver: Open, prefix: str
) -> None:
    """S11: of fixed form, whatever the ids are; and no two ids meet."""
    driver = await open_driver()
    for scope_id in AWKWARD:
        for kind in ("task", "run"):
            scope = Scope("task" if kind == "task" else "run", scope_id)
            register = "state" if kind == "task" else "checkpoint"
            value = f"{kind} {scope_id}".encode()
            await driver.write(scope, register, value, fence=None)
            await driver.write(scope, register, value + b"x" * 300_000, fence=None)
    for scope_id in AWKWARD:
        value = await driver.read(Scope("task", scope_id), "state")
        assert value.data == f"task {scope_id}".encode() + b"x" * 300_000
    page = await driver.scan("run", where=Where(), after=None, limit=99)
    assert sorted(item.id for item in page.items) == sorted(AWKWARD)
    names = list(server.objects(prefix))
    assert len(names) >= 4 * len(AWKWARD)
    for name in names:
        assert re.fullmatch(r"[a-z0-9]+(/[a-z0-9.-]{1,120}){1,3}", name), name


@pytest.mark.parametrize("has_tokens", [True, False], ids=["tokens", "no tokens"])
async def test_a_listing_of_several_pages_is_complete(
    open_driver: Open, proxy: HttpProxy, has_tokens: bool
) -> None:
    """S9: a store may answer with fewer than it was asked for, and may not say how to go on."""

    async def short(request: Request, forward: Forward) -> bytes | None:
        path = re.sub(r"max-keys=\d+", "max-keys=3", request.path)
        answer = await forward(request.without(path=path))
        head, _, body = answer.partition(b"\r\n\r\n")
        if not has_tokens:
            body = re.sub(b"<(NextContinuationToken)>.*?</\\1>", b"", body)
            head = re.sub(rb"(?i)content-length: \d+", b"Content-Length: %d" % len(body), head)
        return head + b"\r\n\r\n" + body

    driver = await open_driver(proxy.port)
    proxy.requests.clear()
    proxy.always(lambda request: "list-type=2" in request.path, short)
    expected = sorted(f"t{number}" for number in range(20))
    for name in expected:
        await driver.write(Scope("task", name), "state", b"x", fence=None)
    found: list[str] = []
    after: str | None = None
    while True:
        page = await driver.scan("task", where=Where(), after=after, limit=7)
        found += [item.id for item in page.items]
        after = page.next
        if after is None:
            break
    assert sorted(found) == expected
    listings = [line for line in proxy.requests if "list-type=2" in line]
    assert len(listings) == 7  # Of three names each, and none behind the last.
    assert any("continuation-token" in line for line in listings) == has_tokens


async def test_a_listing_that_is_cut_short_before_its_first_name_is_an_error(
    open_driver: Open, proxy: HttpProxy
) -> None:
    """E6: at once; it would be asked for again and again."""

    async def cut(request: Request, forward: Forward) -> bytes | None:
        body = b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    driver = await open_driver(proxy.port)
    proxy.requests.clear()
    proxy.always(lambda request: "list-type=2" in request.path, cut)
    with pytest.raises(UnavailableError, match="cut a listing short"):
        await driver.scan("task", where=Where(), after=None, limit=7)
    assert len([line for line in proxy.requests if "list-type=2" in line]) == 1


async def test_a_listing_reads_only_what_changed_since_it_was_seen(
    open_driver: Open, proxy: HttpProxy
) -> None:
    """It tells the ETag of each record, by which those that were seen already are known."""
    lister, other = await open_driver(proxy.port), await open_driver()
    names = [f"t{number}" for number in range(12)]
    for number, name in enumerate(names):
        writer = lister if number % 2 else other
        index = Index(updated_at=number)
        await writer.write(Scope("task", name), "state", b"1", fence=None, index=index)

    async def listed() -> tuple[dict[str, bytes | None], int]:
        proxy.requests.clear()
        page = await lister.scan("task", where=Where(), after=None, limit=99)
        reads = [line for line in proxy.requests if "list-type=2" not in line]
        return {item.id: item.value.data for item in page.items}, len(reads)

    assert await listed() == (dict.fromkeys(names, b"1"), 6)
    assert await listed() == (dict.fromkeys(names, b"1"), 0)
    await other.write(Scope("task", "t3"), "state", b"2", fence=None, index=Index())
    await other.write(Scope("task", "t4"), "state", b"1", fence=None, index=Index())
    await other.remove(Scope("task", "t5"), fence=None)
    expected = {**dict.fromkeys(names, b"1"), "t3": b"2"}
    del expected["t5"]
    assert await listed() == (expected, 3)
    assert await listed() == (expected, 0)
    await _swept(other, older_than=0)
    await other.write(Scope("task", "t5"), "state", b"1", fence=None, index=Index())
    assert await listed() == ({**expected, "t5": b"1"}, 1)


async def test_no_two_versions_of_a_record_have_the_same_etag(
    server: Store, open_driver: Open, prefix: str
) -> None:
    """S7: A, B and A again."""
    driver = await open_driver()
    etags: list[str] = []
    for data in (b"a", b"b", b"a", None, b"a"):
        await driver.write(TASK, "state", data, fence=None)
        (name,) = [name for name in server.objects(prefix) if "/task/" in name]
        etags.append(server.client.head_object(Bucket=server.bucket, Key=name)["ETag"])
    assert len(set(etags)) == len(etags)


async def test_ages_count_by_the_clock_of_the_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: a client whose clock is days off gives and gets the same ages as others."""
    options: dict[str, Any] = {"checkpoint_ttl": timedelta(hours=1), **KEYS}
    async with outlast.open_backend(url, **options) as right:
        # Signatures need the true time: only what the driver sees is wrong.
        monkeypatch.setattr("outlast_s3._bucket.time.time", lambda: 86_400.0)
        async with outlast.open_backend(url, **options) as wrong:
            for writer, run_id in ((right, "r1"), (wrong, "r2")):
                checkpoint = StreamCheckpoint(
                    run_id=run_id, thread_id="t", message_id="m", model="x"
                )
                await writer.checkpoints.put(checkpoint)
                for reader in (right, wrong):
                    assert await reader.checkpoints.get(run_id) is not None
        monkeypatch.undo()
    assert time.time() > 86_400


async def test_a_store_that_said_nothing_for_long_is_asked_for_its_time(
    open_driver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: a write behind a long pause is not stamped by the clock of this machine."""
    driver = await open_driver()
    assert driver._place is not None
    before, later = time.time(), moment() + 10_000
    monkeypatch.setattr("outlast_s3._bucket.time.time", lambda: 86_400.0)
    for module in ("outlast.heads.clock", "outlast_s3._bucket"):
        monkeypatch.setattr(f"{module}.moment", lambda: later)
    assert abs(await driver._place.bucket.now(later + 5) - before) < 60


async def test_a_sweep_takes_debris_and_nothing_that_is_referenced(
    server: Store, open_driver: Open, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4: pieces of a writer that died before its swap, and what a broken set-up left."""
    driver = await open_driver()
    owner = Owner((await driver.claim(TASK, claim_id(1))).fence)
    await driver.write(TASK, "state", b"s" * 100_000, fence=owner.fence())
    entries = [Entry(f"m{number}", b"x" * 3000) for number in range(60)]
    await driver.replace(TASK, "api", entries, fence=owner.fence())
    real = server.objects(prefix)
    folder = next(name for name in real if "/piece/" in name).rpartition("/")[0]
    for scope in (TASK, Scope("run", "never was")):
        name = f"{folder}/{key_of(scope).replace('/', '-')}-{'0' * 32}"
        server.client.put_object(Bucket=server.bucket, Key=name, Body=b"x")
    server.client.put_object(Bucket=server.bucket, Key=f"{prefix}/probe/{'0' * 32}", Body=b"x")
    assert await _swept(driver, older_than=3600) == (0, 0)
    assert await _swept(driver, older_than=0, dry_run=True) == (0, 2), "it may be of a live probe"
    assert await _swept(driver, older_than=0) == (0, 2)
    now = S3Store.now

    async def later(store: S3Store) -> float:
        return await now(store) + PROBE_SECONDS

    monkeypatch.setattr(S3Store, "now", later)
    assert await _swept(driver, older_than=0, dry_run=True) == (0, 1)
    assert await _swept(driver, older_than=0) == (0, 1)
    assert server.objects(prefix).keys() == real.keys()
    assert await driver.load(TASK, "api") == entries
    assert (await driver.read(TASK, "state")).data == b"s" * 100_000
    await driver.write(TASK, "state", b"next", fence=owner.fence())


async def test_nothing_of_a_deleted_task_is_left_after_a_sweep(
    server: Store, open_driver: Open, prefix: str
) -> None:
    """C3; and epochs go on behind the floor (C5)."""
    driver, other = await open_driver(), await open_driver()
    owner = Owner((await driver.claim(TASK, claim_id(1))).fence)
    owner = Owner((await driver.claim(TASK, claim_id(2))).fence)
    for number in range(70):
        entry = [Entry(f"m{number}", b"x" * 2000)]
        await driver.append(TASK, "api", entry, fence=owner.fence())
    await driver.write(TASK, "state", b"x" * 50_000, fence=owner.fence())
    await driver.remove(TASK, fence=owner.fence())
    left = [name for name in server.objects(prefix) if "outlast.json" not in name]
    assert [name.split("/")[-2] for name in left] == ["task"]
    assert await _swept(other, older_than=0) == (1, 0)
    left = [name for name in server.objects(prefix) if "outlast.json" not in name]
    assert [name.split("/")[-2] for name in left] == ["floor"]
    assert (await driver.claim(TASK, claim_id(3))).epoch > owner.epoch
    assert await driver.load(TASK, "api") == []


async def test_a_stale_delete_of_a_sweep_is_refused(
    server: Store, open_driver: Open, proxy: HttpProxy
) -> None:
    """C5: the record came to life again after it was judged."""
    driver, other = await open_driver(proxy.port), await open_driver()
    owner = Owner((await driver.claim(TASK, claim_id(1))).fence)

    async def late(request: Request, forward: Forward) -> bytes | None:
        await other.write(TASK, "state", b"alive", fence=owner.fence())
        return await forward(request)

    proxy.once(lambda request: request.method == "DELETE" and "/task/" in request.path, late)
    assert await _swept(driver, older_than=0) == (0, 0)
    assert (await driver.read(TASK, "state")).data == b"alive"


async def _swept(driver: S3Driver, *, older_than: float, dry_run: bool = False) -> Any:
    tombstones = debris = 0
    after: str | None = None
    while True:
        page = await driver.sweep(older_than=older_than, limit=50, dry_run=dry_run, after=after)
        tombstones, debris = tombstones + page.tombstones, debris + page.debris
        after = page.next
        if after is None:
            return tombstones, debris


@pytest.mark.parametrize("kind", ["/task/", "/piece/"])
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "gone"])
async def test_damage_is_never_called_missing(
    server: Store, open_driver: Open, prefix: str, kind: str, damage: str
) -> None:
    """V8; a head that is gone is a record that is gone."""
    driver = await open_driver()
    await driver.write(TASK, "state", b"x" * 100_000, fence=None)
    ((name, data),) = [item for item in server.objects(prefix).items() if kind in item[0]]
    where = {"Bucket": server.bucket, "Key": name}
    if damage == "gone":
        server.client.delete_object(**where)
    else:
        spoiled = {"cut": data[:-7], "changed": data[:-1] + b"!", "empty": b""}[damage]
        server.client.put_object(**where, Body=spoiled)
    if kind == "/task/" and damage == "gone":
        assert (await driver.read(TASK, "state")).data is None
        return
    with pytest.raises(CorruptDataError, match=re.escape(name)):
        await driver.read(TASK, "state")


async def test_prefixes_and_namespaces_do_not_meet(
    server: Store, open_driver: Open, prefix: str
) -> None:
    one, two = await open_driver(namespace="a"), await open_driver(namespace="a ")
    below = S3Driver.from_url(
        f"s3://{server.bucket}/{prefix}/a?endpoint_url=http://{HOST}:{server.port}",
        namespace="a",
        **KEYS,
    )
    await below.setup(create=True)
    await one.write(TASK, "state", b"1", fence=None)
    for other in (two, below):
        assert (await other.read(TASK, "state")).data is None
        assert (await other.scan("task", where=Where(), after=None, limit=9)).items == []
        await _swept(other, older_than=0)
    assert (await one.read(TASK, "state")).data == b"1"
    await below.aclose()
