"""What the tests of the agent runtime share: virtual time, and a store that fails as told."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from outlast import PersistenceManager, StreamCheckpointStore, open_backend


class _Selector(selectors.DefaultSelector):
    """Never sleeps: time passes by itself when there is nothing else to do."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("everything waits, and no timer is set")
        if timeout > 0:
            self.now += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing else is to be done."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run_virtually(main: Coroutine[Any, Any, Any]) -> Any:
    """Run ``main`` to its end, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now() -> float:
    """Seconds of the loop's clock."""
    return asyncio.get_running_loop().time()


class Watched:
    """A real persistence or checkpoint store with an eye on its calls.

    Attributes:
        calls: Name, time and arguments of each call of a write, in order.
        before: Awaited before each write, with its name; raising stands for a store that fails.
        after: Awaited after it; raising stands for an answer that was lost.
        most_in_flight: Writes of one name under way at once.
    """

    def __init__(self, inner: PersistenceManager | StreamCheckpointStore) -> None:
        self._inner = inner
        self.calls: list[tuple[str, float, tuple[Any, ...]]] = []
        self.before: Callable[[str], Awaitable[None]] | None = None
        self.after: Callable[[str], Awaitable[None]] | None = None
        self.in_flight: dict[str, int] = {}
        self.most_in_flight = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not name.startswith(("save_", "append_", "update_", "delete", "put")):
            return method

        async def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, now(), arguments))
            self.in_flight[name] = self.in_flight.get(name, 0) + 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight[name])
            try:
                if self.before is not None:
                    await self.before(name)
                result = await method(*arguments, **options)
                if self.after is not None:
                    await self.after(name)
                return result
            finally:
                self.in_flight[name] -= 1

        return call

    def times(self, name: str) -> list[float]:
        """When writes of this name began."""
        return [when for called, when, _ in self.calls if called == name]


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test over a memory backend of its own, in virtual time: ``test(backend, store)``."""

    def run() -> None:
        async def main() -> None:
            async with open_backend("memory://") as backend:
                await test(backend, Watched(backend.persistence))

        run_virtually(main())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run
