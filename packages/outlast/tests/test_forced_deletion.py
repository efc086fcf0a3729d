"""Deletions by force against others who keep claiming."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import outlast
from outlast.backends.memory import MemoryDriver
from outlast.contracts import DriverBackend
from outlast.contracts.claim import new_claim_id
from outlast.driver import Scope, Value
from outlast.errors import FencedError, OutcomeUnknownError, OutlastError, UnavailableError


class Contested(MemoryDriver):
    """Somebody claims a scope again before each of its removals, so many times."""

    def __init__(self, kind: str, times: int) -> None:
        super().__init__(None, namespace="n")
        self.kind = kind
        self.times = times

    async def remove(self, scope: Scope, *, fence: Any) -> None:
        if scope.kind == self.kind and self.times:
            self.times -= 1
            await self.claim(scope, new_claim_id())
        await super().remove(scope, fence=fence)


def backend_on(driver: MemoryDriver, timeout: float = 10.0) -> DriverBackend:
    return DriverBackend(driver, namespace="n", timeout=timeout)


async def owned(backend: outlast.Backend) -> None:
    """A task with data and a run with a checkpoint, both claimed."""
    task = await backend.persistence.claim_task("t")
    await backend.persistence.save_task_state("t", outlast.TaskState(id="t"), claim=task)
    run = await backend.checkpoints.claim("r", thread_id="t")
    point = outlast.StreamCheckpoint(run_id="r", thread_id="t", message_id="m", model="x")
    await backend.checkpoints.put(point, claim=run)


async def test_a_forced_deletion_of_a_thread_gets_its_way_against_many_claims() -> None:
    async with backend_on(Contested("run", 30)) as backend:
        await owned(backend)
        assert await backend.checkpoints.delete_thread("t", force=True) == 1
        assert await backend.checkpoints.get("r") is None


@pytest.mark.parametrize("kind", ["task", "run"])
async def test_a_forced_deletion_of_a_task_gets_its_way_against_many_claims(kind: str) -> None:
    async with backend_on(Contested(kind, 30)) as backend:
        await owned(backend)
        await backend.persistence.delete_task("t", force=True)
        assert await backend.persistence.load_task_state("t") is None
        assert await backend.checkpoints.get("r") is None


async def test_a_forced_deletion_of_a_thread_that_never_gets_its_way_says_so() -> None:
    async with backend_on(Contested("run", 10**9), timeout=0.5) as backend:
        await owned(backend)
        with pytest.raises(OutcomeUnknownError, match="run 'r' was claimed by others") as caught:
            await backend.checkpoints.delete_thread("t", force=True)
        assert isinstance(caught.value.__cause__, outlast.OutlastError)
        assert await backend.checkpoints.get("r") is not None


async def test_a_forced_deletion_of_a_task_that_never_gets_its_way_says_who_owns_it() -> None:
    async with backend_on(Contested("task", 10**9), timeout=0.5) as backend:
        await owned(backend)
        with pytest.raises(FencedError) as caught:
            await backend.persistence.delete_task("t", force=True)
        assert caught.value.reason == "superseded"
        assert caught.value.applied is None
        assert await backend.persistence.load_task_state("t") is not None


async def test_a_deletion_whose_runs_are_claimed_by_others_is_not_called_fenced() -> None:
    """The caller's own claim is the newest."""
    async with backend_on(Contested("run", 10**9), timeout=0.5) as backend:
        await owned(backend)
        claim = await backend.persistence.claim_task("t")
        with pytest.raises(OutcomeUnknownError, match="run 'r' was claimed by others"):
            await backend.persistence.delete_task("t", claim=claim)
        await backend.persistence.check_claim(claim)
        assert await backend.persistence.load_task_state("t") is not None


class Unreachable(MemoryDriver):
    """No run can be claimed."""

    async def claim(self, scope: Scope, claim_id: str, **options: Any) -> Value:
        if scope.kind == "run" and self.is_down:
            raise UnavailableError("it cannot be reached")
        return await super().claim(scope, claim_id, **options)

    is_down = False


@pytest.mark.parametrize("of", ["task", "thread"])
async def test_an_error_of_a_run_names_the_task_that_is_deleted(of: str) -> None:
    """And the run beside it."""
    driver = Unreachable(None, namespace="n")
    async with backend_on(driver, timeout=0.5) as backend:
        await owned(backend)
        driver.is_down = True
        delete: dict[str, Callable[..., Awaitable[object]]] = {
            "task": backend.persistence.delete_task,
            "thread": backend.checkpoints.delete_thread,
        }
        with pytest.raises(OutlastError) as caught:
            await delete[of]("t", force=True)
        assert str(caught.value).startswith(f"delete_{of}('t') on {backend.name}: ")
        assert "run 'r': it cannot be reached" in str(caught.value)
