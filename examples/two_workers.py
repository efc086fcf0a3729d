"""Two workers that compete for the same task: exactly one goes on, the other one is told.

A takes the task; B takes it over while A works; A notices, and waits for its turn to take it back.
Each step is in the conversation once, whoever made it.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from scripted import ScriptedModel

import outlast
from outlast.runtime import Agent, ToolContext, tool

STEPS = 8


@tool(on_interrupted="rerun")
async def step(number: int, context: ToolContext) -> str:
    """One step of the work."""
    await asyncio.sleep(0.1)
    await context.check_claim()
    return f"step {number}"


def make_agent(backend: outlast.Backend) -> Agent:
    """The same agent in each worker."""
    turns = [("", "step", f'{{"number": {number}}}') for number in range(STEPS)]
    return Agent(
        backend.persistence,
        ScriptedModel(*turns, "All steps are made.", pause=0.02),
        tools=[step],
        stream_checkpoint=backend.checkpoints,
        ownership_interval=0.2,
    )


async def work(url: str, name: str, pause: float) -> None:
    """Take the task over, and again a while after it was lost, until it is done."""
    async with outlast.open_backend(url) as backend:
        agent = make_agent(backend)
        while True:
            try:
                async with await agent.load_task("work") as task:
                    if task.status.is_final:
                        print(f"{name}: finds it {task.status.value}", flush=True)
                        return
                    print(f"{name}: takes over, epoch {task.claim.epoch}", flush=True)
                    await task.start()
                    await task.wait()
                    print(f"{name}: finishes it", flush=True)
            except outlast.FencedError as error:
                # At any moment, so also while the task is being loaded.
                print(f"{name}: stops, {error.reason}", flush=True)
                await asyncio.sleep(pause)


async def main(url: str) -> None:
    """Make the task, compete for it with another process, and look at what both left."""
    async with outlast.open_backend(url) as backend:
        task = await make_agent(backend).create_task("Make all steps.", task_id="work")
        await task.aclose()
        worker = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--url", url, "--worker", "A"
        )
        while not await made(backend):
            if worker.returncode is not None:
                sys.exit("worker A made no step")
            await asyncio.sleep(0.05)
        await work(url, "B", pause=0.7)
        if await worker.wait():
            sys.exit("worker A failed")
        results = await made(backend)
    assert results == [f"step {number}" for number in range(STEPS)], results
    print("Each step was made once, in order.")


async def made(backend: outlast.Backend) -> list[object]:
    """What the steps that are in the conversation returned."""
    messages = await backend.persistence.load_api_messages("work")
    return [
        block["content"]
        for message in messages
        for block in message.content
        if isinstance(block, dict) and block["type"] == "tool_result"
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        asyncio.run(work(options.url, options.worker, pause=0))
    else:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(main(options.url or (Path(folder) / "store").as_uri()))
