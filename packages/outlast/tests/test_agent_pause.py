"""Pausing, rolling back and aborting tasks, at every kind of moment."""

import asyncio
import contextlib
from typing import Any

import pytest
from agent_kit import (
    Gate,
    TalkingModel,
    cards,
    checkpointed,
    make,
    reached,
    shape,
    stored,
    waiting_tool,
)
from runtime_kit import now, virtually
from stream_kit import says

from outlast import Backend, ClosedError, NotSupportedError, TaskStatus, UnavailableError
from outlast.runtime import CheckpointPolicy, TaskCallbacks, ToolContext, check_history, tool
from outlast.runtime.history import ABORTED, NOT_RUN

ANSWER = says("It rains all day long.")


async def status_of(backend: Backend, task_id: str = "t") -> TaskStatus:
    state = await backend.persistence.load_task_state(task_id)
    assert state is not None
    return state.status


def gated(gate: Gate, after: int) -> Any:
    """A pause for a model: it stops before the event of this number, once."""
    count = 0

    async def pause() -> None:
        nonlocal count
        count += 1
        if count == after:
            await gate()

    return pause


@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_paused_turn_goes_on_where_it_was(is_new_process: bool) -> None:
    """In the same process or another one: one message is committed, and nothing is said twice."""

    @virtually
    async def test(backend: Backend, store: Any) -> None:
        gate = Gate()
        model = TalkingModel(ANSWER, pause=gated(gate, 4))
        agent = make(backend, model, checkpointing=CheckpointPolicy(interval=0))
        task = await agent.create_task("Weather?", task_id="t")
        await task.start()
        await reached(gate.reached)
        await task.pause()
        assert task.status is await status_of(backend) is TaskStatus.PAUSED
        assert await stored(backend) == ["user Weather?"]
        found = await backend.checkpoints.get("t")
        assert found is not None
        assert found.text == "It rains all"[: len(found.text)]
        assert not task.is_running
        if is_new_process:
            await task.aclose()
            task = await agent.load_task("t")
        waiter = asyncio.create_task(task.wait())
        await task.start()
        assert (await waiter).status is TaskStatus.COMPLETED
        assert await stored(backend) == ["user Weather?", "assistant It rains all day long."]
        assert model.prefixes == ["", found.text]
        assert await backend.checkpoints.get("t") is None
        await task.aclose()

    test()


@virtually
async def test_a_pause_lets_a_tool_end(backend: Backend, store: Any) -> None:
    """Its result is stored; the model is not asked any more."""
    gate = Gate()

    @tool
    async def slow() -> str:
        await gate()
        return "slow"

    model = TalkingModel(says("", ("c1", "slow", "{}"), ("c2", "slow", "{}")), says("Done."))
    async with await make(backend, model, slow).create_task("Go.", task_id="t") as task:
        await task.start()
        await reached(gate.reached)
        pausing = asyncio.create_task(task.pause())
        await asyncio.sleep(1)
        gate.opened.set()
        await pausing
        assert await stored(backend) == ["user Go.", "assistant slow(c1) slow(c2)", "tool =slow"]
        assert task.interrupted_calls == []
        await task.start()
        await task.wait()
    assert (await stored(backend))[2:] == ["tool =slow", "tool =slow", "assistant Done."]


@virtually
async def test_a_tool_that_does_not_end_is_cut(backend: Backend, store: Any) -> None:
    """After pause_grace seconds; by default it is not run again, and the model is told so."""
    gate = Gate()
    runs: list[int] = []

    @tool
    async def hang() -> str:
        runs.append(1)
        await gate()
        return "never"

    model = TalkingModel(says("", ("c1", "hang", "{}")), says("Done."))
    async with await make(backend, model, hang, pause_grace=2).create_task(
        "Go.", task_id="t"
    ) as task:
        await task.start()
        await reached(gate.reached)
        start = now()
        await task.pause()
        assert now() - start == pytest.approx(2)
        (call,) = task.interrupted_calls
        assert (call.tool, call.call_id, call.message_id) == ("hang", "c1", "turn-1")
        await task.start()
        await task.wait()
    assert len(runs) == 1
    assert (await stored(backend))[2].startswith("tool !The call was interrupted")


@virtually
async def test_a_pause_with_rollback_removes_the_round(backend: Backend, store: Any) -> None:
    """In its tool calls: the conversation is as before the round, and the next one is another."""
    gate = Gate()
    keys: list[str] = []

    @tool
    async def step() -> str:
        return "x"

    @tool
    async def hang() -> str:
        keys.append("hang")
        await gate()
        return "y"

    two = says("Thinking.", ("c1", "step", "{}"), ("c2", "hang", "{}"))
    model = TalkingModel(says("", ("c1", "step", "{}")), two, says("Done."))
    agent = make(backend, model, step, hang)
    task = await agent.create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    before = await backend.persistence.load_user_messages("t")
    assert len(await stored(backend)) == 5
    await task.pause(rollback=True)
    assert await stored(backend) == ["user Go.", "assistant step(c1)", "tool =x"]
    assert shape(task.api_messages) == await stored(backend)
    users = await backend.persistence.load_user_messages("t")
    assert [message.id for message in users] == [message.id for message in before]
    assert cards(users)[-3:] == ["assistant Thinking.", "step:rolled_back", "hang:running"]
    assert await status_of(backend) is TaskStatus.PAUSED
    assert await backend.checkpoints.get("t") is None
    await task.aclose()

    gate.opened.set()
    async with await agent.load_task("t") as task:
        await task.start()
        await task.wait()
        messages = task.api_messages
    assert [message.id for message in messages if message.role == "assistant"] == [
        "turn-1",
        "turn-2.1",
        "turn-3.1",
    ]
    assert keys == ["hang", "hang"]
    assert check_history(messages) == []


@virtually
async def test_a_rollback_drops_the_turn_in_flight(backend: Backend, store: Any) -> None:
    """Its checkpoint goes, its writer is fenced, and the turn starts anew."""
    gate = Gate()
    model = TalkingModel(ANSWER, pause=gated(gate, 4))
    agent = make(backend, model, checkpointing=CheckpointPolicy(interval=0))
    async with await agent.create_task("Weather?", task_id="t") as task:
        await task.start()
        await reached(gate.reached)
        found = await checkpointed(backend)
        await task.pause(rollback=True)
        assert await backend.checkpoints.get("t") is None
        assert (await backend.checkpoints.claim("t")).epoch > found.epoch + 1
        await task.start()
        await task.wait()
    assert model.prefixes == ["", ""]
    assert await stored(backend) == ["user Weather?", "assistant It rains all day long."]


@pytest.mark.parametrize("how", ["pause", "roll back", "abort", "close"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_turn_that_is_cut_in_its_commit_is_there_or_not(how: str, when: str) -> None:
    """Memory and store agree on it, whatever becomes of the append that was sent."""

    @virtually
    async def test(backend: Backend, store: Any) -> None:
        gate = Gate()

        async def hold(name: str) -> None:
            if name == "append_api_message":
                store.before = store.after = None
                await gate()

        setattr(store, when, hold)
        hang = waiting_tool(gate)
        model = TalkingModel(says("", ("c1", "hang", "{}")), says("Done."))
        agent = make(backend, model, hang, persistence=store)
        task = await agent.create_task("Go.", task_id="t")
        await task.start()
        await reached(gate.reached)
        gate.opened.set()
        if how == "close":
            await task.aclose()
            task = await agent.load_task("t")
        elif how == "abort":
            await task.abort()
        else:
            await task.pause(rollback=how == "roll back")
        assert shape(task.api_messages) == await stored(backend)
        if how == "roll back":
            assert await stored(backend) == ["user Go."]
        if how == "abort":
            await task.send_message("And?")
        else:
            await task.start()
        assert (await task.wait()).status is TaskStatus.COMPLETED
        assert shape(task.api_messages) == await stored(backend)
        assert check_history(task.api_messages) == []
        assert (await stored(backend))[-1] == "assistant Done."
        await task.aclose()

    test()


@virtually
async def test_a_rollback_that_a_crash_interrupts_leaves_a_whole_task(
    backend: Backend, store: Any
) -> None:
    """At whatever write the process dies, another one goes on, and no id is used twice."""
    for deadly in range(1, 8):
        task_id = f"t{deadly}"
        gate = Gate()
        hang = waiting_tool(gate, on_interrupted="rerun")
        model = TalkingModel(says("", ("c1", "hang", "{}")), says("Done."))
        task = await make(backend, model, hang, persistence=store).create_task(
            "Go.", task_id=task_id
        )
        await task.start()
        await reached(gate.reached)
        count = 0

        async def die(name: str, deadly: int = deadly) -> None:
            nonlocal count
            count += 1
            if count >= deadly:
                raise UnavailableError("dead")

        store.before = die
        try:
            await task.pause(rollback=True)
        except UnavailableError:
            died = True
        else:
            died = False
        task._core.quit()
        store.before = None
        gate.opened.set()
        async with await make(backend, model, hang).load_task(task_id) as again:
            await again.start()
            await again.wait()
            assert check_history(again.api_messages) == []
        lines = await stored(backend, task_id)
        assert lines == ["user Go.", "assistant hang(c1)", "tool =x", "assistant Done."]
    assert not died


@pytest.mark.parametrize("moment", ["pending", "turn", "tool", "paused"])
def test_an_aborted_task_has_ended(moment: str) -> None:
    """At every kind of moment; the conversation is acceptable, and can go on."""

    @virtually
    async def test(backend: Backend, store: Any) -> None:
        gate = Gate()

        @tool
        async def hang() -> str:
            await gate()
            return "x"

        first = says("", ("c1", "hang", "{}"), ("c2", "hang", "{}")) if moment == "tool" else ANSWER
        model = TalkingModel(first, says("Done."))
        if moment in ("turn", "paused"):
            model.pause = gated(gate, 3)
        agent = make(backend, model, hang)
        task = await agent.create_task("Go.", task_id="t")
        waiter = asyncio.create_task(task.wait())
        if moment != "pending":
            await task.start()
            await reached(gate.reached)
        if moment == "paused":
            await task.pause()
        await task.abort()
        await task.abort()
        assert (await waiter).status is await status_of(backend) is TaskStatus.ABORTED
        assert (await waiter).end_time is not None
        assert check_history(task.api_messages) == []
        assert shape(task.api_messages) == await stored(backend)
        if moment == "tool":
            assert shape(task.api_messages)[2:] == [f"tool !{ABORTED}", f"tool !{NOT_RUN}"]
        assert await backend.checkpoints.get("t") is None
        with pytest.raises(NotSupportedError):
            await task.pause()
        await task.aclose()
        gate.opened.set()
        async with await agent.load_task("t") as task:
            assert task.repairs == ()
            await task.send_message("Go on.")
            assert (await task.wait()).status is TaskStatus.COMPLETED
            assert check_history(task.api_messages) == []

    test()


@virtually
async def test_a_closed_task_tells_who_waits(backend: Backend, store: Any) -> None:
    """The task stays as it is, and another load goes on."""
    gate = Gate()
    model = TalkingModel(ANSWER, pause=gated(gate, 3))
    agent = make(backend, model)
    task = await agent.create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    waiter = asyncio.create_task(task.wait())
    await asyncio.sleep(0)
    await task.aclose()
    await task.aclose()
    with pytest.raises(ClosedError):
        await waiter
    for call in (task.start, task.abort, task.pause, lambda: task.send_message("x")):
        with pytest.raises(ClosedError):
            await call()
    assert await status_of(backend) is TaskStatus.RUNNING
    async with await agent.load_task("t") as task:
        waiter = asyncio.create_task(task.wait())
        await asyncio.sleep(0)
        assert not waiter.done()
        await task.start()
        assert (await waiter).status is TaskStatus.COMPLETED
    names = {each.get_name() for each in asyncio.all_tasks()} - {"Task-1"}
    assert not any(name.startswith("outlast") for name in names), names


@virtually
async def test_closing_saves_all_writers_and_groups_what_failed(
    backend: Backend, store: Any
) -> None:
    """State, API messages and user messages, each for itself."""
    agent = make(backend, TalkingModel(), persistence=store)
    task = await agent.create_task("Go.", task_id="t")
    task.update_context(step=1)
    await task.send_message("x")
    task._core.update_user("input", visible=False)

    async def fail(name: str) -> None:
        raise UnavailableError(name)

    store.before = fail
    with pytest.raises(ExceptionGroup) as caught:
        await task.aclose()
    assert sorted(str(error) for error in caught.value.exceptions) == [
        "save_task_state",
        "save_user_messages",
    ]
    await task.aclose()


@virtually
async def test_a_tool_cannot_change_the_course_of_its_own_task(
    backend: Backend, store: Any
) -> None:
    """It would wait for itself."""

    @tool
    async def stop() -> None:
        await task.pause()

    model = TalkingModel(says("", ("c1", "stop", "{}")), says("Done."))
    async with await make(backend, model, stop).create_task("Go.", task_id="t") as task:
        await task.start()
        await task.wait()
    assert "NotSupportedError" in (await stored(backend))[2]


@virtually
async def test_a_tool_that_swallows_its_cancellation_ends_the_loop(
    backend: Backend, store: Any
) -> None:
    """The model is not asked any more behind it."""
    gate = Gate()

    @tool
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await gate()
        return "still here"

    model = TalkingModel(says("", ("c1", "stubborn", "{}")), says("Done."))
    task = await make(backend, model, stubborn).create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    await task.aclose()
    assert not task.is_running
    assert len(model.requests) == 1
    assert (await stored(backend))[2:] == ["tool =still here"]


@pytest.mark.parametrize(
    ("policy", "answer", "result", "count"),
    [
        ("skip", None, "tool !The call was interrupted", 1),
        ("rerun", None, "tool =x", 2),
        ("ask", "rerun", "tool =x", 2),
        ("ask", "skip", "tool !The call was interrupted", 1),
    ],
)
@pytest.mark.parametrize("of_tool", [False, True])
def test_what_becomes_of_an_interrupted_call(
    policy: Any, answer: Any, result: str, count: int, of_tool: bool
) -> None:
    """By the agent's policy, or the tool's own; the key is the same at each attempt."""

    @virtually
    async def test(backend: Backend, store: Any) -> None:
        gate = Gate()
        keys: list[Any] = []

        async def act(context: ToolContext) -> str:
            keys.append((context.idempotency_key, context.is_rerun))
            if len(keys) == 1:
                await gate()
            return "x"

        options: dict[str, Any] = {} if of_tool else {"on_interrupted": policy}
        made = tool(on_interrupted=policy if of_tool else None)(act)
        model = TalkingModel(says("", ("c1", "act", "{}")), says("Done."))
        agent = make(backend, model, made, pause_grace=0, **options)
        task = await agent.create_task("Go.", task_id="t")
        await task.start()
        await reached(gate.reached)
        await task.aclose()

        asked: list[Any] = []

        async def ask(call: Any) -> Any:
            asked.append(call)
            return answer

        async with await agent.load_task("t", callbacks=TaskCallbacks(ask=ask)) as task:
            assert [call.tool for call in task.interrupted_calls] == ["act"]
            await task.start()
            await task.wait()
        assert (await stored(backend))[2].startswith(result)
        assert len(keys) == count
        assert len({key for key, _ in keys}) == 1
        assert [is_rerun for _, is_rerun in keys] == [False, True][:count]
        assert [call.idempotency_key for call in asked] == ([keys[0][0]] if policy == "ask" else [])

    test()


@virtually
async def test_without_anybody_to_ask_the_task_pauses(backend: Backend, store: Any) -> None:
    """The call stays open until somebody decides."""
    gate = Gate()

    @tool(on_interrupted="ask")
    async def act() -> str:
        await gate()
        return "x"

    model = TalkingModel(says("", ("c1", "act", "{}")), says("Done."))
    agent = make(backend, model, act, pause_grace=0)
    task = await agent.create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    await task.aclose()
    async with await agent.load_task("t") as task:
        await task.start()
        async with asyncio.timeout(60):
            while task.is_running:
                await asyncio.sleep(0.1)
        assert await status_of(backend) is TaskStatus.PAUSED
        assert len(task.interrupted_calls) == 1


OPERATIONS = ["start", "send_message", "pause", "roll back", "abort", "load", "close"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_cancelled_at_any_await_the_task_stays_whole(operation: str) -> None:
    """Another process goes on with it: the conversation is right, and nothing is there twice."""

    @virtually
    async def test(backend: Backend, store: Any) -> None:
        for steps in range(0, 60, 2):
            task_id = f"{operation} {steps}"
            gate = Gate()
            gate.opened.set()
            hang = waiting_tool(gate, on_interrupted="rerun")
            model = TalkingModel(says("Hm.", ("c1", "hang", "{}")), *[says("Done.")] * 3)
            agent = make(backend, model, hang)
            task = await agent.create_task("Go.", task_id=task_id)
            if operation not in ("start", "load"):
                await task.start()
                for _ in range(steps):
                    await asyncio.sleep(0)
            calls: dict[str, Any] = {
                "start": task.start,
                "send_message": lambda task=task: task.send_message("More.", message_id="m"),
                "pause": task.pause,
                "roll back": lambda task=task: task.pause(rollback=True),
                "abort": task.abort,
                "load": lambda agent=agent, task_id=task_id: agent.load_task(task_id),
                "close": task.aclose,
            }
            doing = asyncio.create_task(calls[operation]())
            for _ in range(steps % 23):
                await asyncio.sleep(0)
            doing.cancel()
            await asyncio.wait({doing})
            if not doing.cancelled():
                doing.exception()
            with contextlib.suppress(Exception):
                await task.aclose()
            async with await agent.load_task(task_id) as again:
                if again.status.is_final:
                    await again.send_message("And?")
                else:
                    await again.start()
                assert (await again.wait()).status is TaskStatus.COMPLETED
                assert check_history(again.api_messages) == []
                lines = shape(again.api_messages)
                assert lines == await stored(backend, task_id)
                assert lines.count("user Go.") == 1
                assert lines.count("user More.") <= 1
                assert await backend.checkpoints.get(task_id) is None
                ids = [message.id for message in again.user_messages]
                assert len(ids) == len(set(ids))

    test()
