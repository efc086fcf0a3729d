"""The agent runtime as a typed program uses it; checked by mypy and pyright, never run."""

from datetime import timedelta
from typing import Any, assert_type

import outlast
from outlast.runtime import (
    Agent,
    InterruptedCall,
    MessageManager,
    Model,
    RecoveryReport,
    StateManager,
    Task,
    TaskCallbacks,
    Tool,
    ToolContext,
    recover,
    tool,
)


@tool(on_interrupted="rerun", timeout=2.0)
async def look(word: str, context: ToolContext) -> list[str]:
    """A tool with options."""
    result = await context.run_subtask(word, agent="other", context={"word": word})
    assert_type(result.text, str)
    assert_type(result.state, outlast.TaskState)
    return [result.text]


@tool
async def plain() -> None:
    """A tool without options."""


async def ask(call: InterruptedCall) -> Any:
    """What a callback of this kind gets."""
    assert_type(call.idempotency_key, str)
    return "rerun"


async def tasks(backend: outlast.Backend, model: Model) -> None:
    """From an agent to the end of a task."""
    assert_type(look, Tool)
    assert_type(plain, Tool)
    agent = Agent(
        backend.persistence,
        model,
        tools=[look, plain],
        stream_checkpoint=backend.checkpoints,
        subagents=[Agent(backend.persistence, model, name="other")],
    )
    callbacks = TaskCallbacks(ask=ask, on_event=print)
    task = await agent.create_task("x", task_id=None, context={"k": 1}, callbacks=callbacks)
    assert_type(task, Task)
    await task.start()
    await task.pause(rollback=True)
    assert_type(await task.send_message("y"), str)
    await task.abort()
    assert_type(await task.wait(), outlast.TaskState)
    assert_type(task.api_messages, list[outlast.ApiMessage])
    assert_type(task.interrupted_calls, list[InterruptedCall])
    async with await agent.load_task("t", context={"k": 2}) as loaded:
        assert_type(loaded.status, outlast.TaskStatus)
    report = await recover(backend, agent, idle=timedelta(minutes=1))
    assert_type(report, RecoveryReport)
    assert_type(report.tasks, list[Task])


async def managers(backend: outlast.Backend) -> None:
    """The managers by themselves."""
    claim = await backend.persistence.claim_task("t")
    state = StateManager("t", backend.persistence, claim=claim, debounce=0.5, max_wait=2.0)
    assert_type(state.update_state(status="running"), outlast.TaskState)
    await state.save_state_now()
    messages = MessageManager("t", backend.persistence, claim=claim)
    messages.add_api_message(outlast.ApiMessage(id="a", role="user", content="x"))
    assert_type(await messages.rollback_current_round(), list[outlast.ApiMessage])
    await messages.aclose()
