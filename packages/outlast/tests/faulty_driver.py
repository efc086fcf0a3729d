"""A driver that fails as told, and what tests of the calls that reach it share."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from outlast import ApiMessage, DriverBackend
from outlast.backends.memory import MemoryDriver
from outlast.driver import Entry, Fence, Index, Scope, Value
from outlast.errors import OutcomeUnknownError, UnavailableError

TIMEOUT = 10.0


def pass_time(seconds: float) -> None:
    """Move the running loop's clock forward: no test depends on how fast a machine is."""
    loop = asyncio.get_running_loop()
    now = loop.time
    loop.time = lambda: now() + seconds  # type: ignore[method-assign]


class FaultyDriver(MemoryDriver):
    """The memory driver with faults before or after its step, used up in order.

    ``lose``: apply, then lose the reply; ``drop``: lose the request; ``refuse``: do not apply;
    ``hold``: apply once `release` is set; ``break``: an error of the driver's own; ``busy``: do
    not apply, and take most of the time to find out.
    """

    def __init__(self) -> None:
        super().__init__(namespace="default")
        self.faults: list[str] = []
        self.calls: list[tuple[str, Fence | None]] = []
        self.release = asyncio.Event()
        self.holding = asyncio.Event()

    async def _step(
        self, name: str, fence: Fence | None, apply: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        self.calls.append((name, fence))
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refuse":
            raise UnavailableError("refused")
        if fault == "drop":
            raise OutcomeUnknownError("no reply")
        if fault == "break":
            raise RuntimeError("password=hunter2")
        if fault == "busy":
            pass_time(0.8 * TIMEOUT)  # As long as a driver may wait for a lock.
            raise UnavailableError("locked by another")
        if fault == "hold":
            self.holding.set()
            await self.release.wait()
        answer = await apply()
        if fault == "lose":
            raise OutcomeUnknownError("no reply")
        return answer

    async def write(
        self,
        scope: Scope,
        register: str,
        data: bytes | None,
        *,
        fence: Fence | None,
        index: Index | None = None,
        if_version: int | None = None,
    ) -> int:
        step = super().write
        answer: int = await self._step(
            "write",
            fence,
            lambda: step(scope, register, data, fence=fence, index=index, if_version=if_version),
        )
        return answer

    async def append(
        self, scope: Scope, log: str, entries: Any, *, fence: Fence | None, present: Any = ()
    ) -> list[Entry]:
        step = super().append
        answer: list[Entry] = await self._step(
            "append", fence, lambda: step(scope, log, entries, fence=fence, present=present)
        )
        return answer

    async def claim(
        self,
        scope: Scope,
        claim_id: str,
        *,
        at_least: int | None = None,
        if_epoch: int | None = None,
        parent: str | None = None,
    ) -> Value:
        step = super().claim
        answer: Value = await self._step(
            "claim",
            None,
            lambda: step(scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent),
        )
        return answer

    async def read(self, scope: Scope, register: str) -> Value:
        step = super().read
        answer: Value = await self._step("read", None, lambda: step(scope, register))
        return answer


def message(name: str, text: str = "") -> ApiMessage:
    return ApiMessage(name, "user", text)


async def ids(backend: DriverBackend) -> list[str]:
    return [stored.id for stored in await backend.persistence.load_api_messages("t")]
