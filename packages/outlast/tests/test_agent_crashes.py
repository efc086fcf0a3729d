"""An agent with tools and a sub-task whose process dies at each of its writes.

A process is a backend and an agent of its own over a store that all share. It dies in a write,
before it was made or behind it: all that it was doing ends, and nothing more of it is written. Real
processes die in test_agent_chaos, at random moments.
"""

import asyncio
import itertools
import random
from collections import Counter
from typing import Any

import pytest
from agent_kit import TalkingModel, cards, shape
from chaos_worker import CHILD, PARENT
from runtime_kit import Watched, run_virtually

from outlast import Backend, TaskNotFoundError, TaskStatus, UnavailableError, open_backend
from outlast.runtime import Agent, CheckpointPolicy, ToolContext, check_history, tool
from outlast.runtime.history import INTERRUPTED

_names = (f"agent-crash-{number}" for number in itertools.count())


class Process:
    """One process.

    Args:
        backend: Its own.
        effects: What the world has seen of all processes, by tool and key.
        deadly: In which of its writes it dies.
        is_made: Whether that write is still made.
        is_stored: Whether turns in flight are written down.
    """

    def __init__(
        self,
        backend: Backend,
        effects: Counter[Any],
        deadly: int | None,
        *,
        is_made: bool,
        is_stored: bool,
    ) -> None:
        self.backend = backend
        self.effects = effects
        self.deadly = deadly
        self.is_made = is_made
        self.is_stored = is_stored
        self.writes = 0
        self.doomed: asyncio.Task[Any] | None = None
        self.died = asyncio.Event()

    async def before(self, name: str) -> None:
        self.writes += 1
        if self.died.is_set():
            raise UnavailableError("dead")
        if self.writes == self.deadly:
            if not self.is_made:
                await self._die()
            self.doomed = asyncio.current_task()

    async def after(self, name: str) -> None:
        if self.doomed is not None and asyncio.current_task() is self.doomed:
            await self._die()

    async def _die(self) -> None:
        self.died.set()
        await asyncio.Event().wait()

    def watch(self, store: Any) -> Any:
        watched = Watched(store)
        watched.before, watched.after = self.before, self.after
        return watched

    def agent(self) -> Agent:
        @tool(on_interrupted="rerun")
        async def search(query: str, context: ToolContext) -> dict[str, Any]:
            self.effects["search", context.idempotency_key] += 1
            return {"query": query, "hits": [1, 2, 3]}

        @tool
        async def pay(amount: int, context: ToolContext) -> str:
            self.effects["pay", context.idempotency_key] += 1
            return f"paid {amount}"

        @tool
        async def delegate(topic: str, context: ToolContext) -> str:
            return (await context.run_subtask(topic, agent="colleague")).text

        options: dict[str, Any] = {
            "tools": [search, pay, delegate],
            "stream_checkpoint": self.watch(self.backend.checkpoints) if self.is_stored else None,
            "checkpointing": CheckpointPolicy(interval=0.01),
        }
        persistence = self.watch(self.backend.persistence)

        async def pause() -> None:
            await asyncio.sleep(0.004)

        colleague = Agent(
            persistence, TalkingModel(*CHILD, pause=pause), name="colleague", **options
        )
        return Agent(
            persistence,
            TalkingModel(*PARENT, pause=pause),
            name="main",
            subagents=[colleague],
            **options,
        )

    async def work(self) -> None:
        """Create the task or take it over, and bring it to its end."""
        agent = self.agent()
        try:
            task = await agent.load_task("t")
        except TaskNotFoundError:
            task = await agent.create_task("Do I need an umbrella?", task_id="t")
        async with task:
            if not task.status.is_final:
                await task.start()
            async with asyncio.timeout(60):
                assert (await task.wait()).status is TaskStatus.COMPLETED

    async def live(self) -> bool:
        """Whether it came to the end."""
        before = asyncio.all_tasks()
        working = asyncio.create_task(self.work())
        dying = asyncio.create_task(self.died.wait())
        await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
        if not self.died.is_set():
            dying.cancel()
            await working
            return True
        # All that it does ends at once; what it tries to write by that is refused.
        while rest := asyncio.all_tasks() - before:
            for each in rest:
                each.cancel()
            await asyncio.wait(rest)
            for each in rest:
                if not each.cancelled():
                    each.exception()
        return False


async def run(*deaths: tuple[int, bool], is_stored: bool = True) -> tuple[bool, dict[str, Any]]:
    """Processes that die as told, then one that does not; what they left."""
    url = f"memory://{next(_names)}"
    effects: Counter[Any] = Counter()
    died = True
    for deadly, is_made in (*deaths, (None, False)):
        async with open_backend(url) as backend:
            process = Process(backend, effects, deadly, is_made=is_made, is_stored=is_stored)
            ended = await process.live()
            died = died and (not ended or deadly is None)
    async with open_backend(url) as backend:
        state = await backend.persistence.load_task_state("t")
        assert state is not None
        states = await backend.persistence.list_task_states()
        assert {each.status for each in states} == {TaskStatus.COMPLETED}
        # The parent knows its child before that is made; one that was not made is not there.
        stored = {each.id for each in states}
        assert stored <= {"t", *state.subtask_ids}
        names = [name for name in ("t", *state.subtask_ids) if name in stored]
        left: dict[str, Any] = {"effects": effects, "names": names}
        for name in names:
            messages = await backend.persistence.load_api_messages(name)
            assert check_history(messages) == []
            users = await backend.persistence.load_user_messages(name)
            assert await backend.checkpoints.get(name) is None
            left[name] = shape(messages), cards(users)
    return died, left


def judge(left: dict[str, Any], whole: dict[str, Any]) -> None:
    """The conversations are the undisturbed ones, but for calls that are reported as interrupted;
    each payment was made at most once.
    """
    for (kind, _), count in left["effects"].items():
        assert kind != "pay" or count == 1
    interrupted = 0
    for name, expected in zip(left["names"], whole["names"], strict=False):
        lines, shown = left[name]
        assert len(lines) == len(whole[expected][0]), lines
        for line, right in zip(lines, whole[expected][0], strict=True):
            if line != right:
                assert line == f"tool !{INTERRUPTED}"
                assert right.startswith(("tool =paid", "tool =The red one"))
                interrupted += 1
        assert len(shown) == len(whole[expected][1]), shown
    assert interrupted <= 1


@pytest.mark.parametrize(
    "is_stored",
    [
        pytest.param(True, id="checkpoints"),
        pytest.param(False, id="none", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("is_made", [False, True], ids=["before", "behind"])
def test_killed_at_any_write_everything_is_done_once(is_made: bool, is_stored: bool) -> None:
    """Before it is made, or behind it: the next process goes on; without checkpoints, from the
    beginning of the turn.
    """

    async def main() -> None:
        _, whole = await run()
        for deadly in itertools.count(1):
            died, left = await run((deadly, is_made), is_stored=is_stored)
            judge(left, whole)
            if not died:
                break
        assert deadly > (40 if is_stored else 25)

    run_virtually(main())


@pytest.mark.slow
def test_killed_several_times_everything_is_done_once() -> None:
    """At random writes of each process."""

    async def main() -> None:
        rng = random.Random(5)
        for _ in range(60):
            deaths = [
                (rng.randrange(1, 30), rng.random() < 0.5) for _ in range(rng.randrange(2, 6))
            ]
            _, left = await run(*deaths)
            assert all(
                count == 1 for (kind, _), count in left["effects"].items() if kind == "pay"
            ), deaths

    run_virtually(main())
