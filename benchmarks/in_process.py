"""What the runtime, the models and the import cost, without a server."""

import asyncio
import gc
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from itertools import pairwise

import outlast
from outlast.cli.bench.rows import Profile, message
from outlast.model_api import ModelEvent, ModelRequest, StreamEnd, TextDelta
from outlast.runtime import RunContext, StateManager, run_turn

_UPDATES = 10_000
_DELTAS = 100_000


async def measure_in_process(profile: Profile, said: Callable[[str], object]) -> dict[str, float]:
    """Every figure of `benchmarks.bars.IN_PROCESS`."""
    rounds = max(3, profile.count // 60)
    found: dict[str, float] = {}
    for name, step in (
        ("update_state", _update_state),
        ("delta", _delta),
        ("delay", _delay),
        ("models", _models),
        ("import", _import),
    ):
        said(name)
        found[name] = await step(rounds)
    return found


async def _update_state(rounds: int) -> float:
    """Microseconds of processor time for one update of a state that is saved in the background."""
    taken: list[float] = []
    async with outlast.open_backend("memory://") as backend:
        claim = await backend.persistence.claim_task("task")
        async with StateManager("task", backend.persistence, claim=claim) as manager:
            for _ in range(rounds):
                begun = time.process_time()
                for number in range(_UPDATES):
                    manager.update_state(retry_count=number)
                taken.append((time.process_time() - begun) / _UPDATES)
                await manager.save_state_now()
    return statistics.median(taken) * 1e6


class _Talker:
    """A model that says the same all the time.

    Args:
        deltas: How many pieces of text.
        together: How many arrive at once, as they do from a network.
        pause: Seconds between arrivals.
    """

    name = "talker"

    def __init__(self, deltas: int, *, together: int, pause: float) -> None:
        self._deltas = deltas
        self._together = together
        self._pause = pause

    async def stream(self, request: ModelRequest, *, prefix: str = "") -> AsyncIterator[ModelEvent]:
        for number in range(self._deltas):
            if number % self._together == 0:
                await asyncio.sleep(self._pause)
            yield TextDelta("a word, ")
        yield StreamEnd()


class _SlowStore(outlast.StreamCheckpointStore):
    """A checkpoint store that takes its time to put."""

    def __init__(self, store: outlast.StreamCheckpointStore, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self.puts = 0

    async def put(
        self, checkpoint: outlast.StreamCheckpoint, *, claim: outlast.Claim | None = None
    ) -> None:
        self.puts += 1
        await asyncio.sleep(self._seconds)
        await self._store.put(checkpoint, claim=claim)

    async def claim(
        self,
        run_id: str,
        *,
        thread_id: str | None = None,
        claim_id: str | None = None,
        at_least: int | None = None,
        if_epoch: int | None = None,
    ) -> outlast.Claim:
        return await self._store.claim(
            run_id,
            thread_id=thread_id,
            claim_id=claim_id,
            at_least=at_least,
            if_epoch=if_epoch,
        )

    async def get(self, run_id: str) -> outlast.StreamCheckpoint | None:
        return await self._store.get(run_id)

    async def delete(self, run_id: str, *, claim: outlast.Claim | None = None) -> None:
        await self._store.delete(run_id, claim=claim)

    async def delete_thread(self, thread_id: str, *, force: bool = False) -> int:
        return await self._store.delete_thread(thread_id, force=force)

    def iter_checkpoints(
        self, *, thread_id: str | None = None, updated_before: datetime | None = None
    ) -> AsyncIterator[outlast.StreamCheckpoint]:
        return self._store.iter_checkpoints(thread_id=thread_id, updated_before=updated_before)


_REQUEST = ModelRequest([message(0)])


async def _turn(
    backend: outlast.Backend, model: _Talker, store: outlast.StreamCheckpointStore | None
) -> list[float]:
    """When each delta of one turn arrived."""
    task_id = f"task-{secrets.token_hex(4)}"
    claim = await backend.persistence.claim_task(task_id)
    context = RunContext(
        backend.persistence, task_id=task_id, run_id=task_id, message_id="m", claim=claim
    )
    if store is not None:
        context = context.with_stream_checkpoint(store)
    async with run_turn(context, model, _REQUEST) as turn:
        times = [time.perf_counter() async for _ in turn]
    await backend.persistence.delete_task(task_id, claim=claim)
    return times


async def _delta(rounds: int) -> float:
    """Microseconds of the processor that a delta takes more through a turn with checkpoints."""
    more: list[float] = []
    async with outlast.open_backend("memory://") as backend:
        for _ in range(rounds):
            model = _Talker(_DELTAS, together=32, pause=0)
            gc.collect()
            begun = time.process_time()
            times = [time.perf_counter() async for _ in model.stream(_REQUEST)]
            bare = time.process_time() - begun
            del times
            begun = time.process_time()
            await _turn(backend, model, backend.checkpoints)
            more.append((time.process_time() - begun - bare) / _DELTAS)
    return statistics.median(more) * 1e6


async def _delay(rounds: int) -> float:
    """Time between deltas with a store of 200 ms a put, times without a store."""
    model = _Talker(400, together=1, pause=0.002)
    ratios: list[float] = []
    async with outlast.open_backend("memory://") as backend:
        for _ in range(rounds):
            slow = _SlowStore(backend.checkpoints, 0.2)
            with_store = _gaps(await _turn(backend, model, slow))
            without = _gaps(await _turn(backend, model, None))
            if slow.puts < 2:
                raise AssertionError("the turn was over before the store was asked twice")
            ratios.append(with_store / without)
    return statistics.median(ratios)


def _gaps(times: list[float]) -> float:
    """The 95th percentile of the time between two deltas."""
    gaps = sorted(after - before for before, after in pairwise(times))
    return gaps[int(len(gaps) * 0.95)]


async def _models(rounds: int) -> float:
    """Milliseconds of processor time to load 1,000 messages."""
    taken: list[float] = []
    async with outlast.open_backend("memory://") as backend:
        await backend.persistence.save_api_messages("task", map(message, range(1000)))
        for _ in range(rounds * 20):
            begun = time.process_time()
            await backend.persistence.load_api_messages("task")
            taken.append(time.process_time() - begun)
    return statistics.median(taken) * 1000


async def _import(rounds: int) -> float:
    """Milliseconds, in a process of its own."""
    program = (
        "import time; begun = time.perf_counter(); import outlast; "
        "print(time.perf_counter() - begun)"
    )
    taken: list[float] = []
    for _ in range(rounds * 4 + 1):
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", program], capture_output=True, check=True
        )
        taken.append(float(done.stdout))
    return statistics.median(taken[1:]) * 1000


__all__ = ["measure_in_process"]
