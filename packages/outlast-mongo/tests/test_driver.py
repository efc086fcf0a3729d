"""Round trips, the server's clock, searches and sweeps of the driver itself."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pymongo
import pytest
from bson.codec_options import TypeDecoder, TypeRegistry
from bson.raw_bson import RawBSONDocument
from mongo_support import Commands, Open, Owner, Proxy, Start, admin, claim_id, node_url
from motor.motor_asyncio import AsyncIOMotorClient

import outlast
from outlast import ApiMessage, StreamCheckpoint, TaskInput, TaskState, UserMessage
from outlast.driver import Entry, Index, Scope, Where
from outlast.errors import CorruptDataError
from outlast.heads import Floor, key_of, moment
from outlast_contract.servers import Server
from outlast_mongo import MongoBackend, MongoDriver
from outlast_mongo._store import MongoStore, Place

pytestmark = pytest.mark.mongo

Raw = pymongo.database.Database[dict[str, Any]]
TASK = Scope("task", "t")


async def test_each_mutation_and_read_is_one_request(
    watched: tuple[MongoDriver, Commands],
) -> None:
    """P1; what a claim costs, and the exceptions that it allows, counted."""
    driver, commands = watched
    await driver.setup(create=True)
    commands.names.clear()
    claimed = await driver.claim(TASK, claim_id(1))
    assert commands.names == ["find", "insert", "find"]
    owner = Owner(claimed.fence)

    async def requests(call: Any) -> list[str]:
        commands.names.clear()
        await call
        return commands.names

    for number in range(20):
        entry = [Entry(f"m{number}", b"x" * 500)]
        append = driver.append(TASK, "api", entry, fence=owner.fence())
        assert await requests(append) == ["update"]
        index = Index("p", "s", number)
        write = driver.write(TASK, "state", b"x" * 16_000, fence=owner.fence(), index=index)
        assert await requests(write) == ["update"]
    assert await requests(driver.read(TASK, "state")) == ["find"]
    assert await requests(driver.load(TASK, "api")) == ["find"]
    assert await requests(driver.replace(TASK, "api", [], fence=owner.fence())) == ["update"]
    assert await requests(driver.remove(TASK, fence=owner.fence())) == ["update"]
    free = Scope("run", "r")
    await driver.write(free, "checkpoint", b"1", fence=None)
    await driver.write(free, "checkpoint", b"2", fence=None)
    large = driver.write(free, "checkpoint", b"x" * 200_000, fence=None)
    assert await requests(large) == ["update"]


async def test_a_load_behind_a_claim_is_one_request(
    watched: tuple[MongoDriver, Commands], open_driver: Open
) -> None:
    """Head and pieces at once, with either client; what others changed since is found, too."""
    driver, commands = watched
    other = await open_driver(namespace="default")
    owner = Owner((await other.claim(TASK, claim_id(1))).fence)
    entries = [Entry(f"m{number}", b"x" * 3000) for number in range(200)]
    for number in range(0, 200, 20):
        some = entries[number : number + 20]
        await other.append(TASK, "api", some, fence=owner.fence())
    owner = Owner((await driver.claim(TASK, claim_id(2))).fence)
    commands.names.clear()
    assert await driver.load(TASK, "api") == entries
    assert commands.names == ["aggregate"]
    more = [Entry(f"n{number}", b"y" * 3000) for number in range(30)]
    await other.append(TASK, "api", more, fence=owner.fence())
    assert await driver.load(TASK, "api") == entries + more
    await other.replace(TASK, "api", more, fence=owner.fence())
    assert await driver.load(TASK, "api") == more
    await other.remove(TASK, fence=owner.fence())
    assert await driver.load(TASK, "api") == []


async def test_a_load_in_one_request_has_no_limit_of_size(open_driver: Open) -> None:
    """V5: more than a document or an answer of the server holds."""
    driver = await open_driver()
    owner = Owner((await driver.claim(TASK, claim_id(1))).fence)
    entries = [Entry(f"m{number}", b"x" * 6 * 2**20) for number in range(4)]
    for entry in entries:
        await driver.append(TASK, "api", [entry], fence=owner.fence())
    assert await driver.load(TASK, "api") == entries


async def test_a_refusal_rests_on_what_a_majority_has_now(
    watched: tuple[MongoDriver, Commands], standalone: Server, name: str
) -> None:
    """F4: a new primary may say for a moment what was true before; a single server never does."""
    driver, commands = watched
    single = Commands()
    async with pymongo.AsyncMongoClient[dict[str, Any]](
        standalone.url, event_listeners=[single]
    ) as client:
        alone = MongoDriver(database=client[name])
        await alone.setup(create=True)
        for one, seen, expected in (
            (driver, commands, "linearizable"),
            (alone, single, "majority"),
        ):
            owner = Owner((await one.claim(TASK, claim_id(1))).fence)
            await one.claim(TASK, claim_id(2))
            seen.concerns.clear()
            with pytest.raises(outlast.FencedError):
                await one.append(TASK, "api", [Entry("m", b"")], fence=owner.fence())
            assert seen.concerns == [expected]
        await alone.aclose()
        await client.drop_database(name)


class Changing(TypeDecoder):
    """Of an application that wants its bytes as something else."""

    bson_type = bytes

    def transform_bson(self, value: bytes) -> bytearray:
        return bytearray(value)


@pytest.mark.parametrize("client_class", [pymongo.AsyncMongoClient, AsyncIOMotorClient])
async def test_every_write_waits_for_the_journals_of_a_majority(
    url: str, client_class: Any
) -> None:
    """D1: for as long as the call has; and whatever else a client is set to do."""
    commands = Commands()
    client = client_class(
        url,
        event_listeners=[commands],
        wTimeoutMS=50,
        document_class=RawBSONDocument,
        type_registry=TypeRegistry([Changing()]),
    )
    driver = MongoDriver(database=client.get_default_database())
    await driver.setup(create=True)
    scopes = [Scope("task", f"t{number}") for number in range(8)]
    owners = [Owner((await driver.claim(scope, claim_id(1))).fence) for scope in scopes]
    await asyncio.gather(
        *(
            driver.append(scope, "api", [Entry("m", b"x" * 50_000)], fence=owner.fence())
            for scope, owner in zip(scopes, owners, strict=True)
        )
    )
    assert await driver.load(scopes[0], "api") == [Entry("m", b"x" * 50_000)]
    for number in range(2):
        await driver.write(Scope("run", "r"), "checkpoint", b"%d" % number, fence=None)
    await driver.remove(scopes[0], fence=owners[0].fence())
    await _swept(driver, older_than=0)
    assert {"insert", "update", "delete"} <= set(commands.names)
    assert all(dict(concern) == {"w": "majority", "j": True} for concern in commands.written)
    await driver.aclose()
    closing = client.close()
    if closing is not None:
        await closing


async def test_a_floor_never_sinks(open_driver: Open) -> None:
    """C5: neither in its epoch nor in its version, whoever raises it to what."""
    key = key_of(TASK)
    raised = [Floor(5, 1), Floor(3, 9), Floor(4, 4)]
    stores: list[MongoStore] = []
    for floor in raised:
        driver = await open_driver()
        assert driver._place is not None
        stores.append(MongoStore(driver._place, moment() + 10))
        await stores[-1].raise_floor(key, floor)
    assert await stores[0].floor(key) == Floor(5, 9)


async def test_a_scan_is_a_request_for_hundreds_of_records(
    watched: tuple[MongoDriver, Commands],
) -> None:
    """Whatever it filters by, with an index for parent and status."""
    driver, commands = watched
    for number in range(300):
        index = Index(f"p{number % 3}", "odd" if number % 2 else "even", number)
        await driver.write(Scope("task", f"t{number}"), "state", b"x", fence=None, index=index)
    for where, expected in (
        (Where(), 300),
        (Where(parent="p1"), 100),
        (Where(status="odd"), 150),
        (Where(parent="p1", status="odd", updated_before=150), 25),
    ):
        commands.names.clear()
        found: list[str] = []
        after: str | None = None
        while True:
            page = await driver.scan("task", where=where, after=after, limit=200)
            found += [item.id for item in page.items]
            after = page.next
            if after is None:
                break
        assert len(found) == len(set(found)) == expected
        assert len([name for name in commands.names if name == "find"]) <= 3


async def test_searches_use_an_index(open_driver: Open, raw: Raw) -> None:
    driver = await open_driver()
    for number in range(20):
        index = Index(f"p{number}", f"s{number}", number)
        scope = Scope("task", f"t{number}")
        await driver.write(scope, "state", b"x", fence=None, index=index)
        await driver.remove(scope, fence=None)
    for wanted in ({"parent": b"p1"}, {"status": b"s1"}, {"empty": True}):
        between = {"_id": {"$gt": "0", "$lt": "g"}}
        plan = raw["outlast_head"].find({**between, **wanted}).sort("_id").explain()
        assert "IXSCAN" in str(plan["queryPlanner"]["winningPlan"])
        assert "'stage': 'SORT'" not in str(plan["queryPlanner"]["winningPlan"])


async def test_ages_count_by_the_servers_clock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: a client whose clock is days off gives and gets the same ages as others."""
    async with MongoBackend(url=url, checkpoint_ttl=timedelta(hours=1)) as right:
        monkeypatch.setattr(time, "time", lambda: 86_400.0)
        async with MongoBackend(url=url, checkpoint_ttl=timedelta(hours=1)) as wrong:
            for writer, run_id in ((right, "r1"), (wrong, "r2")):
                checkpoint = StreamCheckpoint(
                    run_id=run_id, thread_id="t", message_id="m", model="x"
                )
                await writer.checkpoints.put(checkpoint)
                for reader in (right, wrong):
                    assert await reader.checkpoints.get(run_id) is not None
            driver = wrong.driver
            value = await driver.read(Scope("run", "r1"), "checkpoint")
            assert 0 <= value.age < 60


async def test_the_age_of_checkpoints_is_a_matter_of_each_reader(url: str, raw: Raw) -> None:
    """C6, M8: opened with one age after another, the last one counts; no index removes anything."""
    checkpoint = StreamCheckpoint(run_id="r", thread_id="t", message_id="m", model="x")
    async with MongoBackend(url=url) as backend:
        await backend.checkpoints.put(checkpoint)
    for age, is_there in ((60, True), (0, False), (120, True), (None, True)):
        ttl = None if age is None else timedelta(seconds=age, microseconds=1)
        async with MongoBackend(url=url, checkpoint_ttl=ttl) as backend:
            if not is_there:  # However far this one's idea of the server's clock is behind.
                await _expired(backend, "r")
            found = await backend.checkpoints.get("r")
            assert (found is not None) is is_there
    indexes = raw["outlast_head"].index_information().values()
    assert not [index for index in indexes if "expireAfterSeconds" in index]


async def _expired(backend: MongoBackend, run_id: str) -> None:
    async with asyncio.timeout(20):
        while await backend.checkpoints.get(run_id) is not None:
            await asyncio.sleep(0.01)


async def test_every_write_may_be_repeated_with_an_age_set(url: str, raw: Raw) -> None:
    """No duplicate key, and one document for each record."""
    async with MongoBackend(url=url, checkpoint_ttl=timedelta(minutes=1)) as backend:
        tasks, runs = backend.persistence, backend.checkpoints
        message = ApiMessage(id="m", role="user", content="x")
        shown = UserMessage(id="u", type="text", role="user", content="x")
        checkpoint = StreamCheckpoint(run_id="r", thread_id="t", message_id="m", model="x")
        for _ in range(2):
            await tasks.save_task_state("t", TaskState(id="t"))
            await tasks.update_task_state("t", {"retry_count": 1})
            await tasks.save_task_input("t", TaskInput(message="x"))
            await tasks.append_api_message("t", message)
            await tasks.save_user_messages("t", [shown])
            await runs.put(checkpoint)
            assert raw["outlast_head"].count_documents({}) == 2
        assert await tasks.load_api_messages("t") == [message]
        for _ in range(2):
            await runs.delete("r")
            await tasks.delete_task("t")
            assert raw["outlast_head"].count_documents({}) == 2
        for _ in range(2):
            await backend.sweep(older_than=timedelta(0))
            assert raw["outlast_head"].count_documents({}) == 0


async def test_the_server_is_asked_for_its_time_when_it_was_set(
    open_driver: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old answer is not used: the clocks may have parted since."""
    driver = await open_driver()
    place = driver._place
    assert isinstance(place, Place)
    before = await place.now()
    monkeypatch.setattr("outlast.heads.clock.moment", lambda: 1e9)
    monkeypatch.setattr("outlast_mongo._store.moment", lambda: 1e9)
    assert abs(await place.now() - before) < 60


async def test_a_sweep_takes_debris_and_nothing_that_is_referenced(
    open_driver: Open, raw: Raw
) -> None:
    """C4: pieces of a writer that died before its swap, with and without a record."""
    driver = await open_driver()
    owner = Owner((await driver.claim(TASK, claim_id(1))).fence)
    await driver.write(TASK, "state", b"s" * 100_000, fence=owner.fence())
    entries = [Entry(f"m{number}", b"x" * 3000) for number in range(60)]
    await driver.replace(TASK, "api", entries, fence=owner.fence())
    pieces = raw["outlast_piece"]
    real = pieces.count_documents({})
    assert real >= 2
    example = pieces.find_one()
    assert example is not None
    prefix = example["_id"].partition("/")[0]
    for scope in (TASK, Scope("run", "never was")):
        pieces.insert_one({**example, "_id": f"{prefix}/{key_of(scope)}/{'0' * 32}"})
    assert (await _swept(driver, older_than=3600)) == (0, 0)
    assert (await _swept(driver, older_than=0, dry_run=True)) == (0, 2)
    assert (await _swept(driver, older_than=0)) == (0, 2)
    assert pieces.count_documents({}) == real
    assert await driver.load(TASK, "api") == entries
    assert (await driver.read(TASK, "state")).data == b"s" * 100_000
    await driver.write(TASK, "state", b"next", fence=owner.fence())


async def test_a_sweep_raises_the_floor_before_it_removes(open_driver: Open, raw: Raw) -> None:
    driver, other = await open_driver(), await open_driver()
    for number in range(20):
        scope = Scope("task", f"t{number}")
        for place in range(3):
            claimed = await driver.claim(scope, claim_id(place))
        assert claimed.epoch == 3
    tombstones, _ = await _swept(other, older_than=0)
    assert tombstones == 20
    assert raw["outlast_head"].count_documents({}) == 0
    assert raw["outlast_floor"].count_documents({"epoch": 3}) >= 1
    for number in range(20):
        assert (await driver.claim(Scope("task", f"t{number}"), claim_id(9))).epoch > 3


@pytest.mark.usefixtures("broken_connections")
async def test_a_floor_that_another_one_inserted_meanwhile_is_raised_all_the_same(
    start: Start,
) -> None:
    """M1: E11000 of an upsert says that somebody was faster, not that the floor is high enough."""
    server = start("mongodb", "--setParameter", "enableTestCommands=1")
    driver = MongoDriver.from_url(server.url)
    await driver.setup(create=True)
    scope = Scope("task", "t")
    for place in range(3):
        await driver.claim(scope, claim_id(place))
    point: dict[str, Any] = {"configureFailPoint": "failCommand"}
    # In a sweep, only the floor is raised by an update.
    extra = {"keyPattern": {"_id": 1}, "keyValue": {"_id": "the floor"}}
    refused = {"errorCode": 11000, "errorExtraInfo": extra}
    data = {"failCommands": ["update"], "namespace": "outlast.outlast_floor", **refused}
    admin(server, {**point, "mode": {"times": 2}, "data": data})
    tombstones, _ = await _swept(driver, older_than=0)
    struck = admin(server, {**point, "mode": "off"})
    assert (tombstones, struck["count"]) == (1, 2)
    with pymongo.MongoClient[dict[str, Any]](server.url) as client:
        assert client["outlast"]["outlast_floor"].count_documents({"epoch": 3}) == 1
    assert (await driver.claim(scope, claim_id(9))).epoch > 3
    await driver.aclose()


async def _swept(driver: MongoDriver, *, older_than: float, dry_run: bool = False) -> Any:
    tombstones = debris = 0
    after: str | None = None
    while True:
        page = await driver.sweep(older_than=older_than, limit=50, dry_run=dry_run, after=after)
        tombstones, debris = tombstones + page.tombstones, debris + page.debris
        after = page.next
        if after is None:
            return tombstones, debris


@pytest.mark.parametrize(
    ("collection", "change"),
    [
        ("outlast_head", {"$unset": {"head": 1}}),
        ("outlast_head", {"$unset": {"token": 1}}),
        ("outlast_head", {"$set": {"head": "text"}}),
        ("outlast_head", {"$set": {"head": b"olhd"}}),
        ("outlast_piece", {"$unset": {"rest": 1}}),
        ("outlast_piece", {"$set": {"prefix": b"x"}}),
        ("outlast_piece", {"$set": {"rest": "text"}}),
    ],
    ids=str,
)
async def test_damage_is_never_called_missing(
    open_driver: Open, raw: Raw, collection: str, change: dict[str, Any]
) -> None:
    """V8."""
    driver = await open_driver()
    await driver.write(TASK, "state", b"x" * 100_000, fence=None)
    raw[collection].update_one({}, change)
    with pytest.raises(CorruptDataError, match=collection):
        await driver.read(TASK, "state")


async def test_a_lost_piece_is_damage(open_driver: Open, raw: Raw) -> None:
    driver = await open_driver()
    await driver.write(TASK, "state", b"x" * 100_000, fence=None)
    raw["outlast_piece"].delete_many({})
    with pytest.raises(CorruptDataError, match="outlast_piece"):
        await driver.read(TASK, "state")


async def test_namespaces_do_not_meet_in_one_database(open_driver: Open) -> None:
    one, two = await open_driver(namespace="a"), await open_driver(namespace="a ")
    await one.write(TASK, "state", b"1", fence=None)
    assert (await two.read(TASK, "state")).data is None
    assert (await two.scan("task", where=Where(), after=None, limit=9)).items == []
    await _swept(two, older_than=0)
    assert (await one.read(TASK, "state")).data == b"1"


async def test_both_clients_meet_in_one_store(open_driver: Open) -> None:
    """What one wrote the other reads, continues and fences."""
    one, two = await open_driver(driver="pymongo"), await open_driver(driver="motor")
    first = Owner((await one.claim(TASK, claim_id(1))).fence)
    await one.append(TASK, "api", [Entry("m1", b"\x00\xff")], fence=first.fence())
    second = Owner((await two.claim(TASK, claim_id(2))).fence)
    assert second.epoch == first.epoch + 1
    await two.append(TASK, "api", [Entry("m2", b"")], fence=second.fence())
    assert await one.load(TASK, "api") == [Entry("m1", b"\x00\xff"), Entry("m2", b"")]
    with pytest.raises(outlast.FencedError):
        await one.append(TASK, "api", [Entry("m3", b"")], fence=first.fence())


@pytest.mark.usefixtures("broken_connections")
async def test_a_connection_that_the_server_closed_costs_nothing(
    open_driver: Open, server: Server, name: str
) -> None:
    """An idle connection is found dead before it is used."""
    port = server.addresses[0][1]
    async with Proxy(port).running() as proxy:
        driver = await open_driver(node_url(server, 0, name).replace(str(port), str(proxy.port)))
        await driver.write(TASK, "state", b"1", fence=None)
        await proxy.cut()
        for number in range(3):
            await driver.read(TASK, "state")
            await driver.write(TASK, "state", f"{number}".encode(), fence=None)
        await driver.aclose()  # while its server is there, lest it is just connecting
