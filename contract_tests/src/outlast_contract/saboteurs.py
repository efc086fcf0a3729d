"""What goes wrong while random owners are at work, drawn from a seed."""

import abc
import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import outlast
from outlast.contracts import DriverBackend
from outlast.driver import Scope
from outlast_contract.expect import NotRun
from outlast_contract.faults import BROKEN, BlackHole, Delay, Fault, Hold, Slow
from outlast_contract.faults.network import Network
from outlast_contract.harness import Harness
from outlast_contract.outages import History
from outlast_contract.tampered import Failures, TamperedDriver

TIMEOUT: Final = 3.0
"""Seconds that a call may take."""
_PATIENCE: Final = 30.0
"""The same where no network is silent: a busy machine must not take attempts away."""
_STRUCK: Final[dict[str, Callable[[], Fault]]] = {
    **{name: lambda fault=fault: fault for name, fault in BROKEN.items()},  # type: ignore[misc]
    "late": lambda: Delay(request=0.05, reply=0.05),
    "slow": lambda: Slow(seconds=0.1),
}
KINDS: Final = (*_STRUCK, "held and released late", "silence", "all connections broken", "away")
"""What can happen to a network."""
KINDS_WITHIN: Final = ("lost reply", "lost request", "refused")
"""What can happen between the contracts and a driver that no network reaches."""


class Saboteur(abc.ABC):
    """Lets one thing after the other go wrong while the owners are at work.

    Attributes:
        injected: What went wrong: when it began, when it ended, and in words.
    """

    def __init__(self, seed: int, history: History) -> None:
        """Tell ``history`` when failures are to be expected."""
        self.injected: list[tuple[float, float, str]] = []
        self._seed = seed
        self._history = history

    @abc.abstractmethod
    async def clients(
        self, scope: Scope, stack: contextlib.AsyncExitStack
    ) -> Sequence[outlast.Backend]:
        """The clients of the owner of a scope, open until ``stack`` is left."""

    @abc.abstractmethod
    async def work(self, work: "asyncio.Future[Any]") -> None:
        """Go on until the owners are done."""


class InNetwork(Saboteur):
    """Faults of the network before the store, one after the other."""

    def __init__(
        self, seed: int, history: History, network: Network, namespace: str, kinds: Sequence[str]
    ) -> None:
        """Strike an entered network; all owners share two clients."""
        super().__init__(seed, history)
        self._network = network
        self._namespace = namespace
        self._random = random.Random(f"faults {seed}")
        self._chosen = [kind for kind in KINDS if not kinds or kind in kinds]
        self._clients: list[outlast.Backend] = []

    async def clients(
        self, scope: Scope, stack: contextlib.AsyncExitStack
    ) -> Sequence[outlast.Backend]:
        while len(self._clients) < 2:
            client = await self._network.make(self._namespace, timeout=TIMEOUT)
            self._clients.append(await stack.enter_async_context(client))
        return self._clients

    async def work(self, work: "asyncio.Future[Any]") -> None:
        outages = self._history.outages
        try:
            while not work.done() and self._chosen:
                kind = self._random.choice(self._chosen)
                began = time.monotonic()
                # As long as it lasts, failures are to be expected.
                outages.append((began, float("inf")))
                try:
                    await self._inject(kind, work)
                finally:
                    outages[-1] = (began, time.monotonic())
                    self.injected.append((*outages[-1], kind))
                await _either(asyncio.sleep(self._random.uniform(0, 0.2)), work)
        finally:
            await work

    async def _inject(self, kind: str, work: "asyncio.Future[Any]") -> None:
        script = self._network.script
        pause = self._random.uniform(0.02, 0.3)
        if kind in _STRUCK:
            times = self._random.choice((1, 1, 2, 5))
            shot = script.arm(_STRUCK[kind](), at=self._random.randint(1, 12), times=times)
            await _either(shot.struck(), work)
            await _either(asyncio.sleep(pause), work)
            script.disarm()
        elif kind == "held and released late":
            hold = Hold(delivered=self._random.random() < 0.3)
            script.arm(hold, at=self._random.randint(1, 12))
            await _either(hold.arrived(), work)
            script.disarm()
            await _either(asyncio.sleep(self._random.choice((pause, 1.2 * TIMEOUT))), work)
            if hold.has_arrived:
                self._history.late_since = min(self._history.late_since, time.monotonic())
                await hold.release()
        elif kind == "silence":
            script.arm(BlackHole(delivered=self._random.random() < 0.5), times=None)
            await _either(asyncio.sleep(pause), work)
            script.disarm()
            await self._network.break_all()
        elif kind == "all connections broken":
            await self._network.break_all(reset=self._random.random() < 0.5)
        else:
            await self._network.go_down()
            await _either(asyncio.sleep(pause), work)
            await self._network.come_back()


class Within(Saboteur):
    """For stores that no network reaches: faults between the contracts and the driver.

    Each owner's calls meet faults of its own, addressed by their count, so that a seed means the
    same faults however the owners take turns.
    """

    def __init__(
        self,
        seed: int,
        history: History,
        inner: Sequence[outlast.Backend],
        namespace: str,
        kinds: Sequence[str],
    ) -> None:
        """Stand before two open clients."""
        super().__init__(seed, history)
        history.timeout = _PATIENCE
        self._inner = inner
        self._namespace = namespace
        self._chosen = [kind for kind in KINDS_WITHIN if not kinds or kind in kinds]

    async def clients(
        self, scope: Scope, stack: contextlib.AsyncExitStack
    ) -> Sequence[outlast.Backend]:
        if not self._chosen:
            return self._inner
        struck = _Struck(self, scope)
        found: list[outlast.Backend] = []
        for inner in self._inner:
            if not isinstance(inner, DriverBackend):
                found.append(inner)
                continue
            driver = TamperedDriver(inner.driver, struck)
            client = DriverBackend(driver, namespace=self._namespace, timeout=_PATIENCE)
            found.append(await stack.enter_async_context(client))
        return found

    async def work(self, work: "asyncio.Future[Any]") -> None:
        await work

    def chance(self, scope: Scope) -> random.Random:
        """What the faults of an owner are drawn from."""
        return random.Random(f"faults {self._seed} {scope.kind} {scope.id}")

    def draw(self, chance: random.Random) -> Failures:
        """The next failures of an owner's calls."""
        # Of five in a row a call knows no way out: that many attempts it makes.
        count = chance.choice((1, 1, 2, 4, 6))
        return Failures(chance.choice(self._chosen), count, after=chance.randint(0, 12))

    def struck(self, what: str) -> None:
        """A call met a fault."""
        now = time.monotonic()
        self._history.outages.append((now, now))
        self.injected.append((now, now, what))


class _Struck:
    """A step of `TamperedDriver` that fails calls of one owner."""

    def __init__(self, saboteur: Within, scope: Scope) -> None:
        self._saboteur = saboteur
        self._scope = scope
        self._random = saboteur.chance(scope)
        self._failures = saboteur.draw(self._random)

    async def __call__(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        failures, before = self._failures, self._failures.failed
        try:
            return await failures(name, call)
        finally:
            if failures.failed > before:
                self._saboteur.struck(f"{failures.how} of {name}, {self._scope.id}")
            if not failures.left and failures is self._failures:
                self._failures = self._saboteur.draw(self._random)


async def saboteur(
    harness: Harness,
    namespace: str,
    seed: int,
    kinds: Sequence[str],
    history: History,
    stack: contextlib.AsyncExitStack,
) -> Saboteur:
    """One for the store of a harness: in its network, or else above its driver."""
    try:
        network = await stack.enter_async_context(Network(harness))
    except NotRun:
        inner = [await stack.enter_async_context(await harness.open(namespace)) for _ in range(2)]
        return Within(seed, history, inner, namespace, kinds)
    return InNetwork(seed, history, network, namespace, kinds)


async def _either(event: Awaitable[Any], work: "asyncio.Future[Any]") -> None:
    """Wait for an event, or for the end of the work."""
    waiting = asyncio.ensure_future(event)
    await asyncio.wait([waiting, work], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await asyncio.wait([waiting])


__all__ = ["KINDS", "KINDS_WITHIN", "TIMEOUT", "Saboteur", "saboteur"]
