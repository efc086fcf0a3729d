"""Answers that never arrive (M10)."""

from collections.abc import AsyncIterator
from typing import Any

import pymongo
import pytest
from mongo_support import Proxy

import outlast
from outlast import ApiMessage, TaskState
from outlast.errors import OutcomeUnknownError
from outlast_contract.servers import Server
from outlast_mongo import MongoBackend

pytestmark = [pytest.mark.mongo, pytest.mark.usefixtures("broken_connections")]


@pytest.fixture(params=["standalone", "server"])
def behind(request: pytest.FixtureRequest) -> Server:
    """The server behind the proxy; in a replica set the driver's own retries are on."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def proxy(behind: Server) -> AsyncIterator[Proxy]:
    """Between client and server."""
    async with Proxy(behind.addresses[0][1]).running() as running:
        yield running


@pytest.fixture(params=["pymongo", "motor"])
async def backend(
    request: pytest.FixtureRequest, proxy: Proxy, behind: Server, name: str
) -> AsyncIterator[outlast.Backend]:
    """A backend behind the proxy."""
    url = f"mongodb://127.0.0.1:{proxy.port}/{name}?directConnection=true"
    async with MongoBackend(url=url, driver=request.param) as opened:
        yield opened
    with pymongo.MongoClient[dict[str, Any]](behind.url) as client:
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
    backend: outlast.Backend, proxy: Proxy, behind: Server
) -> None:
    """The driver's own retry knows on a replica set; without it nobody does, and that is said."""
    tasks = backend.persistence
    await tasks.save_task_state("t", TaskState(id="t"))
    proxy.lose_answer(b"update")
    if behind.kind == "mongodb":
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
