"""Tasks from beginning to end: the loop of turns and tool calls, and what is stored of it."""

import asyncio
import itertools
import math
from typing import Any

import msgspec
import pytest
from agent_kit import Gate, TalkingModel, cards, make, shape, stored
from runtime_kit import Watched, virtually
from stream_kit import says

from outlast import (
    Backend,
    InvalidDataError,
    NotSupportedError,
    TaskInput,
    TaskNotFoundError,
    TaskStatus,
    UnavailableError,
    open_backend,
)
from outlast.runtime import (
    PermanentModelError,
    RetryableModelError,
    RetryPolicy,
    TaskCallbacks,
    TextDelta,
    ToolContext,
    check_history,
    tool,
)


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@virtually
async def test_a_task_runs_to_its_answer(backend: Backend, store: Any) -> None:
    """Model, tool, model; everything is stored when wait returns."""
    model = TalkingModel(says("Let me see.", ("c1", "add", '{"a": 1, "b": 2}')), says("It is 3."))
    seen: list[Any] = []
    told: list[Any] = []
    callbacks = TaskCallbacks(
        on_status_change=lambda old, new: seen.append((str(old), str(new))),
        on_event=told.append,
        on_api_message=lambda message: told.append(message.id),
    )
    agent = make(backend, model, add, system="Be brief.")
    task = await agent.create_task(
        "What is 1 + 2?", task_id="t", context={"k": 1}, callbacks=callbacks
    )
    pending = await backend.persistence.load_task_state("t")
    assert pending is not None
    assert (pending.status, pending.context) == (TaskStatus.PENDING, {"k": 1})
    assert model.requests == []
    await task.start()
    state = await task.wait()
    found = await get(backend)
    assert found == msgspec.structs.replace(state, updated_at=found.updated_at)
    assert state.status is TaskStatus.COMPLETED
    assert state.start_time is not None
    assert state.end_time is not None
    assert task.result == "It is 3."
    conversation = [
        "user What is 1 + 2?",
        "assistant Let me see. add(c1)",
        "tool =3",
        "assistant It is 3.",
    ]
    assert await stored(backend) == shape(task.api_messages) == conversation
    users = await backend.persistence.load_user_messages("t")
    assert cards(users) == [
        "user What is 1 + 2?",
        "assistant Let me see.",
        "add:done",
        "assistant It is 3.",
    ]
    assert users == task.user_messages
    assert seen == [("pending", "running"), ("running", "completed")]
    assert TextDelta("Let ") in told
    assert model.requests[0].messages[0].role == "system"
    assert [spec.name for spec in model.requests[0].tools] == ["add"]
    assert await backend.persistence.load_task_input("t") == TaskInput(message="What is 1 + 2?")
    assert await backend.checkpoints.get("t") is None
    await task.aclose()


async def get(backend: Backend) -> Any:
    return await backend.persistence.load_task_state("t")


async def run(backend: Backend, model: Any, *tools: Any, **options: Any) -> Any:
    agent = make(backend, model, *tools, **options)
    async with await agent.create_task("Go.", task_id="t") as task:
        await task.start()
        await task.wait()
        said = [message for message in task.api_messages if message.content]
        assert check_history(said) == []
        return task


@tool
async def fail() -> None:
    raise ValueError("no such thing")


@tool
async def forget() -> float:
    return math.nan


@tool(timeout=1)
async def sleep() -> None:
    await asyncio.sleep(1000)


@tool
async def cancel() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("fail", "{}", "ValueError: no such thing"),
        ("forget", "{}", "InvalidDataError: the tool's result is no JSON value"),
        ("sleep", "{}", "The tool gave no result within 1 s."),
        ("cancel", "{}", "The tool was cancelled."),
        ("add", '{"a": "x", "b": 1}', "InvalidDataError: the arguments do not fit"),
        ("nothing", "{}", "There is no tool 'nothing'. Tools: add, fail, forget, sleep, cancel."),
    ],
)
def test_a_call_that_fails_is_told_to_the_model(name: str, arguments: str, text: str) -> None:
    """And the task goes on."""

    @virtually
    async def test(backend: Backend, store: Any) -> None:
        model = TalkingModel(says("", ("c1", name, arguments)), says("Sorry."))
        task = await run(backend, model, add, fail, forget, sleep, cancel)
        assert task.status is TaskStatus.COMPLETED
        line = (await stored(backend))[2]
        assert line.startswith(f"tool !{text}")
        if name != "nothing":
            assert cards(task.user_messages)[1] == f"{name}:failed"

    test()


@virtually
async def test_calls_of_one_turn_run_in_order(backend: Backend, store: Any) -> None:
    """Each with a key of its own; same ids in two turns are different calls."""
    keys: list[str] = []

    @tool
    async def note(context: ToolContext) -> str:
        keys.append(context.idempotency_key)
        return f"{context.message_id} {context.call_id}"

    twice = says("", ("c1", "note", "{}"), ("c2", "note", "{}"))
    await run(backend, TalkingModel(twice, twice, says("Done.")), note)
    assert len(set(keys)) == 4
    assert await stored(backend) == [
        "user Go.",
        "assistant note(c1) note(c2)",
        "tool =turn-1 c1",
        "tool =turn-1 c2",
        "assistant note(c1) note(c2)",
        "tool =turn-2 c1",
        "tool =turn-2 c2",
        "assistant Done.",
    ]


@virtually
async def test_a_result_that_is_too_large_is_replaced(backend: Backend, store: Any) -> None:
    """By an error that says so."""

    @tool
    async def much() -> str:
        return "x" * 2000

    model = TalkingModel(says("", ("c1", "much", "{}")), says("Done."))
    await run(backend, model, much, max_result_bytes=1000)
    assert (await stored(backend))[2].startswith("tool !The tool's result has 2002 bytes")


@virtually
async def test_a_permanent_model_error_fails_the_task(backend: Backend, store: Any) -> None:
    """The error is in the state; new input starts it again."""
    model = TalkingModel(PermanentModelError("wrong key"))
    await run(backend, model)
    state = await get(backend)
    assert state.status is TaskStatus.FAILED
    assert state.error == {"type": "PermanentModelError", "message": "wrong key"}
    assert state.end_time is not None
    model.turns = (says("Now it works."),)
    async with await make(backend, model).load_task("t") as task:
        await task.send_message("Again.")
        assert (await task.wait()).status is TaskStatus.COMPLETED
        assert (await get(backend)).error is None
    assert await stored(backend) == ["user Go.", "user Again.", "assistant Now it works."]


@virtually
async def test_a_model_that_stays_away_fails_the_task(backend: Backend, store: Any) -> None:
    """After the repetitions that the policy allows."""
    model = TalkingModel(RetryableModelError("busy"))
    await run(backend, model, retry=RetryPolicy(max_retries=2, base_delay=0))
    assert len(model.requests) == 3
    assert (await get(backend)).error["type"] == "RetryableModelError"


@virtually
async def test_a_silent_model_is_cut_and_asked_again(backend: Backend, store: Any) -> None:
    """After model_timeout seconds; what it had said stays."""
    model = TalkingModel(says("Slowly, slowly."))

    async def hang_once() -> None:
        if len(model.prefixes) == 1 and model.prefixes and counts.pop() == 0:
            await asyncio.Event().wait()

    counts = [0, 1, 2]
    model.pause = hang_once
    task = await run(backend, model, model_timeout=3)
    assert task.result == "Slowly, slowly."
    assert model.prefixes == ["", "Slowly, "]


@virtually
async def test_a_model_that_breaks_its_promise_fails_the_task(backend: Backend, store: Any) -> None:
    """Whatever it raises."""
    await run(backend, TalkingModel(KeyError("choices")))
    assert (await get(backend)).error == {"type": "KeyError", "message": "'choices'"}


@virtually
async def test_the_number_of_turns_is_limited(backend: Backend, store: Any) -> None:
    """For each message of the user; the limit is the one that the task was created with."""
    again = says("", ("c1", "add", '{"a": 1, "b": 1}'))
    model = TalkingModel(*[again] * 5, says("Enough."))
    await run(backend, model, add, max_steps=2)
    assert (await get(backend)).status is TaskStatus.FAILED
    assert (await get(backend)).error["type"] == "MaxStepsError"
    assert len(model.requests) == 2
    async with await make(backend, model, add, max_steps=99).load_task("t") as task:
        await task.send_message("Go on.")
        await task.wait()
    assert len(model.requests) == 4


@virtually
async def test_a_message_to_an_ended_task_starts_it_again(backend: Backend, store: Any) -> None:
    """In the same process or another one."""
    model = TalkingModel(says("One."), says("Two."), says("Three."))
    agent = make(backend, model)
    async with await agent.create_task("1?", task_id="t") as task:
        await task.start()
        await task.wait()
        with pytest.raises(NotSupportedError, match="send_message"):
            await task.start()
        await task.send_message("2?")
        assert task.status is TaskStatus.RUNNING
        await task.wait()
    async with await agent.load_task("t") as task:
        assert (await task.wait()).status is TaskStatus.COMPLETED
        await task.send_message([{"type": "text", "text": "3?"}])
        await task.wait()
    assert await stored(backend) == [
        "user 1?",
        "assistant One.",
        "user 2?",
        "assistant Two.",
        "user 3?",
        "assistant Three.",
    ]


@virtually
async def test_a_message_to_a_running_task_is_seen_by_its_next_turn(
    backend: Backend, store: Any
) -> None:
    """Not in the middle of its calls; and it is stored when send_message returns."""

    @tool
    async def interrupted(context: ToolContext) -> str:
        await asyncio.create_task(task.send_message("And be quick.", message_id="m"))
        users = await backend.persistence.load_user_messages("t")
        assert users[-1].content == "And be quick."
        await asyncio.create_task(task.send_message("And be quick.", message_id="m"))
        return "x"

    model = TalkingModel(says("", ("c1", "interrupted", "{}")), says("Done."))
    agent = make(backend, model, interrupted)
    task = await agent.create_task("Go.", task_id="t")
    async with task:
        await task.start()
        await task.wait()
    assert await stored(backend) == [
        "user Go.",
        "assistant interrupted(c1)",
        "tool =x",
        "user And be quick.",
        "assistant Done.",
    ]


@virtually
async def test_a_message_that_comes_with_the_answer_is_answered_too(
    backend: Backend, store: Any
) -> None:
    """It is neither lost nor left over, at whatever moment it comes."""
    for moment in range(30):
        task_id = f"t{moment}"
        model = TalkingModel(says("One."), says("Two."))
        agent = make(backend, model, persistence=store)
        async with await agent.create_task("Go.", task_id=task_id) as task:
            await task.start()
            for _ in range(moment * 3):
                await asyncio.sleep(0)
            await task.send_message("Wait!")
            await task.wait()
            while task.is_running:
                await asyncio.sleep(0)
            assert task.status is TaskStatus.COMPLETED
        lines = await stored(backend, task_id)
        assert lines in (
            ["user Go.", "user Wait!", "assistant One."],
            ["user Go.", "assistant One.", "user Wait!", "assistant Two."],
        ), moment


@virtually
async def test_giving_up_waiting_stops_nothing(backend: Backend, store: Any) -> None:
    """Who looks on and who works are not the same."""
    gate = Gate()
    agent = make(backend, TalkingModel(says("Done."), pause=gate))
    async with await agent.create_task("Go.", task_id="t") as task:
        await task.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await task.wait()
        assert task.is_running
        gate.opened.set()
        assert (await task.wait()).status is TaskStatus.COMPLETED


@virtually
async def test_an_empty_answer_ends_the_task(backend: Backend, store: Any) -> None:
    """And is not part of later requests, which providers would refuse."""
    model = TalkingModel(says(""), says("Better."))
    task = await run(backend, model)
    assert task.result == ""
    async with await make(backend, model).load_task("t") as task:
        await task.send_message("Well?")
        model.turns = (says("Better."),)
        await task.wait()
    assert [message.role for message in model.requests[-1].messages] == ["user", "user"]


@virtually
async def test_tasks_that_exist_are_not_created_again(backend: Backend, store: Any) -> None:
    """And unknown ones are not loaded; neither fences anybody."""
    agent = make(backend, TalkingModel(says("Done.")))
    async with await agent.create_task("Go.", task_id="t") as task:
        with pytest.raises(InvalidDataError, match="load_task"):
            await agent.create_task("Go.", task_id="t")
        with pytest.raises(TaskNotFoundError):
            await agent.load_task("unknown")
        await task.start()
        await task.wait()
    async with await agent.create_task(TaskInput(message="x", params={"temperature": 0})) as task:
        assert len(task.id) == 32
    with pytest.raises(InvalidDataError):
        await agent.create_task("")


@virtually
async def test_an_interrupted_creation_is_repeated(backend: Backend, store: Any) -> None:
    """At whatever write it died: the next attempt makes the task whole."""
    for deadly in range(1, 5):
        task_id = f"t{deadly}"
        count = 0

        async def die(name: str, deadly: int = deadly) -> None:
            nonlocal count
            count += 1
            if count >= deadly:
                raise UnavailableError("dead")

        store.before = die
        with pytest.raises(UnavailableError):
            await make(backend, TalkingModel(), persistence=store).create_task(
                "First.", task_id=task_id
            )
        agent = make(backend, TalkingModel(says("Done.")))
        async with await agent.create_task("Second.", task_id=task_id) as task:
            await task.start()
            await task.wait()
        assert await stored(backend, task_id) == ["user Second.", "assistant Done."]
        users = await backend.persistence.load_user_messages(task_id)
        assert cards(users) == ["user Second.", "assistant Done."]


@virtually
async def test_a_store_that_fails_stops_the_task_and_not_more(backend: Backend, store: Any) -> None:
    """The error reaches who waits; started again, the task goes on where it was."""
    model = TalkingModel(says("", ("c1", "add", '{"a": 1, "b": 2}')), says("Done."))
    names = ("append_api_message", "append_api_messages", "append_user_messages")
    for when, name in itertools.product(("before", "after"), names):
        task_id = f"{when} {name}"
        async with await make(backend, model, add, persistence=store).create_task(
            "Go.", task_id=task_id
        ) as task:

            async def fail_once(called: str, name: str = name) -> None:
                if called == name:
                    store.before = store.after = None
                    raise UnavailableError("away")

            setattr(store, when, fail_once)
            await task.start()
            with pytest.raises(UnavailableError, match="away"):
                await task.wait()
            assert task.status is TaskStatus.RUNNING
            await task.start()
            assert (await task.wait()).status is TaskStatus.COMPLETED
        assert await stored(backend, task_id) == [
            "user Go.",
            "assistant add(c1)",
            "tool =3",
            "assistant Done.",
        ], task_id


@virtually
async def test_a_commit_whose_answer_is_lost_is_not_made_twice(
    backend: Backend, store: Any
) -> None:
    """Started again, the task finds its message."""
    model = TalkingModel(says("Done."))
    async with await make(backend, model, persistence=store).create_task(
        "Go.", task_id="t"
    ) as task:

        async def lose(called: str) -> None:
            if called == "append_api_message":
                store.after = None
                raise UnavailableError("lost")

        store.after = lose
        await task.start()
        with pytest.raises(UnavailableError, match="lost"):
            await task.wait()
        await task.start()
        await task.wait()
    assert len(model.requests) == 1
    assert await stored(backend) == ["user Go.", "assistant Done."]


@virtually
async def test_a_final_state_that_could_not_be_saved_is_saved_later(
    backend: Backend, store: Any
) -> None:
    """Who waits is told; the save is made again, and then the task has ended for everybody."""
    agent = make(backend, TalkingModel(says("Done.")), persistence=store)
    async with await agent.create_task("Go.", task_id="t") as task:

        async def fail(called: str) -> None:
            if called == "save_task_state" and task.status is TaskStatus.COMPLETED:
                raise UnavailableError("away")

        store.before = fail
        await task.start()
        for _ in range(2):
            with pytest.raises(UnavailableError):
                await task.wait()
        assert (await get(backend)).status is TaskStatus.RUNNING
        store.before = None
        await asyncio.sleep(60)
        assert (await task.wait()).status is TaskStatus.COMPLETED
        assert (await get(backend)).status is TaskStatus.COMPLETED


@virtually
async def test_a_message_cannot_take_the_id_of_another(backend: Backend, store: Any) -> None:
    """That of a turn, say."""
    agent = make(backend, TalkingModel(says("One."), says("Two.")))
    async with await agent.create_task("Go.", task_id="t") as task:
        await task.send_message("Later.", message_id="turn-1")
        await task.start()
        await task.wait()
        with pytest.raises(InvalidDataError):
            await task.send_message("x", message_id="turn-2")
        with pytest.raises(InvalidDataError):
            await task.send_message(" ")
    assert await stored(backend) == ["user Go.", "user Later.", "assistant One."]


@virtually
async def test_observers_that_fail_change_nothing(backend: Backend, store: Any) -> None:
    """They are logged."""

    def fail_always(*arguments: Any) -> None:
        raise RuntimeError("observer")

    callbacks = TaskCallbacks(
        on_status_change=fail_always,
        on_event=fail_always,
        on_api_message=fail_always,
        on_user_message=fail_always,
    )
    agent = make(backend, TalkingModel(says("Done.")))
    async with await agent.create_task("Go.", task_id="t", callbacks=callbacks) as task:
        await task.start()
        assert (await task.wait()).status is TaskStatus.COMPLETED


@virtually
async def test_the_cost_of_a_step_does_not_grow(backend: Backend, store: Any) -> None:
    """Turn 5 and turn 60 write the same number of messages; the log is not read again."""
    again = says("", ("c1", "add", '{"a": 1, "b": 1}'))
    model = TalkingModel(*[again] * 60, says("Enough."))
    agent = make(backend, model, add, persistence=store, debounce=1000, max_wait=1000)
    async with await agent.create_task("Go.", task_id="t") as task:
        assert isinstance(store, Watched)
        store.calls.clear()
        await task.start()
        await task.wait()
    sizes = [
        (name, len(arguments[1]))
        for name, _, arguments in store.calls
        if name.endswith("_messages")
    ]
    assert {name for name, _ in sizes[:-1]} == {"append_api_messages", "append_user_messages"}
    assert max(size for _, size in sizes[:-1]) <= 2


async def test_hundreds_of_tasks_run_at_once() -> None:
    """In real time, over one backend."""
    async with open_backend("memory://") as backend:
        model = TalkingModel(says("", ("c1", "add", '{"a": 1, "b": 2}')), says("It is 3."))
        agent = make(backend, model, add)

        async def one(number: int) -> None:
            async with await agent.create_task("Go.", task_id=f"t{number}") as task:
                await task.start()
                assert (await task.wait()).status is TaskStatus.COMPLETED

        await asyncio.gather(*(one(number) for number in range(100)))
        states = await backend.persistence.list_task_states(status=TaskStatus.COMPLETED)
        assert len(states) == 100
