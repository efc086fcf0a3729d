"""The message logs in memory and the store behind them: appends, rounds and rollback."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from runtime_kit import Watched, virtually

from outlast import (
    ApiMessage,
    Backend,
    ClosedError,
    ConflictError,
    FencedError,
    InvalidDataError,
    OutcomeUnknownError,
    ToolInfo,
    UnavailableError,
    UserMessage,
)
from outlast.runtime import MessageManager, StateManager


def api(number: int, text: str = "text") -> ApiMessage:
    return ApiMessage(id=f"a{number}", role="user", content=text)


def user(number: int, text: str = "text") -> UserMessage:
    return UserMessage(id=f"u{number}", type="text", role="user", content=text)


async def make(store: Any, **options: Any) -> MessageManager:
    claim = await store.claim_task("t")
    return MessageManager("t", store, claim=claim, **options)


def batches(store: Watched) -> list[tuple[str, list[str]]]:
    """Each write with the ids that it carried."""
    return [(name, [message.id for message in call[1]]) for name, _, call in store.calls]


async def logs(backend: Backend) -> tuple[list[str], list[str]]:
    api_log = await backend.persistence.load_api_messages("t")
    user_log = await backend.persistence.load_user_messages("t")
    return [message.id for message in api_log], [message.id for message in user_log]


@virtually
async def test_each_log_appends_what_is_new(backend: Backend, store: Any) -> None:
    """Independent of the other log, as one batch, in order."""
    manager = await make(store)
    manager.add_api_message(api(1))
    manager.add_api_message(api(2))
    await asyncio.sleep(0.5)
    manager.add_user_message(user(1))
    await asyncio.sleep(5)
    manager.add_api_message(api(3))
    await asyncio.sleep(5)
    assert batches(store) == [
        ("append_api_messages", ["a1", "a2"]),
        ("append_user_messages", ["u1"]),
        ("append_api_messages", ["a3"]),
    ]
    assert await logs(backend) == (["a1", "a2", "a3"], ["u1"])


@virtually
async def test_a_failed_append_is_repeated_as_an_append(backend: Backend, store: Any) -> None:
    """Before the commit or after it (a lost answer): there is one copy, in order."""
    for number, error in ((1, UnavailableError("away")), (3, OutcomeUnknownError("no answer"))):
        store.calls.clear()
        manager = await make(store)
        manager.restore_messages(
            await backend.persistence.load_api_messages("t"),
            await backend.persistence.load_user_messages("t"),
        )

        async def fail(name: str, error: Exception = error) -> None:
            store.before = store.after = None
            raise error

        setattr(store, "before" if number == 1 else "after", fail)
        manager.add_api_message(api(number))
        await asyncio.sleep(1.2)
        manager.add_api_message(api(number + 1))
        await asyncio.sleep(5)
        assert not manager.is_dirty
        assert {name for name, _ in batches(store)} == {"append_api_messages"}
    assert (await logs(backend))[0] == ["a1", "a2", "a3", "a4"]


@virtually
async def test_what_is_added_during_an_append_follows_it(backend: Backend, store: Any) -> None:
    """Two writes of one log are never under way at once; the two logs do not wait."""
    manager = await make(store)

    async def slow(name: str) -> None:
        await asyncio.sleep(2)

    store.before = slow
    for number in range(30):
        manager.add_api_message(api(number))
        manager.add_user_message(user(number))
        await asyncio.sleep(0.3)
    await manager.aclose()
    assert store.most_in_flight == 1
    assert await logs(backend) == (
        [f"a{number}" for number in range(30)],
        [f"u{number}" for number in range(30)],
    )
    sent = [name for _, ids in batches(store) for name in ids]
    assert len(sent) == len(set(sent)) == 60


@virtually
async def test_a_change_of_a_stored_user_message_is_a_full_save(
    backend: Backend, store: Any
) -> None:
    """One that is not stored yet is simply appended as it is now."""
    manager = await make(store)
    card = UserMessage(id="u1", type="tool", role="tool", tool_info=ToolInfo("c1", "search"))
    manager.add_user_message(card)
    done = ToolInfo("c1", "search", status="done", result={"hits": [1]})
    manager.update_user_message("u1", tool_info=done)
    await manager.save_now()
    assert batches(store) == [("append_user_messages", ["u1"])]
    manager.add_user_message(user(2))
    manager.update_user_message("u1", visible=False)
    await asyncio.sleep(5)
    assert batches(store)[1:] == [("save_user_messages", ["u1", "u2"])]
    (stored, _) = await backend.persistence.load_user_messages("t")
    assert (stored.tool_info, stored.visible) == (done, False)


@virtually
async def test_a_change_of_a_message_on_its_way_is_not_lost(backend: Backend, store: Any) -> None:
    """Nor is one whose full save failed."""
    manager = await make(store)

    async def change(name: str) -> None:
        store.before = fail
        manager.update_user_message("u1", content="changed")

    async def fail(name: str) -> None:
        store.before = None
        raise UnavailableError("away")

    store.before = change
    manager.add_user_message(user(1))
    await asyncio.sleep(20)
    assert [name for name, _ in batches(store)] == [
        "append_user_messages",
        "save_user_messages",
        "save_user_messages",
    ]
    (stored,) = await backend.persistence.load_user_messages("t")
    assert stored.content == "changed"


@virtually
async def test_known_ids_and_empty_messages_are_refused(backend: Backend, store: Any) -> None:
    """Whether stored or not; nothing changes."""
    manager = await make(store)
    manager.add_api_message(api(1))
    manager.add_user_message(user(1))
    await manager.save_now()
    wrong: list[Callable[[], object]] = [
        lambda: manager.add_api_message(api(1)),
        lambda: manager.add_user_message(user(1, "other")),
        lambda: manager.add_api_message(ApiMessage(id="x", role="user", content=" \n")),
        lambda: manager.add_api_message(ApiMessage(id="x", role="user", content=[])),
        lambda: manager.add_api_message(
            ApiMessage(id="x", role="user", content=[{"type": "text", "text": ""}])
        ),
        lambda: manager.add_user_message(UserMessage(id="x", type="text", role="user")),
        lambda: manager.add_api_message(ApiMessage(id="x", role="user", content=[{"a": b""}])),
        lambda: manager.update_user_message("unknown", visible=False),
        lambda: manager.update_user_message("u1", id="u2"),
        lambda: manager.update_user_message("u1", nope=1),
    ]
    for call in wrong:
        with pytest.raises(InvalidDataError):
            call()
    assert [message.id for message in manager.api_messages] == ["a1"]
    assert [message.id for message in manager.user_messages] == ["u1"]
    assert not manager.is_dirty


def test_messages_are_not_shared_with_the_caller() -> None:
    """Neither what was passed in nor the lists that are handed out."""
    manager = MessageManager("t")
    content: list[Any] = [{"type": "text", "text": "x"}]
    manager.add_api_message(ApiMessage(id="a1", role="user", content=content))
    content[0]["text"] = "y"
    manager.api_messages.clear()
    (message,) = manager.api_messages
    assert message.content == [{"type": "text", "text": "x"}]


@virtually
async def test_a_rollback_removes_the_api_messages_of_the_round(
    backend: Backend, store: Any
) -> None:
    """Stored or not; user messages stay, and what was before."""
    manager = await make(store)
    manager.add_api_message(api(1))
    manager.start_round()
    manager.add_api_message(api(2))
    manager.add_user_message(user(1))
    await manager.save_now()
    manager.add_api_message(api(3))
    removed = await manager.rollback_current_round()
    assert [message.id for message in removed] == ["a2", "a3"]
    assert await logs(backend) == (["a1"], ["u1"])
    assert not manager.is_in_round
    assert await manager.rollback_current_round() == []
    manager.add_api_message(api(2, "anew"))
    await manager.save_now()
    assert await logs(backend) == (["a1", "a2"], ["u1"])


@virtually
async def test_a_round_that_ended_is_not_rolled_back(backend: Backend, store: Any) -> None:
    """Its messages are part of the conversation."""
    manager = await make(store)
    manager.start_round()
    manager.add_api_message(api(1))
    manager.end_round()
    assert await manager.rollback_current_round() == []
    assert len(manager.api_messages) == 1


@virtually
async def test_a_rollback_never_removes_what_another_wrote(backend: Backend, store: Any) -> None:
    """An unclaimed writer that finds foreign messages refuses; a fenced one is refused."""
    manager = MessageManager("t", store)
    manager.add_api_message(api(1))
    await manager.save_now()
    manager.start_round()
    manager.add_api_message(api(2))
    await manager.save_now()
    await backend.persistence.append_api_message("t", api(9))
    with pytest.raises(ConflictError, match="a9"):
        await manager.rollback_current_round()
    assert (await logs(backend))[0] == ["a1", "a2", "a9"]
    assert [message.id for message in manager.api_messages] == ["a1", "a2"]

    claimed = await make(store)
    claimed.restore_messages(await backend.persistence.load_api_messages("t"), [])
    claimed.start_round()
    claimed.add_api_message(api(3))
    await claimed.save_now()
    await backend.persistence.claim_task("t")
    with pytest.raises(FencedError):
        await claimed.rollback_current_round()
    assert (await logs(backend))[0] == ["a1", "a2", "a9", "a3"]


@virtually
async def test_a_rollback_that_fails_stays_pending(backend: Backend, store: Any) -> None:
    """The caller is told, and it is made again."""
    manager = await make(store)
    manager.start_round()
    manager.add_api_message(api(1))
    await manager.save_now()

    async def fail(name: str) -> None:
        store.before = None
        raise UnavailableError("away")

    store.before = fail
    with pytest.raises(UnavailableError):
        await manager.rollback_current_round()
    assert (await logs(backend))[0] == ["a1"]
    await asyncio.sleep(5)
    assert (await logs(backend))[0] == []


@virtually
async def test_a_message_that_a_turn_committed_is_taken_in(backend: Backend, store: Any) -> None:
    """Where the store has it; what was added before it was saved comes behind."""
    manager = await make(store)
    claim = await backend.persistence.claim_task("t")
    manager = MessageManager("t", store, claim=claim)
    manager.add_api_message(api(1))
    await manager.save_now()
    manager.add_api_message(api(3))
    await backend.persistence.append_api_message("t", api(2), claim=claim)
    manager.adopt_api_message(api(2))
    await manager.save_now()
    assert (await logs(backend))[0] == ["a1", "a2", "a3"]
    assert [message.id for message in manager.api_messages] == ["a1", "a2", "a3"]
    assert [name for name, _ in batches(store)] == ["append_api_messages"] * 2


@virtually
async def test_closing_drains_both_logs(backend: Backend, store: Any) -> None:
    """Until nothing is left; failures are one grouped error, and the other log is saved."""
    manager = await make(store)

    async def fail(name: str) -> None:
        if name == "append_user_messages":
            raise UnavailableError("away")

    store.before = fail
    manager.add_api_message(api(1))
    manager.add_user_message(user(1))
    with pytest.raises(ExceptionGroup) as caught:
        await manager.aclose()
    assert len(caught.value.exceptions) == 1
    assert await logs(backend) == (["a1"], [])
    with pytest.raises(ClosedError):
        manager.add_api_message(api(2))
    await manager.aclose()


@virtually
async def test_writers_of_state_and_messages_share_one_claim(backend: Backend, store: Any) -> None:
    """And none of them is refused as stale, whatever they do at once."""
    claim = await store.claim_task("t")
    messages = MessageManager("t", store, claim=claim, debounce=0)
    state = StateManager("t", store, claim=claim, debounce=0)
    for number in range(50):
        messages.add_api_message(api(number))
        messages.add_user_message(user(number))
        state.update_state(retry_count=number)
        await asyncio.sleep(0.001)
    await messages.aclose()
    await state.aclose()
    assert len((await logs(backend))[0]) == 50
