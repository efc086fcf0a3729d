"""A research agent with tools and a sub-task, that may be killed at every line.

Run it, kill it, run it again: it goes on where it was. ``--pause 0.2`` makes it slower.
"""

import argparse
import asyncio
from pathlib import Path

from scripted import ScriptedModel

import outlast
from outlast.runtime import (
    Agent,
    StreamEvent,
    StreamReset,
    TaskCallbacks,
    TextDelta,
    ToolContext,
    tool,
)

QUESTION = "Which book should I read about lighthouses?"
LIBRARY = {
    "lighthouse": ["To the Lighthouse", "The Lighthouse Stevensons"],
    "fresnel": ["A Short Bright Flash"],
}
ORDERS = Path("orders.txt")


@tool(on_interrupted="rerun")
async def search(word: str) -> list[str]:
    """Search the library. It changes nothing, so it may run again after a crash."""
    await asyncio.sleep(0.2)
    return LIBRARY.get(word.lower(), [])


def send_order(key: str, title: str) -> None:
    """What the shop does. A real one takes the key, and sends nothing twice for the same one."""
    with ORDERS.open("a") as file:
        file.write(f"{key} {title}\n")


@tool
async def order(title: str, context: ToolContext) -> str:
    """Order a book. A crash leaves it open whether it was ordered, so it does not run again."""
    await context.check_claim()
    await asyncio.to_thread(send_order, context.idempotency_key, title)
    return f"ordered {title!r}"


@tool(on_interrupted="rerun")
async def ask_reviewer(question: str, context: ToolContext) -> str:
    """Let a colleague find out: a task of its own, which outlives this process, too."""
    return (await context.run_subtask(question, agent="reviewer")).text


def make_agent(backend: outlast.Backend, pause: float) -> Agent:
    """The agent and its colleague. Another process makes the same ones."""
    reviewer = Agent(
        backend.persistence,
        ScriptedModel(
            ("Let me see what is there about Fresnel's lens. ", "search", '{"word": "fresnel"}'),
            "A Short Bright Flash is the best one for a reader who likes history.",
            pause=pause,
        ),
        name="reviewer",
        tools=[search],
        stream_checkpoint=backend.checkpoints,
    )
    return Agent(
        backend.persistence,
        ScriptedModel(
            ("I look into the library first. ", "search", '{"word": "lighthouse"}'),
            ("I ask a colleague. ", "ask_reviewer", '{"question": "Which one is the best?"}'),
            ("Then I order it. ", "order", '{"title": "A Short Bright Flash"}'),
            "Read A Short Bright Flash: it is ordered, and tells how the lens came to be.",
            pause=pause,
        ),
        name="researcher",
        tools=[search, ask_reviewer, order],
        subagents=[reviewer],
        stream_checkpoint=backend.checkpoints,
    )


def show(event: StreamEvent) -> None:
    """Print what the model says."""
    match event:
        case TextDelta(text):
            print(text, end="", flush=True)
        case StreamReset(text) if text:
            print(f"\n[resumed] {text}", end="", flush=True)
        case _:
            pass


async def main(url: str, pause: float) -> None:
    """Create the task, or take over what a former process left."""
    async with outlast.open_backend(url) as backend:
        agent = make_agent(backend, pause)
        callbacks = TaskCallbacks(
            on_event=show,
            on_status_change=lambda old, new: print(f"\n[{old.value} -> {new.value}]", flush=True),
            for_subtask=lambda task_id: TaskCallbacks(on_event=show),
        )
        try:
            task = await agent.load_task("lighthouses", callbacks=callbacks)
            print(f"[found: {task.status.value}, {len(task.api_messages)} messages]", flush=True)
        except outlast.TaskNotFoundError:
            task = await agent.create_task(QUESTION, task_id="lighthouses", callbacks=callbacks)
        async with task:
            if not task.status.is_final:
                await task.start()
            await task.wait()
            print(f"\nAnswer: {task.result}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=(Path.cwd() / "research").as_uri())
    parser.add_argument("--pause", type=float, default=0.05)
    options = parser.parse_args()
    asyncio.run(main(options.url, options.pause))
