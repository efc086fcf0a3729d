"""Finding what dead processes left unfinished, and going on with each once."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from agent_kit import Gate, TalkingModel, checkpointed, make, reached, stored, waiting_tool
from runtime_kit import virtually
from stream_kit import says

from outlast import (
    Backend,
    FencedError,
    InvalidDataError,
    StreamCheckpoint,
    TaskState,
    TaskStatus,
    open_backend,
)
from outlast.runtime import Agent, CheckpointPolicy, ToolContext, recover, tool

NOW = timedelta(0)
POLICY = CheckpointPolicy(interval=0)
ANSWER = says("It rains all day long.")


async def die_in_turn(backend: Backend, task_id: str, **options: Any) -> StreamCheckpoint:
    """A process that dies while the model speaks."""
    gate = Gate()
    count = 0

    async def pause() -> None:
        nonlocal count
        count += 1
        if count == 4:
            await gate()

    agent = make(backend, TalkingModel(ANSWER, pause=pause), checkpointing=POLICY, **options)
    task = await agent.create_task("Weather?", task_id=task_id)
    await task.start()
    await reached(gate.reached)
    await checkpointed(backend, task_id)
    await task.aclose()
    found = await backend.checkpoints.get(task_id)
    assert found is not None
    assert found.text
    return found


async def die_in_tool(backend: Backend, task_id: str) -> None:
    """A process that dies while a tool is at work."""
    gate = Gate()
    model = TalkingModel(says("", ("c1", "hang", "{}")))
    task = await make(backend, model, waiting_tool(gate)).create_task("Go.", task_id=task_id)
    await task.start()
    await reached(gate.reached)
    await task.aclose()


def agent_of(backend: Backend, model: TalkingModel, **options: Any) -> Agent:
    gate = Gate()
    gate.opened.set()
    return make(backend, model, waiting_tool(gate), checkpointing=POLICY, **options)


@virtually
async def test_a_run_that_nobody_writes_is_resumed(backend: Backend, store: Any) -> None:
    """From its checkpoint; a fresh one is left alone."""
    found = await die_in_turn(backend, "t")
    model = TalkingModel(ANSWER)
    agent = agent_of(backend, model)
    report = await recover(backend, agent, idle=timedelta(hours=1))
    assert (report.tasks, report.removed) == ([], [])
    report = await recover(backend, agent, idle=NOW)
    (task,) = report.tasks
    assert (await task.wait()).status is TaskStatus.COMPLETED
    assert task.claim.epoch == found.task_epoch + 1
    assert model.prefixes == [found.text]
    assert await stored(backend, "t") == ["user Weather?", "assistant It rains all day long."]
    await task.aclose()
    report = await recover(backend, agent, idle=NOW)
    assert (report.tasks, report.removed) == ([], [])


@pytest.mark.parametrize("kind", ["memory", "file", "sqlite"])
async def test_however_many_recoverers_run_each_run_is_resumed_once(
    kind: str, tmp_path: Any
) -> None:
    """All at the same moment, each with a backend of its own."""
    if kind == "sqlite":
        pytest.importorskip("outlast_sql")
    url = {
        "memory": "memory://recoverers",
        "file": f"file://{tmp_path / 'x'}",
        "sqlite": f"sqlite:///{tmp_path / 'x.db'}",
    }[kind]
    count = 10 if kind == "memory" else 4
    # Between a recoverer's two claims, calls of the others may hold it up.
    grace = 0.3 if kind == "memory" else 3.0
    names = [f"t{number}" for number in range(count)]
    async with open_backend(url) as backend:
        for name in names:
            await die_in_turn(backend, name)

    async def work() -> tuple[list[str], int]:
        async with open_backend(url) as backend:
            model = TalkingModel(ANSWER)
            report = await recover(backend, agent_of(backend, model), idle=NOW, grace=grace)
            for task in report.tasks:
                assert (await task.wait()).status is TaskStatus.COMPLETED
                await task.aclose()
            assert report.removed == []
            return [task.id for task in report.tasks], len(model.requests)

    results = await asyncio.gather(*(work() for _ in range(4)))
    assert sorted(name for resumed, _ in results for name in resumed) == sorted(names)
    assert sum(calls for _, calls in results) == count
    async with open_backend(url) as backend:
        for name in names:
            assert len(await stored(backend, name)) == 2
            assert await backend.checkpoints.get(name) is None


@virtually
async def test_a_run_whose_task_has_a_newer_owner_is_removed(backend: Backend, store: Any) -> None:
    """Not resumed; nor is one whose task is gone or has ended."""
    model = TalkingModel(ANSWER)
    agent = agent_of(backend, model)
    for case in ("owned", "gone", "ended"):
        await die_in_turn(backend, case)
    owner = await backend.persistence.claim_task("owned")
    await backend.persistence.delete_task_state("gone", claim=await claim(backend, "gone"))
    ended = TaskState(id="ended", status=TaskStatus.FAILED)
    await backend.persistence.save_task_state("ended", ended, claim=await claim(backend, "ended"))
    report = await recover(backend, agent, idle=NOW)
    assert report.tasks == []
    assert sorted(report.removed) == ["ended", "gone", "owned"]
    assert [found async for found in backend.checkpoints.iter_checkpoints()] == []
    await backend.persistence.check_claim(owner)
    assert model.requests == []


async def claim(backend: Backend, task_id: str) -> Any:
    return await backend.persistence.claim_task(task_id)


@virtually
async def test_an_owner_that_claims_the_run_meanwhile_keeps_its_checkpoint(
    backend: Backend, store: Any
) -> None:
    """The recoverer gives whoever claimed the task the time to do so."""
    found = await die_in_turn(backend, "t")
    await backend.persistence.claim_task("t")

    async def claim_run() -> None:
        await asyncio.sleep(0.5)
        await backend.checkpoints.claim("t")

    claiming = asyncio.create_task(claim_run())
    report = await recover(backend, agent_of(backend, TalkingModel(ANSWER)), idle=NOW)
    await claiming
    assert (report.tasks, report.removed) == ([], [])
    kept = await backend.checkpoints.get("t")
    assert kept is not None
    assert kept.text == found.text


@virtually
async def test_what_is_not_for_this_recoverer_is_left_alone(backend: Backend, store: Any) -> None:
    """Paused tasks, and tasks of agents that it does not have: nobody is fenced."""
    await die_in_turn(backend, "other", name="somebody else")
    gate = Gate()
    count = 0

    async def pause() -> None:
        nonlocal count
        count += 1
        if count == 4:
            await gate()

    agent = make(backend, TalkingModel(ANSWER, pause=pause), checkpointing=POLICY)
    async with await agent.create_task("Weather?", task_id="paused") as task:
        await task.start()
        await reached(gate.reached)
        await task.pause()
        assert await backend.checkpoints.get("paused") is not None
        report = await recover(backend, agent, idle=NOW, stalled=NOW)
        assert (report.tasks, report.removed) == ([], [])
        await backend.persistence.check_claim(task.claim)
    assert await backend.checkpoints.get("other") is not None


@virtually
async def test_a_task_without_a_turn_in_flight_is_resumed_if_asked_for(
    backend: Backend, store: Any
) -> None:
    """One that died in a tool has no checkpoint; its state tells how long nobody has written."""
    await die_in_tool(backend, "t")
    agent = agent_of(backend, TalkingModel(says(""), says("Done.")))
    assert (await recover(backend, agent, idle=NOW)).tasks == []
    assert (await recover(backend, agent, idle=NOW, stalled=timedelta(hours=1))).tasks == []
    report = await recover(backend, agent, idle=NOW, stalled=NOW)
    (task,) = report.tasks
    assert (await task.wait()).status is TaskStatus.COMPLETED
    await task.aclose()
    assert (await stored(backend, "t"))[2].startswith("tool !The call was interrupted")


@virtually
async def test_stalled_tasks_are_resumed_once_too(unused: Backend, store: Any) -> None:
    """By four recoverers at the same moment, also after one that claimed and died."""
    async with open_backend("memory://stalled") as backend:
        for number in range(6):
            await die_in_tool(backend, f"t{number}")
            if number % 2:
                await claim(backend, f"t{number}")

        async def work() -> list[str]:
            async with open_backend("memory://stalled") as mine:
                agent = agent_of(mine, TalkingModel(says(""), says("Done.")))
                report = await recover(mine, agent, idle=NOW, stalled=NOW, grace=0.2)
                for task in report.tasks:
                    await task.wait()
                    await task.aclose()
                return [task.id for task in report.tasks]

        results = await asyncio.gather(*(work() for _ in range(4)))
        resumed = sorted(name for names in results for name in names)
        assert resumed == [f"t{number}" for number in range(6)]


@virtually
async def test_a_running_task_shows_that_it_is_alive(backend: Backend, store: Any) -> None:
    """By writing its state every heartbeat seconds, also while a tool takes long."""
    gate = Gate()
    model = TalkingModel(says("", ("c1", "hang", "{}")), says("Done."))
    agent = make(backend, model, waiting_tool(gate), persistence=store, heartbeat=20)
    async with await agent.create_task("Go.", task_id="t") as task:
        await task.start()
        await reached(gate.reached)
        start = len(store.times("save_task_state"))
        await asyncio.sleep(1000)
        assert 45 <= len(store.times("save_task_state")) - start <= 51
        gate.opened.set()
        await task.wait()


@virtually
async def test_a_run_of_a_subtask_is_resumed_from_the_top(backend: Backend, store: Any) -> None:
    """The parent goes on, and with it the sub-task."""

    @tool
    async def delegate(context: ToolContext) -> str:
        return (await context.run_subtask("Weather?", agent="child")).text

    def agents(pause: Any) -> Agent:
        child = make(backend, TalkingModel(ANSWER, pause=pause), name="child", checkpointing=POLICY)
        model = TalkingModel(says("", ("c1", "delegate", "{}")), says("Thanks."))
        return make(backend, model, delegate, name="parent", subagents=[child])

    gate = Gate()
    count = 0

    async def pause() -> None:
        nonlocal count
        count += 1
        if count == 4:
            await gate()

    task = await agents(pause).create_task("Go.", task_id="t")
    await task.start()
    await reached(gate.reached)
    (child_id,) = task.state.subtask_ids
    found = await checkpointed(backend, child_id)
    await task.aclose()
    parent = agents(None)
    report = await recover(backend, parent, idle=NOW)
    assert [each.id for each in report.tasks] == ["t"]
    assert (await report.tasks[0].wait()).status is TaskStatus.COMPLETED
    await report.tasks[0].aclose()
    child_model: Any = parent.subagents["child"].model
    assert child_model.prefixes == [found.text]
    assert (await stored(backend, "t"))[2:] == [
        "tool =It rains all day long.",
        "assistant Thanks.",
    ]


@virtually
async def test_a_process_that_only_looked_dead_stops(backend: Backend, store: Any) -> None:
    """It is fenced by the recovery, and changes nothing more."""
    gate = Gate()
    agent = make(backend, TalkingModel(ANSWER, pause=gate), checkpointing=POLICY)
    task = await agent.create_task("Weather?", task_id="t")
    await task.start()
    await checkpointed(backend)
    report = await recover(backend, agent_of(backend, TalkingModel(ANSWER)), idle=NOW)
    with pytest.raises(FencedError):
        await task.wait()
    await task.aclose()
    await report.tasks[0].wait()
    await report.tasks[0].aclose()
    assert await stored(backend, "t") == ["user Weather?", "assistant It rains all day long."]


@virtually
async def test_a_limit_and_wrong_arguments(backend: Backend, store: Any) -> None:
    """So many at most; the rest is for the next pass."""
    for number in range(3):
        await die_in_turn(backend, f"t{number}")
    agent = agent_of(backend, TalkingModel(ANSWER))
    report = await recover(backend, agent, idle=NOW, limit=2)
    assert len(report.tasks) == 2
    for task in report.tasks:
        await task.wait()
        await task.aclose()
    assert len((await recover(backend, [agent], idle=NOW, limit=0)).tasks) == 0
    for wrong in (timedelta(seconds=-1), 5):
        with pytest.raises(InvalidDataError):
            await recover(backend, agent, idle=wrong)  # type: ignore[arg-type]
