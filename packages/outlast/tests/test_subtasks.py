"""Tasks that a task's tools start: waiting for them, going on with them, ending with them."""

import asyncio
from typing import Any

import pytest
from agent_kit import Gate, TalkingModel, cards, make, reached, stored, waiting_tool
from runtime_kit import virtually
from stream_kit import says

from outlast import Backend, FencedError, TaskStatus
from outlast.runtime import (
    Agent,
    CheckpointPolicy,
    PermanentModelError,
    TaskCallbacks,
    TextDelta,
    Tool,
    ToolContext,
    check_history,
    tool,
)

WAITING = TaskStatus.WAITING_FOR_SUBTASK


@tool
async def research(topic: str, context: ToolContext) -> str:
    """Let somebody else find out about a topic."""
    # In a group, as a tool with several sub-tasks would: what stops one must come through it.
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(
            context.run_subtask(topic, agent="researcher", context={"topic": topic})
        )
    return asked.result().text


ASK = says("", ("c1", "research", '{"topic": "rain"}'))


class World:
    """A parent and its researcher, over one backend."""

    def __init__(
        self,
        backend: Backend,
        gate: Gate | None,
        *child_turns: Any,
        where: str = "tool",
        **options: Any,
    ) -> None:
        self.backend = backend
        self.gate = gate or Gate()
        if gate is None:
            self.gate.opened.set()
        turns = child_turns or (
            says("Look.", ("c1", "hang", "{}")),
            says("It is wet."),
        )
        self.child_model = TalkingModel(*turns, pause=self.gate if where == "turn" else None)
        self.parent_model = TalkingModel(ASK, says("Take an umbrella."))
        hang = waiting_tool(self.gate, on_interrupted="rerun")
        self.researcher = make(
            backend,
            self.child_model,
            hang,
            name="researcher",
            pause_grace=0,
            checkpointing=CheckpointPolicy(interval=0),
        )
        self.parent: Agent = make(
            backend,
            self.parent_model,
            research,
            subagents=[self.researcher],
            pause_grace=0,
        )

    async def status(self, task_id: str) -> TaskStatus:
        state = await self.backend.persistence.load_task_state(task_id)
        assert state is not None
        return state.status

    async def child_id(self) -> str:
        state = await self.backend.persistence.load_task_state("t")
        assert state is not None
        (child,) = state.subtask_ids
        return child


DONE = [
    "user Go.",
    "assistant research(c1)",
    "tool =It is wet.",
    "assistant Take an umbrella.",
]
CHILD_DONE = ["user rain", "assistant Look. hang(c1)", "tool =x", "assistant It is wet."]


@virtually
async def test_a_parent_waits_for_its_subtask(backend: Backend, store: Any) -> None:
    """Its status says so, and the child's answer becomes the tool's result."""
    gate = Gate()
    world = World(backend, gate)
    seen: list[str] = []
    children: list[Any] = []
    callbacks = TaskCallbacks(
        on_status_change=lambda old, new: seen.append(new.value), on_subtask=children.append
    )
    async with await world.parent.create_task("Go.", task_id="t", callbacks=callbacks) as task:
        await task.start()
        await reached(gate.reached)
        child_id = await world.child_id()
        assert await world.status("t") is WAITING
        assert await world.status(child_id) is TaskStatus.RUNNING
        child = await backend.persistence.load_task_state(child_id)
        assert child is not None
        assert (child.parent_id, child.context) == ("t", {"topic": "rain"})
        gate.opened.set()
        assert (await task.wait()).status is TaskStatus.COMPLETED
        assert cards(task.user_messages)[1] == "research:done"
    assert seen == ["running", "waiting_for_subtask", "running", "completed"]
    assert [each.id for each in children] == [child_id]
    assert await stored(backend) == DONE
    assert await stored(backend, child_id) == CHILD_DONE
    assert await world.status(child_id) is TaskStatus.COMPLETED


@pytest.mark.parametrize("where", ["tool", "turn"])
@pytest.mark.parametrize("how", ["close", "pause", "death"])
def test_a_resumed_parent_goes_on_with_its_subtask(where: str, how: str) -> None:
    """It is loaded only when the parent is started, and nothing is done twice."""

    @virtually
    async def test(backend: Backend, store: Any) -> None:
        gate = Gate()
        world = World(backend, gate, where=where)
        task = await world.parent.create_task("Go.", task_id="t")
        await task.start()
        await reached(gate.reached)
        child_id = await world.child_id()
        if how == "close":
            await task.aclose()
        elif how == "pause":
            await task.pause()
            assert await world.status("t") is await world.status(child_id) is TaskStatus.PAUSED
            await task.aclose()
        gate.opened.set()
        second = await world.parent.load_task("t")
        if how != "pause":
            assert second.status is WAITING
        waiter = asyncio.create_task(second.wait())
        await second.start()
        assert (await waiter).status is TaskStatus.COMPLETED
        await second.aclose()
        assert await stored(backend) == DONE
        assert await stored(backend, child_id) == CHILD_DONE
        if how == "death":
            with pytest.raises(FencedError):
                await task.wait()
            await task.aclose()
        assert len(world.parent_model.requests) == 2

    test()


@virtually
async def test_a_subtask_is_loaded_only_when_it_is_needed(backend: Backend, store: Any) -> None:
    """Loading the parent claims the parent alone."""
    gate = Gate()
    world = World(backend, gate)
    task = await world.parent.create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    child_id = await world.child_id()
    await task.aclose()
    child_claim = await backend.persistence.claim_task(child_id)
    async with await world.parent.load_task("t"):
        await backend.persistence.check_claim(child_claim)


@pytest.mark.parametrize("policy", [None, "rerun"])
def test_a_subtask_that_ended_before_its_parent_was_resumed_is_not_run_again(policy: Any) -> None:
    """The parent died between the child's end and its own next step."""

    @virtually
    async def test(backend: Backend, store: Any) -> None:
        gate = Gate()
        world = World(backend, gate)
        world.parent.tools["research"] = Tool(research.function, on_interrupted=policy)
        task = await world.parent.create_task("Go.", task_id="t")
        await task.start()
        await reached(gate.reached)
        child_id = await world.child_id()
        await task.aclose()
        gate.opened.set()
        async with await world.researcher.load_task(child_id) as child:
            await child.start()
            await child.wait()
        asked = len(world.child_model.requests)
        async with await world.parent.load_task("t") as task:
            await task.start()
            async with asyncio.timeout(60):
                assert (await task.wait()).status is TaskStatus.COMPLETED
        assert len(world.child_model.requests) == asked
        assert await stored(backend) == DONE

    test()


@pytest.mark.parametrize("end", ["failed", "aborted"])
def test_a_subtask_that_does_not_complete_is_an_error(end: str) -> None:
    """For the model of the parent, which goes on."""

    @virtually
    async def test(backend: Backend, store: Any) -> None:
        gate = Gate()
        turns = (PermanentModelError("no key"),) if end == "failed" else ()
        world = World(backend, gate, *turns)
        children: list[Any] = []
        callbacks = TaskCallbacks(on_subtask=children.append)
        task = await world.parent.create_task("Go.", task_id="t", callbacks=callbacks)
        await task.start()
        if end == "aborted":
            await reached(gate.reached)
            await children[0].abort()
        await task.wait()
        await task.aclose()
        assert await world.status(await world.child_id()) == end

    test()


@virtually
async def test_an_answer_of_a_failed_subtask_flows_back_after_a_resume(
    backend: Backend, store: Any
) -> None:
    """As an error of the call."""
    gate = Gate()
    world = World(backend, gate)
    task = await world.parent.create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    await task.aclose()
    world.child_model.turns = (world.child_model.turns[0], PermanentModelError("no key"))
    gate.opened.set()
    async with await world.parent.load_task("t") as task:
        await task.start()
        assert (await task.wait()).status is TaskStatus.COMPLETED
    assert (await stored(backend))[2] == "tool !The sub-task was failed: no key."


@virtually
async def test_aborting_a_parent_aborts_its_subtasks(backend: Backend, store: Any) -> None:
    """Running here, or stored and not loaded."""
    for is_loaded in (True, False):
        task_id = "t" if is_loaded else "u"
        gate = Gate()
        world = World(backend, gate, where="turn")
        task = await world.parent.create_task("Go.", task_id=task_id)
        await task.start()
        await reached(gate.reached)
        (child_id,) = task.state.subtask_ids
        if not is_loaded:
            await task.aclose()
            task = await world.parent.load_task(task_id)
        await task.abort()
        await task.aclose()
        assert await world.status(task_id) is TaskStatus.ABORTED
        assert await world.status(child_id) is TaskStatus.ABORTED
        assert await backend.checkpoints.get(child_id) is None
        assert check_history(await backend.persistence.load_api_messages(task_id)) == []
        assert check_history(await backend.persistence.load_api_messages(child_id)) == []


@virtually
async def test_a_rollback_aborts_the_subtask_of_the_round(backend: Backend, store: Any) -> None:
    """The next round starts one of its own."""
    gate = Gate()
    world = World(backend, gate)
    task = await world.parent.create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    child_id = await world.child_id()
    await task.pause(rollback=True)
    assert await stored(backend) == ["user Go."]
    assert await world.status(child_id) is TaskStatus.ABORTED
    gate.opened.set()
    await task.start()
    await task.wait()
    assert await stored(backend) == DONE
    assert len(task.state.subtask_ids) == 2
    await task.aclose()


@virtually
async def test_deleting_a_parent_deletes_its_subtasks(backend: Backend, store: Any) -> None:
    """Whoever owns them: nothing of them is left, and the owner is fenced."""
    gate = Gate()
    world = World(backend, gate, where="turn")
    task = await world.parent.create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    child_id = await world.child_id()
    await world.parent.delete_task("t")
    for name in ("t", child_id):
        assert await backend.persistence.load_task_state(name) is None
        assert await backend.persistence.load_api_messages(name) == []
        assert await backend.persistence.load_user_messages(name) == []
        assert await backend.checkpoints.get(name) is None
    gate.opened.set()
    with pytest.raises(FencedError):
        await task.wait()
    await task.aclose()
    assert await backend.persistence.list_task_states() == []
    await world.parent.delete_task("t")


@virtually
async def test_a_tool_that_may_run_again_finds_its_subtask(backend: Backend, store: Any) -> None:
    """What it does behind the sub-task is done; the sub-task is not started twice."""
    gate = Gate()
    world = World(backend, gate)

    @tool(name="research", on_interrupted="rerun")
    async def twice(topic: str, context: ToolContext) -> list[str]:
        first = await context.run_subtask(topic, agent="researcher")
        second = await context.run_subtask(topic + "!", agent="researcher")
        return [first.text.upper(), second.text]

    agent = make(backend, world.parent_model, twice, subagents=[world.researcher])
    task = await agent.create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    await task.aclose()
    gate.opened.set()
    async with await agent.load_task("t") as task:
        await task.start()
        await task.wait()
        assert len(task.state.subtask_ids) == 2
    assert (await stored(backend))[2] == "tool =['IT IS WET.', 'It is wet.']"
    children = await backend.persistence.list_task_states(parent_id="t")
    assert len(children) == 2


@virtually
async def test_subtasks_may_run_side_by_side(backend: Backend, store: Any) -> None:
    """The parent waits until the last one has ended."""
    world = World(backend, None)

    @tool(name="research")
    async def both(topic: str, context: ToolContext) -> list[str]:
        results = await asyncio.gather(
            *(context.run_subtask(f"{topic} {n}", agent="researcher") for n in range(3))
        )
        return [result.text for result in results]

    seen: list[str] = []
    agent = make(backend, world.parent_model, both, subagents=[world.researcher])
    callbacks = TaskCallbacks(on_status_change=lambda old, new: seen.append(new.value))
    async with await agent.create_task("Go.", task_id="t", callbacks=callbacks) as task:
        await task.start()
        await task.wait()
    assert seen == ["running", "waiting_for_subtask", "running", "completed"]
    assert len(await backend.persistence.list_task_states(parent_id="t")) == 3


@virtually
async def test_an_unknown_agent_is_an_error_of_the_call(backend: Backend, store: Any) -> None:
    """It names those that are known; the parent does not hang in waiting."""
    world = World(backend, None)
    agent = make(backend, world.parent_model, research)
    async with await agent.create_task("Go.", task_id="t") as task:
        await task.start()
        assert (await task.wait()).status is TaskStatus.COMPLETED
    assert "ConfigurationError" in (await stored(backend))[2]


@virtually
async def test_a_subtask_has_the_callbacks_that_it_is_given(backend: Backend, store: Any) -> None:
    """By its id; a question about a call of it is asked by default, too."""
    world = World(backend, None)
    told: list[Any] = []

    def callbacks_of(task_id: str) -> TaskCallbacks:
        return TaskCallbacks(on_event=lambda event: told.append((task_id, event)))

    callbacks = TaskCallbacks(for_subtask=callbacks_of)
    async with await world.parent.create_task("Go.", task_id="t", callbacks=callbacks) as task:
        await task.start()
        await task.wait()
    assert {name for name, _ in told} == {await world.child_id()}
    assert TextDelta("It i") in [event for _, event in told]

    async def ask(call: Any) -> Any:
        raise AssertionError

    assert TaskCallbacks(ask=ask).of_subtask("x").ask is ask


@virtually
async def test_a_parent_pauses_with_a_subtask_that_cannot_go_on(
    backend: Backend, store: Any
) -> None:
    """Somebody has to decide about a call of the child; started again, both go on."""
    gate = Gate()
    world = World(backend, gate)
    (hang,) = world.researcher.tools.values()
    hang.on_interrupted = "ask"
    task = await world.parent.create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    await task.aclose()
    gate.opened.set()
    async with await world.parent.load_task("t") as task:
        await task.start()
        assert (await task.settled()).status is TaskStatus.PAUSED
        child_id = await world.child_id()
        assert await world.status("t") is await world.status(child_id) is TaskStatus.PAUSED

    async def ask(call: Any) -> Any:
        return "rerun"

    callbacks = TaskCallbacks(ask=ask)
    async with await world.parent.load_task("t", callbacks=callbacks) as task:
        await task.start()
        await task.wait()
    assert await stored(backend) == DONE
    assert await stored(backend, child_id) == CHILD_DONE


@virtually
async def test_a_parent_whose_subtask_was_taken_stops_and_can_take_it_back(
    backend: Backend, store: Any
) -> None:
    """It still owns itself: started again, it goes on with the sub-task."""
    gate = Gate()
    world = World(backend, gate)
    async with await world.parent.create_task("Go.", task_id="t") as task:
        await task.start()
        await reached(gate.reached)
        thief = await backend.persistence.claim_task(await world.child_id())
        with pytest.raises(FencedError) as caught:
            await task.wait()
        assert caught.value.key == await world.child_id()
        assert task.status is WAITING
        gate.opened.set()
        await task.start()
        assert (await task.wait()).status is TaskStatus.COMPLETED
        with pytest.raises(FencedError):
            await backend.persistence.check_claim(thief)
    assert await stored(backend) == DONE


@virtually
async def test_subtasks_nest(backend: Backend, store: Any) -> None:
    """A killed chain of three goes on from the top."""
    gate = Gate()
    world = World(backend, gate)
    top_model = TalkingModel(
        says("", ("c1", "delegate", "{}")),
        says("All done."),
    )

    @tool
    async def delegate(context: ToolContext) -> str:
        return (await context.run_subtask("Go.", agent="parent")).text

    middle = make(
        backend, world.parent_model, research, name="parent", subagents=[world.researcher]
    )
    top = make(backend, top_model, delegate, name="top", subagents=[middle])
    task = await top.create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    await task.aclose()
    assert len(await backend.persistence.list_task_states(status=WAITING)) == 2
    gate.opened.set()
    async with await top.load_task("t") as task:
        await task.start()
        await task.wait()
    assert (await stored(backend))[2:] == ["tool =Take an umbrella.", "assistant All done."]
    states = await backend.persistence.list_task_states()
    assert {state.status for state in states} == {TaskStatus.COMPLETED}
    assert len(states) == 3
    await top.delete_task("t")
    assert await backend.persistence.list_task_states() == []
