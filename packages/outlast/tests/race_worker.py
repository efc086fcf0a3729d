"""A process that takes over each task that it is told of, as soon as it is told.

Started by test_agent_races with a store's URL. It reads a task's id from each line of its input,
and prints what became of the task here: ``completed``, ``fenced``, or ``late`` if it had ended.
"""

import asyncio
import sys

from agent_kit import TalkingModel
from stream_kit import says

from outlast import Backend, FencedError, open_backend
from outlast.runtime import Agent, ToolContext, tool


@tool(on_interrupted="rerun")
async def act(context: ToolContext) -> str:
    """Do nothing, as long as the task is ours."""
    await asyncio.sleep(0)
    await context.check_claim()
    return "acted"


def make_agent(backend: Backend) -> Agent:
    """An agent that calls one tool, and answers."""
    model = TalkingModel(says("", ("c1", "act", "{}")), says("Done."))
    return Agent(backend.persistence, model, tools=[act], stream_checkpoint=backend.checkpoints)


async def work(agent: Agent, task_id: str) -> str:
    """Take one task over, and try to end it."""
    try:
        async with await agent.load_task(task_id) as task:
            if task.status.is_final:
                return "late"
            await task.start()
            return (await task.wait()).status.value
    except FencedError:
        return "fenced"


async def main(url: str) -> None:
    """Until the input ends."""
    async with open_backend(url) as backend:
        agent = make_agent(backend)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(await work(agent, line.strip()), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
