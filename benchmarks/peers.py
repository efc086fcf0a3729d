"""One more message, persisted by other libraries for agents on the same server.

A session of the OpenAI Agents SDK appends an item; a saver of LangGraph writes the checkpoint of a
thread whose channel holds all messages. Neither has an owner to check, nor tells a repeated append
from a new one. Settings are their defaults, with the durability that outlast and the raw drivers
are measured at: every write is synced.
"""

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import outlast
from benchmarks.bars import LENGTHS
from benchmarks.places import Place
from outlast.cli.bench.measure import Step, side_by_side
from outlast.cli.bench.rows import WARMUP, Profile, Row, message

PEERS = ("redis", "mongodb", "postgres", "sqlite")
_AFRESH = 25
"""Checkpoints of a thousand messages after which a thread is begun anew: they are a megabyte each.
"""


async def measure_peers(
    place: Place, profile: Profile, said: Callable[[str], object]
) -> list[tuple[int, Row]]:
    """What a session and a saver take, times what outlast takes; by the history's length."""
    found: list[tuple[int, Row]] = []
    async with (
        outlast.open_backend(place.url, namespace="peers", **place.options) as backend,
        _session_maker(place) as make_session,
        _saver(place) as saver,
    ):
        for length in LENGTHS:
            said(f"peers at {length}")
            ours = await _ours(backend, length)
            session = await _session(make_session, length)
            thread = _Thread(saver, length)
            await thread.put()
            # In pairs: a saver's megabyte empties caches, and its sync holds up what comes next.
            for name, peer in (("session", session), ("saver", thread.put)):
                mine, theirs = await side_by_side([ours, peer], profile.count, WARMUP)
                timings = {"outlast": mine, name: theirs}
                found.append((length, Row(name, theirs.median / mine.median, timings)))
    return found


async def _ours(backend: outlast.Backend, length: int) -> Step:
    tasks, task = backend.persistence, f"task-{length}"
    claim = await tasks.claim_task(task)
    await tasks.append_api_messages(task, [message(n) for n in range(length)], claim=claim)
    numbers = iter(range(length, 10**9))

    async def append() -> None:
        await tasks.append_api_message(task, message(next(numbers)), claim=claim)

    return append


async def _session(make: Callable[[str], Any], length: int) -> Step:
    session = make(f"session-{length}")
    item = {"role": "user", "content": message(0).content}
    await session.add_items([item] * length)

    async def add() -> None:
        await session.add_items([item])

    return add


@asynccontextmanager
async def _session_maker(place: Place) -> AsyncGenerator[Callable[[str], Any]]:
    memory = "agents.extensions.memory"
    if place.kind == "redis":
        client = import_module("redis.asyncio").Redis.from_url(place.url)
        kind = import_module(f"{memory}.redis_session").RedisSession
        yield lambda name: kind(name, redis_client=client)
        await client.aclose()
    elif place.kind == "mongodb":
        pymongo = import_module("pymongo")
        client = pymongo.AsyncMongoClient(place.url, w="majority", journal=True)
        kind = import_module(f"{memory}.mongodb_session").MongoDBSession
        yield lambda name: kind(name, client=client)
        await client.close()
    elif place.kind == "postgres":
        url = place.url.replace("postgresql://", "postgresql+asyncpg://")
        engine = import_module("sqlalchemy.ext.asyncio").create_async_engine(url)
        kind = import_module(f"{memory}.sqlalchemy_session").SQLAlchemySession
        yield lambda name: kind(name, engine=engine, create_tables=True)
        await engine.dispose()
    else:
        kind = import_module(f"{memory}.async_sqlite_session").AsyncSQLiteSession
        opened: list[Any] = []

        def make(name: str) -> Any:
            opened.append(kind(name, place.folder / "sessions.db"))
            return opened[-1]

        yield make
        for each in opened:
            await each.close()


class _Thread:
    """A thread of LangGraph, whose every checkpoint holds its messages."""

    def __init__(self, saver: Any, length: int) -> None:
        messages = import_module("langchain_core.messages")
        self._saver = saver
        self._messages = [
            messages.HumanMessage(str(message(number).content), id=f"m{number}")
            for number in range(length + 1)
        ]
        self._empty = import_module("langgraph.checkpoint.base").empty_checkpoint
        self._begin()

    def _begin(self) -> None:
        self._count = 0
        self._config: Any = {
            "configurable": {"thread_id": f"t{secrets.token_hex(4)}", "checkpoint_ns": ""}
        }

    async def put(self) -> None:
        """Persist the state behind one more message."""
        if self._count == _AFRESH:
            self._begin()
        self._count += 1
        checkpoint = self._empty()
        version = f"{self._count:032}.{secrets.token_hex(8)}"
        checkpoint["channel_values"] = {"messages": self._messages}
        checkpoint["channel_versions"] = {"messages": version}
        metadata = {"source": "loop", "step": self._count, "parents": {}}
        self._config = await self._saver.aput(
            self._config, checkpoint, metadata, {"messages": version}
        )


@asynccontextmanager
async def _saver(place: Place) -> AsyncGenerator[Any]:
    module = "langgraph.checkpoint"
    if place.kind == "redis":
        kind = import_module(f"{module}.redis.aio").AsyncRedisSaver
        async with kind.from_conn_string(place.url) as saver:
            yield saver
    elif place.kind == "mongodb":
        client = import_module("pymongo").MongoClient(place.url, w="majority", journal=True)
        yield import_module(f"{module}.mongodb").MongoDBSaver(client)
        client.close()
    elif place.kind == "postgres":
        kind = import_module(f"{module}.postgres.aio").AsyncPostgresSaver
        async with kind.from_conn_string(place.url) as saver:
            await saver.setup()
            yield saver
    else:
        kind = import_module(f"{module}.sqlite.aio").AsyncSqliteSaver
        async with kind.from_conn_string(str(place.folder / "saver.db")) as saver:
            await saver.setup()
            yield saver


__all__ = ["PEERS", "measure_peers"]
