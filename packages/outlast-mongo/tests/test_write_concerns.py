"""Writes that too few members have: never reported as done, whatever a read shows (D1, E2)."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
import pytest
from mongo_support import Proxy, admin, node_url, primary, server_of, url_of

import outlast
from outlast import ApiMessage, TaskState
from outlast.errors import OutcomeUnknownError
from outlast_contract.servers import Server, start_server

pytestmark = pytest.mark.mongo


@pytest.fixture(scope="module")
def three() -> Iterator[Server]:
    """A replica set of three."""
    with server_of(lambda: start_server("mongodb-replicas")) as started:
        first = primary(started)
        config = admin(started, {"replSetGetConfig": 1}, first)["config"]
        config["version"] += 1
        # However long the others are stopped, the primary does not notice.
        config["settings"]["electionTimeoutMillis"] = 600_000
        admin(started, {"replSetReconfig": config}, first)
        yield started


@contextmanager
def alone(server: Server) -> Generator[int]:
    """Stop all members but the primary."""
    first = primary(server)
    others = [node for node in range(3) if node != first]
    for node in others:
        server.stop(node)
    try:
        yield first
    finally:
        for node in others:
            server.cont(node)


def kill_waiting(server: Server, node: int) -> None:
    """Interrupt all writes to heads, which at this server wait for others."""
    with pymongo.MongoClient[dict[str, Any]](node_url(server, node)) as client:
        waiting = {"$match": {"ns": {"$regex": "outlast_head"}, "op": {"$ne": "getmore"}}}
        for found in client.admin.aggregate([{"$currentOp": {"allUsers": True}}, waiting]):
            admin(server, {"killOp": 1, "op": found["opid"]}, node)


async def outcome_of(call: Awaitable[object], interrupt: Callable[[], None]) -> object:
    """What a call raises whose waiting the server gives up, so that time is left to look."""
    running = asyncio.ensure_future(call)
    while not running.done():
        await asyncio.to_thread(interrupt)
        await asyncio.wait([running], timeout=0.02)
    return running.exception()


@pytest.mark.parametrize("options", [{}, {"journal": "false"}, {"w": "3"}, {"w": "2"}], ids=str)
async def test_what_too_few_members_have_is_not_done(
    three: Server, name: str, options: dict[str, str]
) -> None:
    """A read at the primary shows the write; but a failover would lose it."""
    async with outlast.open_backend(url_of(three, name, **options), timeout=4) as backend:
        tasks = backend.persistence
        claims = {key: await tasks.claim_task(key) for key in ("save", "append", "delete")}
        await tasks.save_task_state("delete", TaskState(id="delete"), claim=claims["delete"])
        message = ApiMessage(id="m", role="user", content="x")
        with alone(three) as node:
            calls: dict[str, Awaitable[object]] = {
                "save": tasks.save_task_state("save", TaskState(id="save"), claim=claims["save"]),
                "append": tasks.append_api_message("append", message, claim=claims["append"]),
                "delete": tasks.delete_task("delete", claim=claims["delete"]),
                "claim": tasks.claim_task("claim"),
                "unclaimed append": tasks.append_api_message("free", message),
                "unclaimed save": tasks.save_task_state("other", TaskState(id="other")),
            }
            outcomes = await asyncio.gather(
                *(outcome_of(call, lambda: kill_waiting(three, node)) for call in calls.values())
            )
            kinds = {key: type(outcome) for key, outcome in zip(calls, outcomes, strict=True)}
            assert kinds == dict.fromkeys(calls, OutcomeUnknownError)
        primary(three)
    async with outlast.open_backend(url_of(three, name, **options)) as backend:
        tasks = backend.persistence
        for key in ("free", "append"):
            await tasks.append_api_message(key, message, claim=claims.get(key))
            assert await tasks.load_api_messages(key) == [message]


@pytest.mark.usefixtures("broken_connections")
@pytest.mark.parametrize("options", ["w=1", "journal=false"])
async def test_a_lost_answer_is_settled_by_a_write_that_changes_nothing(
    server: Server, name: str, options: str
) -> None:
    """Where enough members have it, it is done, and done once."""
    async with Proxy(server.addresses[0][1]).running() as proxy:
        url = f"mongodb://127.0.0.1:{proxy.port}/{name}?directConnection=true&{options}"
        async with outlast.open_backend(url) as backend:
            tasks = backend.persistence
            proxy.lose_answer(b"outlast_head")
            claim = await tasks.claim_task("t")
            assert claim.epoch == 1
            for number in range(3):
                proxy.lose_answer(b"outlast_head")
                state = TaskState(id="t", retry_count=number)
                await tasks.save_task_state("t", state, claim=claim)
            assert proxy.lost >= 4
            stored = await tasks.load_task_state("t")
            assert stored is not None
            assert stored.retry_count == 2
    with pymongo.MongoClient[dict[str, Any]](server.url) as client:
        client.drop_database(name)
