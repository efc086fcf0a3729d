"""Taking tasks over: who is fenced and how soon, and what is mended in what was stored."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
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

from outlast import (
    ApiMessage,
    Backend,
    FencedError,
    StreamCheckpoint,
    TaskInput,
    TaskState,
    TaskStatus,
    ToolInfo,
    UserMessage,
    open_backend,
)
from outlast.runtime import CheckpointPolicy, TaskCallbacks, ToolContext, check_history, tool
from outlast.runtime.history import INTERRUPTED


@virtually
async def test_the_context_is_merged_and_the_config_is_the_stored_one(
    backend: Backend, store: Any
) -> None:
    """Neither what was stored nor what is given is changed in place."""
    agent = make(backend, TalkingModel(says("Done.")), system="Old.", params={"temperature": 0})
    task = await agent.create_task("Go.", task_id="t", context={"a": {"b": 1, "c": [1]}, "d": 2})
    await task.aclose()
    given = {"a": {"b": 5, "c": None}, "e": {}}
    newer = make(backend, agent.model, system="New.", params={"temperature": 1}, max_steps=1)
    async with await newer.load_task("t", context=given) as task:
        assert task.state.context == {"a": {"b": 5, "c": [1]}, "d": 2, "e": {}}
        assert given == {"a": {"b": 5, "c": None}, "e": {}}
        loaded = await backend.persistence.load_task_state("t")
        assert loaded is not None
        assert loaded.context == task.state.context
        assert task.input == TaskInput(message="Go.")
        await task.start()
        await task.wait()
    (request,) = agent.model.requests
    assert request.messages[0].content == "Old."
    assert request.params == {"temperature": 0}


@pytest.mark.parametrize("moment", ["turn", "tool", "idle"])
def test_a_task_that_was_taken_over_stops_and_writes_nothing_more(moment: str) -> None:
    """Within ownership_interval seconds, even if its tool or model never ends."""

    @virtually
    async def test(backend: Backend, store: Any) -> None:
        gate = Gate()
        old = TalkingModel(
            says("", ("c1", "hang", "{}")) if moment == "tool" else says("An old answer."),
            pause=gate if moment == "turn" else None,
        )
        new = TalkingModel(says("", ("c1", "other", "{}")), says("A new answer."))

        @tool
        async def other() -> str:
            return "x"

        agent = make(backend, old, waiting_tool(gate), persistence=store)
        first = await agent.create_task("Go.", task_id="t")
        if moment != "idle":
            await first.start()
            await reached(gate.reached)
        async with await make(backend, new, other).load_task("t") as second:
            writes = len(store.calls)
            start = now()
            if moment == "idle":
                with pytest.raises(FencedError):
                    await first.start()
            else:
                waiter = asyncio.create_task(first.wait())
                await second.start()
                with pytest.raises(FencedError, match="superseded"):
                    await waiter
                assert now() - start <= 5.1
                assert not first.is_running
            gate.opened.set()
            with pytest.raises(FencedError):
                await first.send_message("x")
            with pytest.raises(FencedError):
                first.update_context(x=1)
            if moment == "idle":
                await second.start()
            state = await second.wait()
            assert state.status is TaskStatus.COMPLETED
            assert "x" not in state.context
            assert len(store.calls) <= writes + 3
            await first.aclose()
        assert (await stored(backend))[-1] == "assistant A new answer."
        found = await backend.persistence.load_task_state("t")
        assert found is not None
        assert found.status is TaskStatus.COMPLETED

    test()


@virtually
async def test_a_tool_that_asks_for_its_claim_ends_the_task(backend: Backend, store: Any) -> None:
    """Before an effect that cannot be undone: the effect does not happen."""
    gate = Gate()
    effects: list[int] = []

    @tool
    async def pay(context: ToolContext) -> None:
        await gate()
        await context.check_claim()
        effects.append(1)

    model = TalkingModel(says("", ("c1", "pay", "{}")), says("Done."))
    agent = make(backend, model, pay, ownership_interval=None)
    first = await agent.create_task("Go.", task_id="t")
    await first.start()
    await reached(gate.reached)
    async with await agent.load_task("t"):
        gate.opened.set()
        with pytest.raises(FencedError):
            await first.wait()
    assert effects == []
    await first.aclose()


@virtually
async def test_a_call_that_two_processes_run_has_one_result(backend: Backend, store: Any) -> None:
    """A tool outlasts its process's ownership: its late result is refused, and it is told."""
    gate = Gate()
    keys: list[str] = []

    @tool(on_interrupted="rerun")
    async def slow(context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        if len(keys) == 1:
            await gate()
            return "late"
        return "in time"

    model = TalkingModel(says("", ("c1", "slow", "{}")), says("Done."))
    agent = make(backend, model, slow, ownership_interval=None)
    first = await agent.create_task("Go.", task_id="t")
    await first.start()
    await reached(gate.reached)
    async with await agent.load_task("t") as second:
        await second.start()
        await second.wait()
    gate.opened.set()
    with pytest.raises(FencedError):
        await first.wait()
    await first.aclose()
    assert await stored(backend) == [
        "user Go.",
        "assistant slow(c1)",
        "tool =in time",
        "assistant Done.",
    ]
    assert len(keys) == 2
    assert keys[0] == keys[1]


@virtually
async def test_loading_fences_the_turn_in_flight(backend: Backend, store: Any) -> None:
    """Before anything is started: the former owner writes no checkpoint any more."""
    gate = Gate()
    model = TalkingModel(says("It rains."), pause=gate)
    agent = make(backend, model, checkpointing=CheckpointPolicy(interval=0))
    first = await agent.create_task("Go.", task_id="t")
    await first.start()
    await reached(gate.reached)
    before = await checkpointed(backend)
    async with await agent.load_task("t"):
        gate.opened.set()
        with pytest.raises(FencedError):
            await first.wait()
        after = await backend.checkpoints.get("t")
        assert after is not None
        assert after.text == before.text == ""
        assert after.epoch > before.epoch
    await first.aclose()


def answer_with(*calls: str) -> ApiMessage:
    blocks: list[Any] = [
        {"type": "tool_call", "id": call, "name": "hang", "arguments": {}} for call in calls
    ]
    return ApiMessage(id="turn-1", role="assistant", content=blocks)


QUESTION = ApiMessage(id="input", role="user", content="Go.")
REMARK = ApiMessage(id="u", role="user", content="?")
CARD = UserMessage(id="turn-1:0", type="tool", role="assistant", tool_info=ToolInfo("c1", "hang"))


def result(call: str, name: str = "turn-1:0") -> ApiMessage:
    block = {"type": "tool_result", "call_id": call, "content": "r", "is_error": False}
    return ApiMessage(id=name, role="tool", content=[block])


FINAL = ApiMessage(id="turn-2", role="assistant", content=[{"type": "text", "text": "Bye."}])


@pytest.mark.parametrize(
    ("status", "messages", "users", "kinds", "conversation"),
    [
        # The state was saved, the messages were not.
        ("running", [], [], ["missing_input"], ["user Go.", "assistant Hello."]),
        ("pending", [], [], ["missing_input"], ["user Go.", "assistant Hello."]),
        # The answer was committed, the state was not saved.
        (
            "running",
            [QUESTION, answer_with("c1"), result("c1"), FINAL],
            [],
            ["missing_user_message"],
            ["user Go.", "assistant hang(c1)", "tool =r", "assistant Bye."],
        ),
        # A call without a result: never begun, so it is run.
        (
            "running",
            [QUESTION, answer_with("c1")],
            [],
            [],
            ["user Go.", "assistant hang(c1)", "tool =x", "assistant Hello."],
        ),
        # The same, begun: it is not run again.
        (
            "running",
            [QUESTION, answer_with("c1")],
            [CARD],
            [],
            [
                "user Go.",
                "assistant hang(c1)",
                f"tool !{INTERRUPTED}",
                "assistant Hello.",
            ],
        ),
        # The first of two calls has its result.
        (
            "paused",
            [QUESTION, answer_with("c1", "c2"), result("c1")],
            [CARD],
            [],
            ["user Go.", "assistant hang(c1) hang(c2)", "tool =r", "tool =x", "assistant Hello."],
        ),
        # A result that answers nothing, and one that stands elsewhere.
        (
            "running",
            [QUESTION, result("c9")],
            [],
            ["orphan_result"],
            ["user Go.", "assistant Hello."],
        ),
        (
            "running",
            [
                QUESTION,
                answer_with("c1"),
                REMARK,
                result("c1"),
            ],
            [],
            ["displaced_result"],
            ["user Go.", "assistant hang(c1)", "tool =r", "user ?", "assistant Hello."],
        ),
        (
            "running",
            [QUESTION, answer_with("c1"), REMARK],
            [],
            ["unanswered_call"],
            [
                "user Go.",
                "assistant hang(c1)",
                f"tool !{INTERRUPTED}",
                "user ?",
                "assistant Hello.",
            ],
        ),
        # The parent waits for a sub-task that was never stored.
        (
            "waiting_for_subtask",
            [QUESTION, answer_with("c1")],
            [CARD],
            [],
            [
                "user Go.",
                "assistant hang(c1)",
                f"tool !{INTERRUPTED}",
                "assistant Hello.",
            ],
        ),
    ],
)
def test_a_task_that_does_not_fit_together_is_mended(
    status: str,
    messages: list[ApiMessage],
    users: list[UserMessage],
    kinds: list[str],
    conversation: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Detected, reported and repaired into a conversation that the model accepts."""

    @virtually
    async def test(backend: Backend, store: Any) -> None:
        tasks = backend.persistence
        await tasks.save_task_input("t", TaskInput(message="Go."))
        await tasks.save_task_state("t", TaskState(id="t", status=TaskStatus(status)))
        await tasks.save_api_messages("t", messages)
        await tasks.save_user_messages("t", users)
        gate = Gate()
        gate.opened.set()
        model = TalkingModel(*[says("Hello.")] * 3)
        told: list[Any] = []
        agent = make(backend, model, waiting_tool(gate))
        callbacks = TaskCallbacks(on_repair=told.append)
        async with await agent.load_task("t", callbacks=callbacks) as task:
            assert [repair.kind for repair in task.repairs] == kinds
            assert tuple(told) == task.repairs
            assert len([r for r in caplog.records if "mended" in r.getMessage()]) == len(kinds)
            assert shape(task.api_messages) == await stored(backend)
            await task.start()
            assert (await task.wait()).status is TaskStatus.COMPLETED
        assert await stored(backend) == conversation
        assert check_history(await tasks.load_api_messages("t")) == []

    with caplog.at_level(logging.WARNING, "outlast.runtime.task"):
        test()


@virtually
async def test_a_card_that_a_crash_left_running_is_brought_up_to_date(
    backend: Backend, store: Any
) -> None:
    """The result was stored, the change of its card was not."""
    tasks = backend.persistence
    await tasks.save_task_state("t", TaskState(id="t", status=TaskStatus.PAUSED))
    await tasks.save_api_messages("t", [QUESTION, answer_with("c1"), result("c1")])
    await tasks.save_user_messages("t", [CARD])
    async with await make(backend, TalkingModel()).load_task("t"):
        assert cards(await tasks.load_user_messages("t")) == ["hang:done"]


@virtually
async def test_a_checkpoint_of_a_committed_turn_is_removed(backend: Backend, store: Any) -> None:
    """A process that died right behind the commit has left it."""
    agent = make(backend, TalkingModel(says("Bye.")))
    async with await agent.create_task("Go.", task_id="t") as task:
        await task.start()
        await task.wait()
    run = await backend.checkpoints.claim("t", thread_id="t")
    left = StreamCheckpoint(run_id="t", thread_id="t", message_id="turn-1", model="m", text="By")
    await backend.checkpoints.put(left, claim=run)
    async with await make(backend, TalkingModel()).load_task("t"):
        assert await backend.checkpoints.get("t") is None


@virtually
async def test_an_ended_task_is_closed_when_it_is_loaded(backend: Backend, store: Any) -> None:
    """Its open call is answered, so that new input can follow."""
    tasks = backend.persistence
    await tasks.save_task_input("t", TaskInput(message="Go."))
    await tasks.save_task_state("t", TaskState(id="t", status=TaskStatus.FAILED))
    await tasks.save_api_messages("t", [QUESTION, answer_with("c1")])
    async with await make(backend, TalkingModel()).load_task("t") as task:
        assert [repair.kind for repair in task.repairs] == ["unanswered_call"]
        assert (await task.wait()).status is TaskStatus.FAILED
    assert check_history(await tasks.load_api_messages("t")) == []


@virtually
async def test_what_the_user_said_is_not_lost_by_a_crash(backend: Backend, store: Any) -> None:
    """A message that was stored before the process died is answered by the next one."""
    gate = Gate()
    model = TalkingModel(says("One."), says("Two."), pause=gate)
    agent = make(backend, model)
    first = await agent.create_task("Go.", task_id="t")
    await first.start()
    await reached(gate.reached)
    await first.send_message("And then?")
    first._core.quit()
    gate.opened.set()
    async with await agent.load_task("t") as task:
        await task.start()
        await task.wait()
    assert await stored(backend) == ["user Go.", "user And then?", "assistant One."]
    users = await backend.persistence.load_user_messages("t")
    assert cards(users) == ["user Go.", "user And then?", "assistant One."]
    await first.aclose()


@virtually
async def test_a_foreign_conversation_goes_on(backend: Backend, store: Any) -> None:
    """Text content, ids and messages of somebody else's making are taken as they are."""
    tasks = backend.persistence
    long = "ü" * 255
    await tasks.save_task_state("t", TaskState(id="t", status=TaskStatus.PAUSED))
    messages = [
        ApiMessage(id="x" * 512, role="user", content="Hi."),
        ApiMessage(id=long, role="assistant", content=answer_with("c1").content),
    ]
    await tasks.save_api_messages("t", messages)
    gate = Gate()
    gate.opened.set()
    async with await make(
        backend, TalkingModel(says(""), says("Bye.")), waiting_tool(gate)
    ).load_task("t") as task:
        assert task.repairs == ()
        assert task.input is None
        await task.start()
        await task.wait()
    assert await stored(backend) == ["user Hi.", "assistant hang(c1)", "tool =x", "assistant Bye."]


async def race(url: str, rounds: int) -> None:
    """Two owners load a task at the same moment."""
    async with open_backend(url) as one, open_backend(url) as two:
        for number in range(rounds):
            task_id = f"t{number}"
            effects: list[str] = []

            @tool
            async def act(context: ToolContext, effects: Any = effects) -> str:
                await asyncio.sleep(0)
                await context.check_claim()
                effects.append(context.idempotency_key)
                return "x"

            model = TalkingModel(says("", ("c1", "act", "{}")), says("Done."))
            task = await make(one, model, act).create_task("Go.", task_id=task_id)
            await task.aclose()

            async def work(backend: Backend, model: Any = model, task_id: str = task_id) -> str:
                agent = make(backend, model, act_of(backend))
                try:
                    async with await agent.load_task(task_id) as task:
                        if task.status.is_final:
                            return "came later"
                        await task.start()
                        return (await task.wait()).status.value
                except FencedError:
                    return "fenced"

            def act_of(backend: Backend, act: Any = act) -> Any:
                return act

            outcomes = sorted(await asyncio.gather(work(one), work(two)))
            assert outcomes in (["completed", "fenced"], ["came later", "completed"]), number
            lines = await stored(one, task_id)
            assert lines[0] == "user Go."
            assert lines[-1] == "assistant Done."
            assert len(lines) == 4
            assert len(effects) <= 1 or effects[0] == effects[1]


Test = Callable[[], Coroutine[Any, Any, None]]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_of_two_that_load_a_task_exactly_one_goes_on(kind: str, tmp_path: Any) -> None:
    """At the same moment; the other one is told."""
    if kind == "sqlite":
        pytest.importorskip("outlast_sql")
        await race(f"sqlite:///{tmp_path / 'x.db'}", 10)
    else:
        await race("memory://race", 200)
