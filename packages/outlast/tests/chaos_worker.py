"""A process that works on one task until it is done or killed.

Started by chaos_kit with a store's URL and namespace, the task's id, and a folder for the effects
of its tools.
It creates the task or takes it over, whatever the last process left of it. It prints ``ready``
once the store is open, and ``done`` at the end.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from agent_kit import TalkingModel
from stream_kit import says

from outlast import Backend, TaskNotFoundError, open_backend
from outlast.runtime import Agent, CheckpointPolicy, Tool, ToolContext, tool

# One call in each turn: of several, a cut turn keeps those that are complete (plan R2), and the
# conversation would be another one than the undisturbed one, rightly.
PARENT = [
    says("Let me look it up. ", ("c1", "search", '{"query": "weather in Rome, today"}')),
    says("I pay for the forecast.", ("c1", "pay", '{"amount": 5}')),
    says("And ask a colleague.", ("c1", "delegate", '{"topic": "umbrellas"}')),
    says("", ("c1", "pay", '{"amount": 7}')),
    says("It will rain from noon on: take the red umbrella with you, and do not forget it."),
]
CHILD = [
    says("Umbrellas, then.", ("c1", "search", '{"query": "umbrellas"}')),
    says("", ("c1", "pay", '{"amount": 1}')),
    says("The red one is the best."),
]


def effect(folder: Path, kind: str, context: ToolContext) -> None:
    """Something that the world remembers, under the call's key."""
    with (folder / kind).open("a") as file:
        file.write(f"{context.idempotency_key} {context.task_id} {context.call_id}\n")
        file.flush()
        os.fsync(file.fileno())


def tools_of(folder: Path) -> list[Tool]:
    """One that may run again, one that may not, and one that starts a sub-task."""

    @tool(on_interrupted="rerun")
    async def search(query: str, context: ToolContext) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        effect(folder, "search", context)
        await asyncio.sleep(0.01)
        return {"query": query, "hits": [1, 2, 3]}

    @tool
    async def pay(amount: int, context: ToolContext) -> str:
        await asyncio.sleep(0.01)
        effect(folder, "pay", context)
        await asyncio.sleep(0.01)
        return f"paid {amount}"

    @tool(on_interrupted="rerun")
    async def delegate(topic: str, context: ToolContext) -> str:
        return (await context.run_subtask(topic, agent="colleague")).text

    return [search, pay, delegate]


def make_agent(backend: Backend, folder: Path, pause: float = 0.003) -> Agent:
    """The parent; every event of its models takes a moment."""

    async def wait() -> None:
        await asyncio.sleep(pause)

    options: dict[str, Any] = {
        "tools": tools_of(folder),
        "stream_checkpoint": backend.checkpoints,
        "checkpointing": CheckpointPolicy(interval=0.005),
        "debounce": 0.05,
        "max_wait": 0.2,
    }
    colleague = Agent(
        backend.persistence, TalkingModel(*CHILD, pause=wait), name="colleague", **options
    )
    return Agent(
        backend.persistence,
        TalkingModel(*PARENT, pause=wait),
        name="main",
        subagents=[colleague],
        **options,
    )


async def main(url: str, namespace: str, task_id: str, folder: Path) -> None:
    """Work until it is done."""
    async with open_backend(url, namespace=namespace) as backend:
        print("ready", flush=True)
        agent = make_agent(backend, folder)
        try:
            task = await agent.load_task(task_id)
        except TaskNotFoundError:
            task = await agent.create_task("Do I need an umbrella?", task_id=task_id)
        async with task:
            if not task.status.is_final:
                await task.start()
            state = await task.wait()
    print("done", state.status.value, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], Path(sys.argv[4])))
