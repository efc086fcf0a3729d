"""Answers that never arrive, and servers that die (M4, M10)."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pymongo
import pytest
from mongo_support import Mongod, Open, Owner, Proxy, claim_id, mongod, need_program, replica_set

import outlast
from outlast import ApiMessage, TaskState
from outlast.driver import Entry, Scope
from outlast.errors import OutcomeUnknownError, UnavailableError
from outlast_mongo import MongoBackend, MongoDriver

pytestmark = [pytest.mark.mongo, pytest.mark.usefixtures("broken_connections")]


@pytest.fixture(scope="module")
def replica() -> Iterator[Mongod]:
    """A replica set of one, on which the driver's own retries are on."""
    need_program()
    with replica_set(1) as nodes:
        yield nodes[0]


@pytest.fixture(params=["single server", "replica set"])
def behind(request: pytest.FixtureRequest) -> Mongod:
    """The server behind the proxy."""
    found: Mongod = request.getfixturevalue("server" if request.param[0] == "s" else "replica")
    return found


@pytest.fixture
async def proxy(behind: Mongod) -> AsyncIterator[Proxy]:
    """Between client and server."""
    async with Proxy(behind.port).running() as running:
        yield running


@pytest.fixture(params=["pymongo", "motor"])
async def backend(
    request: pytest.FixtureRequest, proxy: Proxy, behind: Mongod, name: str
) -> AsyncIterator[outlast.Backend]:
    """A backend behind the proxy."""
    url = f"mongodb://127.0.0.1:{proxy.port}/{name}?directConnection=true"
    async with MongoBackend(url=url, driver=request.param) as opened:
        yield opened
    with pymongo.MongoClient[dict[str, Any]](behind.url, directConnection=True) as client:
        client.drop_database(name)


async def test_a_claimed_append_whose_answer_is_lost_is_done_once(
    backend: outlast.Backend, proxy: Proxy
) -> None:
    """PyMongo repeats it on a replica set, the driver looks for itself otherwise: success."""
    tasks = backend.persistence
    claim = await tasks.claim_task("t")
    messages = [ApiMessage(id=f"m{number}", role="user", content="x") for number in range(3)]
    for message in messages:
        proxy.lose_answer(b"outlast_head")
        await tasks.append_api_message("t", message, claim=claim)
    assert proxy.lost >= len(messages)
    assert await tasks.load_api_messages("t") == messages
    state = TaskState(id="t")
    proxy.lose_answer(b"outlast_head")
    await tasks.save_task_state("t", state, claim=claim)
    proxy.lose_answer(b"outlast_head")
    await tasks.delete_task("t", claim=claim)
    assert await tasks.load_task_state("t") is None


async def test_a_claim_whose_answer_is_lost_is_taken_once(
    backend: outlast.Backend, proxy: Proxy
) -> None:
    """Whichever of its requests goes unanswered, the first claim of a task has the epoch 1."""
    for number, pattern in enumerate([b"insert", b"find", b"outlast_floor"]):
        proxy.lose_answer(pattern)
        claim = await backend.persistence.claim_task(f"t{number}")
        assert claim.epoch == 1
    assert proxy.lost >= 3


async def test_an_unclaimed_append_whose_answer_is_lost_is_done_once(
    backend: outlast.Backend, proxy: Proxy
) -> None:
    tasks = backend.persistence
    messages = [ApiMessage(id=f"m{number}", role="user", content="x") for number in range(2)]
    for message in messages:
        proxy.lose_answer(b"outlast_head")
        await tasks.append_api_message("t", message)
    assert await tasks.load_api_messages("t") == messages


async def test_an_unclaimed_save_whose_answer_is_lost_is_done_or_unknown(
    backend: outlast.Backend, proxy: Proxy, behind: Mongod
) -> None:
    """The driver's own retry knows on a replica set; without it nobody does, and that is said."""
    tasks = backend.persistence
    await tasks.save_task_state("t", TaskState(id="t"))
    proxy.lose_answer(b"update")
    if behind.arguments:
        await tasks.save_task_state("t", TaskState(id="t", retry_count=1))
    else:
        with pytest.raises(OutcomeUnknownError):
            await tasks.save_task_state("t", TaskState(id="t", retry_count=1))
    stored = await tasks.load_task_state("t")
    assert stored is not None
    assert stored.retry_count == 1


async def test_lost_answers_to_pieces_leave_no_hole(backend: outlast.Backend, proxy: Proxy) -> None:
    """Large values and full tails: the pieces are stored again, and nothing is said before."""
    tasks = backend.persistence
    claim = await tasks.claim_task("t")
    messages: list[ApiMessage] = []
    for number in range(5):
        messages.append(ApiMessage(id=f"m{number}", role="user", content="x" * 10_000))
        proxy.lose_answer(b"outlast_piece")
        await tasks.append_api_message("t", messages[-1], claim=claim)
        state = TaskState(id="t", context={"x": "y" * 50_000}, retry_count=number)
        await tasks.save_task_state("t", state, claim=claim)
        assert await tasks.load_api_messages("t") == messages
        stored = await tasks.load_task_state("t")
        assert stored is not None
        assert stored.retry_count == number
    assert proxy.lost >= 5


@pytest.mark.slow
async def test_a_killed_server_loses_nothing_that_was_done(open_driver: Open) -> None:
    """SIGKILL under appends, three times: all that was answered is there, in order, once."""
    need_program()
    with mongod() as server:
        driver = await open_driver(server.url + "kill", timeout=5.0)
        scope = Scope("task", "t")
        owner = Owner((await driver.claim(scope, claim_id(1))).fence)
        done: list[str] = []
        sent = 0
        for life in range(3):
            ends = len(done) + 60

            async def append(ends: int = ends) -> None:
                nonlocal sent
                while True:
                    sent += 1
                    entry = Entry(f"m{sent}", b"x" * 2000)
                    await driver.append(scope, "api", [entry], fence=owner.fence())
                    done.append(entry.id)
                    if len(done) == ends:
                        server.kill()

            with pytest.raises((OutcomeUnknownError, UnavailableError)):
                await append()
            server.start()
            found = [entry.id for entry in await _load(driver, scope)]
            assert len(found) == len(set(found))
            kept = set(found)
            assert [entry_id for entry_id in done if entry_id not in kept] == []
            assert found == sorted(found, key=lambda entry_id: int(entry_id[1:]))
            stored = (await driver.read(scope, "state")).fence
            assert stored is not None
            assert (stored.epoch, life) == (owner.epoch, life)


async def _load(driver: MongoDriver, scope: Scope) -> list[Entry]:
    """The log, once the client has found the server again."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await driver.load(scope, "api")
            except UnavailableError:
                await asyncio.sleep(0)
