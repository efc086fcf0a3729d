"""Many clients at once: first claims, first writes, swaps, cancellations (M1, M2, M9)."""

import asyncio
import random
from typing import Any

import pymongo
import pytest
from mongo_support import Open, Owner, claim_id

from outlast.driver import Entry, Scope, StoredFence, Value
from outlast.errors import FencedError
from outlast_mongo import MongoDriver

pytestmark = pytest.mark.mongo

CLIENTS = 8
ROUNDS = 10
Raw = pymongo.database.Database[dict[str, Any]]


@pytest.fixture(params=["pymongo", "motor"])
async def clients(request: pytest.FixtureRequest, open_driver: Open) -> list[MongoDriver]:
    """Eight "processes"."""
    return [await open_driver(driver=request.param) for _ in range(CLIENTS)]


async def test_every_first_claim_of_a_race_gets_an_epoch_of_its_own(
    clients: list[MongoDriver], raw: Raw
) -> None:
    """E11000 says that somebody was faster, not that the claim is stale; there is one record."""
    for number in range(ROUNDS):
        scope = Scope("task", f"t{number}")
        claims = [client.claim(scope, claim_id(place)) for place, client in enumerate(clients)]
        values = await asyncio.gather(*claims)
        assert sorted(value.epoch for value in values) == list(range(1, CLIENTS + 1))
        newest = max(values, key=lambda value: value.epoch)
        assert (await clients[0].read(scope, "state")).fence == newest.fence
        assert raw["outlast_head"].count_documents({}) == number + 1


async def test_a_claim_given_from_outside_is_stored_if_it_is_the_highest(
    clients: list[MongoDriver],
) -> None:
    """60 rounds: the highest of eight epochs is never refused, whoever inserts the record."""
    for number in range(60):
        scope = Scope("run", f"r{number}")
        epochs = random.Random(number).sample(range(1, 1000), CLIENTS)

        async def claim(place: int, scope: Scope = scope, epochs: list[int] = epochs) -> int:
            try:
                value: Value = await clients[place].claim(
                    scope, claim_id(place), at_least=epochs[place]
                )
            except FencedError:
                return 0
            return value.epoch

        taken = await asyncio.gather(*(claim(place) for place in range(CLIENTS)))
        assert max(taken) == max(epochs)
        stored = (await clients[0].read(scope, "checkpoint")).fence
        assert stored == StoredFence(max(epochs), claim_id(epochs.index(max(epochs))))


async def test_unclaimed_first_appends_of_a_race_are_all_kept(
    clients: list[MongoDriver], raw: Raw
) -> None:
    for number in range(ROUNDS):
        scope = Scope("task", f"t{number}")
        entries = [Entry(f"m{place}", b"x" * 5000) for place in range(CLIENTS)]
        answers = await asyncio.gather(
            *(
                client.append(scope, "api", [entry], fence=None)
                for client, entry in zip(clients, entries, strict=True)
            )
        )
        assert answers == [[]] * CLIENTS
        assert sorted(await clients[0].load(scope, "api")) == entries
        assert raw["outlast_head"].count_documents({}) == number + 1


async def test_a_stale_owner_never_wins(clients: list[MongoDriver]) -> None:
    """Owners that do not know of each other: only the write of the newest is accepted."""
    for number in range(ROUNDS):
        scope = Scope("task", f"t{number}")
        owners = [
            Owner((await client.claim(scope, claim_id(place))).fence)
            for place, client in enumerate(clients)
        ]

        async def write(place: int, scope: Scope = scope, owners: list[Owner] = owners) -> str:
            try:
                await clients[place].write(
                    scope, "state", f"{place}".encode(), fence=owners[place].fence()
                )
            except FencedError as error:
                return error.reason
            return "accepted"

        places = list(range(CLIENTS))
        random.Random(number).shuffle(places)
        outcomes = dict(
            zip(places, await asyncio.gather(*(write(place) for place in places)), strict=True)
        )
        assert outcomes.pop(CLIENTS - 1) == "accepted"
        assert set(outcomes.values()) == {"superseded"}
        assert (await clients[0].read(scope, "state")).data == f"{CLIENTS - 1}".encode()


async def test_a_cancelled_append_leaves_the_connection_in_order(
    clients: list[MongoDriver],
) -> None:
    """Cancelled anywhere, the next calls get their own answers, and what was sent is there once."""
    client, scope, rng = clients[0], Scope("task", "t"), random.Random(5)
    owner = Owner((await client.claim(scope, claim_id(1))).fence)
    done: list[str] = []
    cancelled: list[str] = []
    for number in range(40):
        entry = Entry(f"m{number}", rng.randbytes(3000))
        task = asyncio.ensure_future(client.append(scope, "api", [entry], fence=owner.fence()))
        for _ in range(rng.randrange(12)):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            cancelled.append(entry.id)
        else:
            done.append(entry.id)
        other = Scope("run", f"r{number}")
        await client.write(other, "checkpoint", entry.data, fence=None)
        assert (await client.read(other, "checkpoint")).data == entry.data
    await client.append(scope, "api", [Entry("last", b"")], fence=owner.fence())
    found = [entry.id for entry in await client.load(scope, "api")]
    assert cancelled
    assert len(found) == len(set(found))
    assert set(done) <= set(found) <= {*done, *cancelled, "last"}
    assert found == sorted(found, key=[*[f"m{number}" for number in range(40)], "last"].index)


async def test_a_cancellation_is_never_swallowed(clients: list[MongoDriver]) -> None:
    """P2: whatever a call was doing in the turn in which it was cancelled."""
    client, scope = clients[0], Scope("task", "t")
    await client.write(scope, "state", b"x", fence=None)
    struck = 0
    for turns in range(1, 40):
        for call in (client.read(scope, "state"), client.load(scope, "api"), client.ping()):
            task = asyncio.ensure_future(call)
            for _ in range(turns):
                await asyncio.sleep(0)
            if task.cancel():
                struck += 1
                await asyncio.wait([task])
                assert task.cancelled()
    assert struck
