"""Killing agents at random moments, and holding what they leave against an undisturbed one.

``OUTLAST_CHAOS_KILLS`` sets how often, ``OUTLAST_CHAOS_SEED`` when.
"""

import os
import random
import secrets
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from agent_kit import shape
from chaos_worker import make_agent

from outlast import Backend, TaskStatus, open_backend
from outlast.runtime import check_history
from outlast.runtime.history import INTERRUPTED

WORKER = Path(__file__).with_name("chaos_worker.py")
KILLS = int(os.environ.get("OUTLAST_CHAOS_KILLS", "10"))
SEED = os.environ.get("OUTLAST_CHAOS_SEED", "1")
LIFE = 0.9
"""Seconds; the longest life of a process that is to be killed."""


class Chaos:
    """Runs tasks in processes that are killed, until so many were.

    Args:
        url: The store.
        folder: For the effects of tools.
        seed: Of the moments.
    """

    def __init__(self, url: str, folder: Path, seed: str) -> None:
        self.url = url
        self.namespace = f"chaos-{secrets.token_hex(6)}"
        self.folder = folder
        self.rng = random.Random(seed)
        self.kills = 0
        self.tasks: list[str] = []

    def run(self, kills: int) -> None:
        """Kill ``kills`` processes, and let the last one of each task end."""
        while self.kills < kills:
            task_id = f"task-{len(self.tasks)}"
            self.tasks.append(task_id)
            folder = self.folder / task_id
            folder.mkdir()
            while not self._live(task_id, folder, may_die=self.kills < kills):
                pass

    def _live(self, task_id: str, folder: Path, *, may_die: bool) -> bool:
        """One process; whether it has brought the task to its end."""
        with subprocess.Popen(
            [sys.executable, str(WORKER), self.url, self.namespace, task_id, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            assert line == "ready\n", process.stderr.read()
            life = self.rng.uniform(0, LIFE) if may_die else 60
            ready, _, _ = select.select([process.stdout], [], [], life)
            if not ready:
                process.kill()
                assert may_die, "the task did not end within a minute"
            output, errors = process.communicate()
        if output.endswith("\n") and output.startswith("done"):
            assert output == "done completed\n", output
            return True
        assert process.returncode == -signal.SIGKILL, errors
        self.kills += 1
        return False

    async def check(self) -> Counter[str]:
        """Hold every task against an undisturbed one; count what was interrupted."""
        counts: Counter[str] = Counter(kills=self.kills, tasks=len(self.tasks))
        whole, whole_child = await undisturbed(self.folder)
        async with open_backend(self.url, namespace=self.namespace) as backend:
            for task_id in self.tasks:
                state = await backend.persistence.load_task_state(task_id)
                assert state is not None
                assert state.status is TaskStatus.COMPLETED
                (child_id,) = state.subtask_ids
                keys = {
                    kind: Counter(keys_of(self.folder / task_id / kind))
                    for kind in ("search", "pay")
                }
                for name, expected in ((task_id, whole), (child_id, whole_child)):
                    counts["interrupted"] += await self._compare(backend, name, expected)
                    assert await backend.checkpoints.get(name) is None, name
                # Paid once for each result that says so, and never twice.
                assert all(count == 1 for count in keys["pay"].values()), keys
                counts["searched again"] += sum(n - 1 for n in keys["search"].values())
                counts["paid"] += len(keys["pay"])
        return counts

    async def _compare(self, backend: Backend, task_id: str, expected: list[str]) -> int:
        messages = await backend.persistence.load_api_messages(task_id)
        assert check_history(messages) == []
        lines = shape(messages)
        assert len(lines) == len(expected), lines
        interrupted = 0
        for line, whole in zip(lines, expected, strict=True):
            if line != whole:
                assert line == f"tool !{INTERRUPTED}", (line, whole)
                assert whole.startswith("tool =paid"), (line, whole)
                interrupted += 1
        users = await backend.persistence.load_user_messages(task_id)
        ids = [message.id for message in users]
        assert len(ids) == len(set(ids))
        shown = [message.tool_info.status for message in users if message.tool_info]
        assert len(shown) == sum(line.startswith("tool") for line in expected)
        return interrupted


def keys_of(path: Path) -> list[str]:
    """The idempotency keys of the effects in a file, which may not be there."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[0] for line in lines]


async def undisturbed(folder: Path) -> tuple[list[str], list[str]]:
    """The conversations of the parent and of its sub-task, if nobody dies."""
    calm = folder / "calm"
    calm.mkdir(exist_ok=True)
    async with open_backend("memory://") as backend:
        agent: Any = make_agent(backend, calm, pause=0)
        async with await agent.create_task("Do I need an umbrella?", task_id="t") as task:
            await task.start()
            state = await task.wait()
        (child_id,) = state.subtask_ids
        parent = shape(await backend.persistence.load_api_messages("t"))
        child = shape(await backend.persistence.load_api_messages(child_id))
    return parent, child
