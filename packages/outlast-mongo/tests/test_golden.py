"""Documents that an earlier version stored are read, owned and changed by this one (V8)."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pymongo
import pytest
from bson import json_util

import outlast
from outlast import ApiMessage, StreamCheckpoint, TaskInput, TaskState, UserMessage
from outlast.errors import FencedError
from outlast_mongo import MongoBackend
from outlast_mongo._schema import STORE_FORMAT

pytestmark = pytest.mark.mongo

Raw = pymongo.database.Database[dict[str, Any]]
GOLDEN = Path(__file__).parent / "golden" / f"v{STORE_FORMAT}.json"
NAMESPACE = "golden"

STATE = TaskState(id="t/1", context={"text": "\u00e9" * 9000, "a.b": {"$x": None}}, parent_id="p")
INPUT = TaskInput(message="begin", params={"n": 2**63})
MESSAGES = [
    ApiMessage(id=f"m{number}", role="user", content=f"text \x00 {number}") for number in range(40)
]
SHOWN = [UserMessage(id="u", type="text", role="assistant", content="hello")]
CHECKPOINT = StreamCheckpoint(run_id="r", thread_id="t/1", message_id="m", model="x", text="half")


async def fill(backend: outlast.Backend) -> None:
    """What the golden documents hold: a claimed task with pieces, an unclaimed run, a floor."""
    tasks = backend.persistence
    await tasks.claim_task("swept")
    await backend.sweep(older_than=timedelta(0))
    claim = await tasks.claim_task("t/1")
    await tasks.save_task_state("t/1", STATE, claim=claim)
    await tasks.save_task_input("t/1", INPUT, claim=claim)
    for message in MESSAGES:
        await tasks.append_api_message("t/1", message, claim=claim)
    await tasks.append_user_messages("t/1", SHOWN, claim=claim)
    await backend.checkpoints.put(CHECKPOINT)


async def check(backend: outlast.Backend) -> None:
    """Everything reads as it was written, and has the owner that it had."""
    tasks = backend.persistence
    state = await tasks.load_task_state("t/1")
    assert state is not None
    assert msgspec.structs.replace(state, updated_at=None) == STATE
    assert await tasks.load_task_input("t/1") == INPUT
    assert await tasks.load_api_messages("t/1") == MESSAGES
    assert await tasks.load_user_messages("t/1") == SHOWN
    assert await tasks.list_task_states(parent_id="p") == [state]
    with pytest.raises(FencedError):
        await tasks.append_api_message("t/1", MESSAGES[0])


async def test_golden_documents_are_read(url: str, raw: Raw) -> None:
    for name, documents in json_util.loads(GOLDEN.read_text()).items():
        raw[name].insert_many(documents)
    async with MongoBackend(url=url, namespace=NAMESPACE, setup=False) as backend:
        await check(backend)
        stored = await backend.checkpoints.get("r")
        assert stored is not None
        assert stored.text == CHECKPOINT.text
        claim = await backend.persistence.claim_task("t/1")
        assert claim.epoch == 2
        last = ApiMessage(id="last", role="user", content="")
        await backend.persistence.append_api_message("t/1", last, claim=claim)
        assert await backend.persistence.load_api_messages("t/1") == [*MESSAGES, last]
        assert (await backend.persistence.claim_task("swept")).epoch > 1


async def test_documents_have_the_fields_of_their_format(url: str, raw: Raw) -> None:
    """Another field, or another type, asks for a new format and a new golden file."""
    async with MongoBackend(url=url, namespace=NAMESPACE) as backend:
        await fill(backend)
        await check(backend)
    golden = json_util.loads(GOLDEN.read_text())
    assert set(golden) == set(raw.list_collection_names())
    for name, documents in golden.items():
        assert _shapes(documents) == _shapes(raw[name].find())


def _shapes(documents: Any) -> set[frozenset[tuple[str, str]]]:
    return {
        frozenset((field, type(value).__name__) for field, value in document.items())
        for document in documents
    }
