"""The public API as a typed program uses it; checked by mypy and pyright, never run."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import assert_type

import outlast


async def tasks() -> None:
    """Every method of the task store, with the types that it returns."""
    async with outlast.open_backend("memory://", namespace="n", timeout=1.0) as backend:
        assert_type(backend, outlast.Backend)
        store = backend.persistence
        assert_type(store, outlast.PersistenceManager)
        claim = await store.claim_task("t1", claim_id=None, at_least=None, if_epoch=0)
        assert_type(claim, outlast.Claim)
        assert_type(claim.epoch, int)
        assert_type(claim.claim_id, str)
        await store.check_claim(claim)

        await store.save_task_state("t1", outlast.TaskState(id="t1"), claim=claim)
        assert_type(await store.load_task_state("t1"), outlast.TaskState | None)
        state = await store.update_task_state("t1", {"retry_count": 1}, claim=claim)
        assert_type(state, outlast.TaskState)
        assert_type(state.status, outlast.TaskStatus)
        states = await store.list_task_states(status=outlast.TaskStatus.RUNNING, limit=10)
        assert_type(states, list[outlast.TaskState])
        iterator = store.iter_task_states(parent_id="t0")
        assert_type(iterator, AsyncIterator[outlast.TaskState])
        await store.delete_task_state("t1", claim=claim)

        message = outlast.ApiMessage(id="m1", role="user", content=[{"type": "text", "text": "x"}])
        await store.append_api_message("t1", message, claim=claim)
        await store.append_api_messages("t1", [message], claim=claim)
        await store.save_api_messages("t1", [message], claim=claim)
        loaded = await store.load_api_messages("t1", last=5)
        assert_type(loaded, list[outlast.ApiMessage])
        await store.delete_api_messages("t1", claim=claim)

        card = outlast.UserMessage(id="u1", type="text", role="user")
        await store.append_user_message("t1", card, claim=claim)
        await store.append_user_messages("t1", [card], claim=claim)
        await store.save_user_messages("t1", [card], claim=claim)
        assert_type(await store.load_user_messages("t1"), list[outlast.UserMessage])
        await store.delete_user_messages("t1", claim=claim)

        await store.save_task_input("t1", outlast.TaskInput(message="hello"), claim=claim)
        assert_type(await store.load_task_input("t1"), outlast.TaskInput | None)
        await store.delete_task_input("t1", claim=claim)
        await store.delete_task("t1", claim=claim, force=False)


async def runs(backend: outlast.Backend) -> None:
    """Every method of the checkpoint store, and of the backend."""
    store = backend.checkpoints
    assert_type(store, outlast.StreamCheckpointStore)
    claim = await store.claim("r1", thread_id="t1", if_epoch=None)
    assert_type(claim.checkpoint, outlast.StreamCheckpoint | None)
    checkpoint = outlast.StreamCheckpoint(
        run_id="r1", thread_id="t1", message_id="m2", model="some-model"
    )
    await store.put(checkpoint, claim=claim)
    assert_type(await store.get("r1"), outlast.StreamCheckpoint | None)
    iterator = store.iter_checkpoints(thread_id="t1")
    assert_type(iterator, AsyncIterator[outlast.StreamCheckpoint])
    await store.delete("r1", claim=claim)
    assert_type(await store.delete_thread("t1", force=True), int)

    report = await backend.sweep(older_than=timedelta(days=7), dry_run=True)
    assert_type(report, outlast.SweepReport)
    assert_type(backend.capabilities, outlast.Capabilities)
    await backend.ping()


def errors() -> None:
    """What a handler finds on an error."""
    try:
        raise outlast.StaleWriteError
    except outlast.FencedError as error:
        assert_type(error.applied, bool | None)
        assert_type(error.stored_epoch, int | None)
        assert_type(error.backend, str | None)


@outlast.hookimpl
def outlast_backends() -> list[outlast.BackendInfo]:
    """Describe a backend, as a plugin does."""
    return [outlast.BackendInfo(name="x", schemes=("x",), factory="x:X.from_url", summary="")]
