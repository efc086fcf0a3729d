"""Values, keys and sizes that MongoDB would change or refuse come back (M3, M5 to M7)."""

from datetime import timedelta
from hashlib import sha256
from typing import Any

import pymongo
import pytest
from mongo_support import Commands, Open

import outlast
from outlast import ApiMessage, StreamCheckpoint, TaskState, UserMessage
from outlast.driver import Index, Scope, Where
from outlast.errors import InvalidDataError, PayloadTooLargeError
from outlast_mongo import MongoBackend

pytestmark = pytest.mark.mongo

AWKWARD: dict[str, Any] = {
    "a.b": 1,
    "$set": {"$x": "$y", "a.b.c": [{"$literal": 1}]},
    "": "empty key",
    "nul\x00key": "nul\x00value",
    "big": 2**63,
    "bigger": -(10**300),
    "float": 1.0,
    "zero": -0.0,
    "none": None,
    "_id": "not an id",
}


async def test_keys_and_numbers_are_kept_as_given(backend: outlast.Backend) -> None:
    state = TaskState(id="t.$x\x00", context=AWKWARD, parent_id="$parent")
    await backend.persistence.save_task_state(state.id, state)
    stored = await backend.persistence.load_task_state(state.id)
    assert stored is not None
    assert repr(stored.context) == repr(AWKWARD)
    assert (stored.id, stored.parent_id) == (state.id, "$parent")
    assert await backend.persistence.list_task_states(parent_id="$parent") == [stored]


async def test_an_update_changes_one_key_with_a_dot_and_a_dollar(backend: outlast.Backend) -> None:
    tasks = backend.persistence
    await tasks.save_task_state("t", TaskState(id="t", context={"a": {"b": 1}}))
    await tasks.update_task_state("t", {"config": {"a.b": 1, "$inc": {"x": 1}}})
    stored = await tasks.load_task_state("t")
    assert stored is not None
    assert stored.config == {"a.b": 1, "$inc": {"x": 1}}
    assert stored.context == {"a": {"b": 1}}


async def test_text_that_looks_like_a_field_is_text(backend: outlast.Backend) -> None:
    texts = ["$secret", "$100", "$$NOW", "$head", "\x00", "a.$.b"]
    messages = [ApiMessage(id=text, role="user", content=text) for text in texts]
    for message in messages:
        await backend.persistence.append_api_message("$head", message)
    assert await backend.persistence.load_api_messages("$head") == messages


async def test_scans_filter_by_texts_with_dollars_and_nuls(open_driver: Open) -> None:
    driver = await open_driver()
    texts = ["$ne", "", "a\x00b", "a", "A", "\u00e9", "e\u0301"]
    for text in texts:
        scope = Scope("task", f"t{text}")
        await driver.write(scope, "state", b"", fence=None, index=Index(text, text, 5))
    for text in texts:
        for where in (Where(parent=text), Where(status=text), Where(text, text, 6)):
            page = await driver.scan("task", where=where, after=None, limit=9)
            assert [item.id for item in page.items] == [f"t{text}"]
        page = await driver.scan("task", where=Where(text, text, 5), after=None, limit=9)
        assert page.items == []


async def test_a_log_may_be_larger_than_a_document(backend: outlast.Backend) -> None:
    """Twenty messages of 1 MiB, and then a save of 64 MiB."""
    tasks = backend.persistence
    messages = [
        ApiMessage(id=f"m{number}", role="user", content=f"{number}" * 2**20)
        for number in range(10, 20)
    ]
    for message in messages:
        await tasks.append_api_message("t", message)
    assert await tasks.load_api_messages("t") == messages
    assert await tasks.load_api_messages("t", last=1) == messages[-1:]
    large = [
        UserMessage(id=f"u{number}", type="text", role="user", content="x" * (4 * 2**20 - 1000))
        for number in range(16)
    ]
    await tasks.save_user_messages("t", large)
    assert await tasks.load_user_messages("t") == large


async def test_a_record_may_be_as_large_as_declared_and_no_larger(url: str) -> None:
    commands = Commands()
    client = pymongo.AsyncMongoClient[dict[str, Any]](url, event_listeners=[commands])
    async with MongoBackend(database=client.get_default_database(), timeout=30) as backend:
        limit = backend.capabilities.max_message_bytes
        assert limit >= 8 * 2**20
        text = "x" * (limit - 500)
        checkpoint = StreamCheckpoint(
            run_id="r" * 512, thread_id="t" * 512, message_id="m", model="x", text=text[1500:]
        )
        await backend.checkpoints.put(checkpoint)
        stored = await backend.checkpoints.get(checkpoint.run_id)
        assert stored is not None
        assert stored.text == checkpoint.text
        message = ApiMessage(id="m" * 512, role="user", content=text[500:])
        await backend.persistence.append_api_message("t" * 512, message)
        assert await backend.persistence.load_api_messages("t" * 512) == [message]

        commands.names.clear()
        with pytest.raises(PayloadTooLargeError):
            await backend.persistence.append_api_message(
                "t", ApiMessage(id="m", role="user", content=text + "x" * 1000)
            )
        with pytest.raises(InvalidDataError):
            await backend.persistence.append_api_message(
                "t", ApiMessage(id="m", role="user", content={"half": "\ud83d"})
            )
        assert commands.names == []
    await client.close()


async def test_nothing_of_a_deleted_task_is_left_after_a_sweep(
    backend: outlast.Backend, raw: pymongo.database.Database[dict[str, Any]]
) -> None:
    """C3: no document but floors and the format's number, and no trace of the task in those."""
    tasks, runs = backend.persistence, backend.checkpoints
    secret = "task-5f0c2d"
    claim = await tasks.claim_task(secret)
    state = TaskState(id=secret, context={"x": secret * 10_000}, parent_id=f"{secret}-p")
    await tasks.save_task_state(secret, state, claim=claim)
    for number in range(80):
        message = ApiMessage(id=f"{secret}-{number}", role="user", content="z" * 2000)
        await tasks.append_api_message(secret, message, claim=claim)
    run = await runs.claim(f"{secret}-r", thread_id=secret)
    checkpoint = StreamCheckpoint(
        run_id=f"{secret}-r", thread_id=secret, message_id="m", model="x", text=secret * 50_000
    )
    await runs.put(checkpoint, claim=run)
    assert raw["outlast_piece"].count_documents({}) >= 3
    await tasks.delete_task(secret, claim=claim)
    assert raw["outlast_piece"].count_documents({}) == 0
    assert raw["outlast_head"].count_documents({}) == 2
    report = await backend.sweep(older_than=timedelta(0))
    assert report.tombstones == 2
    left = {name: list(raw[name].find()) for name in raw.list_collection_names()}
    assert not left["outlast_head"] + left["outlast_piece"]
    hidden = [sha256(one.encode()).hexdigest() for one in (secret, f"{secret}-r")]
    assert not [one for one in (secret, *hidden) if one in repr(left)]
    assert (await tasks.claim_task(secret)).epoch > claim.epoch
