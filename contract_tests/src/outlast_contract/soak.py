"""Random owners behind a network that fails at random: all of it drawn from a seed.

A round lasts some hundred calls. A round that breaks a clause is tried again with fewer owners,
fewer calls and fewer kinds of faults, as long as it still breaks one.
"""

import asyncio
import contextlib
import dataclasses
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import outlast
from outlast.contracts import DriverBackend
from outlast.driver import Scope
from outlast_contract.expect import NotRun, Violation
from outlast_contract.faults import BROKEN, BlackHole, Delay, Fault, Hold, Slow
from outlast_contract.faults.network import Network
from outlast_contract.harness import Harness
from outlast_contract.outages import History
from outlast_contract.owners import Owner
from outlast_contract.tampered import Failures, TamperedDriver

PREFIX: Final = "oc-soak-"
"""Of all namespaces."""
TIMEOUT: Final = 3.0
"""Seconds that a call may take."""
_STRUCK: Final[dict[str, Callable[[], Fault]]] = {
    **{name: lambda fault=fault: fault for name, fault in BROKEN.items()},  # type: ignore[misc]
    "late": lambda: Delay(request=0.05, reply=0.05),
    "slow": lambda: Slow(seconds=0.1),
}
KINDS: Final = (*_STRUCK, "held and released late", "silence", "all connections broken", "away")
"""What can happen to a network."""
KINDS_WITHIN: Final = ("lost reply", "lost request", "refused")
"""What can happen between the contracts and a driver that no network reaches."""


@dataclass(frozen=True)
class Round:
    """What one round does; the same again with the same store.

    Attributes:
        seed: Of the owners' calls and of the faults.
        owners: How many tasks and runs, by turns, are kept busy.
        calls: How many calls each makes.
        kinds: Which faults are drawn from; all by default.
        cancels: The share of calls that are cancelled.
    """

    seed: int
    owners: int = 6
    calls: int = 80
    kinds: tuple[str, ...] = ()
    cancels: float = 0.05

    @property
    def options(self) -> str:
        """As arguments of the command."""
        parts = [f"--seed {self.seed}", f"--owners {self.owners}", f"--calls {self.calls}"]
        parts += [f"--fault {kind!r}" for kind in self.kinds]
        if self.cancels != Round.cancels:
            parts.append(f"--cancels {self.cancels:g}")
        return " ".join(parts)


@dataclass(frozen=True)
class Finding:
    """A round that broke a clause.

    Attributes:
        round: As short as it could be made.
        broken: The clause, and the calls that show it.
        injected: What went wrong with the network, and when.
    """

    round: Round
    broken: Violation
    injected: tuple[str, ...]


async def soak(
    harness: Harness,
    first: Round,
    *,
    seconds: float,
    told: Callable[[Round, History], object] = lambda one, history: None,
) -> Finding | None:
    """Run rounds with growing seeds until the time is over or a clause is broken.

    Args:
        harness: Opens the clients; at least one round is run.
        first: The first round.
        seconds: When to stop.
        told: Called after each round that broke nothing.

    Returns:
        What was found, made short.
    """
    began = time.monotonic()
    now = first
    while True:
        history, injected, broken = await run_round(harness, now)
        if broken is not None:
            return await shorten(harness, Finding(now, broken, injected))
        told(now, history)
        if time.monotonic() - began >= seconds:
            return None
        now = dataclasses.replace(now, seed=now.seed + 1)


async def shorten(harness: Harness, found: Finding, *, attempts: int = 3) -> Finding:
    """A smaller round that breaks a clause, too, if there is one within some attempts."""
    for smaller in _smaller(found.round):
        for _ in range(attempts):
            _, injected, broken = await run_round(harness, smaller)
            if broken is not None:
                return await shorten(harness, Finding(smaller, broken, injected))
    return found


def _smaller(one: Round) -> Iterator[Round]:
    if one.owners > 1:
        yield dataclasses.replace(one, owners=one.owners // 2)
    if one.calls > 8:
        yield dataclasses.replace(one, calls=one.calls // 2)
    if one.cancels:
        yield dataclasses.replace(one, cancels=0.0)
    if not one.kinds:
        yield from (dataclasses.replace(one, kinds=(kind,)) for kind in (*KINDS, *KINDS_WITHIN))


async def run_round(
    harness: Harness, one: Round
) -> tuple[History, tuple[str, ...], Violation | None]:
    """What was done, what was injected, and what was broken, if anything."""
    await harness.start()
    namespace = f"{PREFIX}{secrets.token_hex(6)}"
    broken: Violation | None = None
    try:
        async with contextlib.AsyncExitStack() as stack:
            saboteur = await _saboteur(harness, namespace, one, stack)
            history = History(TIMEOUT, keeps_data=True, keeps_fences=True)
            saboteur.history = history
            owners = [
                Owner(
                    saboteur.clients,
                    Scope("run" if number % 2 else "task", f"owner {number}"),
                    one.seed,
                    removes=number % 4 != 0,
                    cancels=one.cancels,
                )
                for number in range(one.owners)
            ]
            work = asyncio.gather(*(_keep_busy(owner, one.calls, history) for owner in owners))
            await saboteur.work(work)
            for owner in owners:
                last = Owner([saboteur.plain], owner.scope, one.seed)
                history.add(await last.steps(2))
            try:
                history.check()
            except Violation as error:
                broken = error
    finally:
        with contextlib.suppress(Exception):
            await harness.wipe(namespace)
        await harness.stop()
    return history, tuple(saboteur.injected), broken


async def _keep_busy(owner: Owner, calls: int, history: History) -> None:
    for _ in range(calls):
        history.add(await owner.steps())


class _Saboteur:
    """Lets one thing after the other go wrong while the owners are at work.

    Attributes:
        plain: A client that nothing happens to.
        clients: Those of the owners.
        injected: What went wrong, in words.
    """

    kinds: tuple[str, ...]
    rest = 0.2
    """Seconds without a fault, at most."""

    def __init__(self, one: Round, plain: outlast.Backend) -> None:
        self.plain = plain
        self.clients: list[outlast.Backend] = []
        self.injected: list[str] = []
        self.history = History(TIMEOUT, keeps_data=True, keeps_fences=True)
        self._random = random.Random(f"faults {one.seed}")
        self._chosen = tuple(kind for kind in self.kinds if not one.kinds or kind in one.kinds)

    async def work(self, work: "asyncio.Future[Any]") -> None:
        """Go on until the owners are done."""
        try:
            while not work.done() and self._chosen:
                kind = self._random.choice(self._chosen)
                began = time.monotonic()
                # As long as it lasts, failures are to be expected.
                self.history.outages.append((began, float("inf")))
                try:
                    await self._inject(kind, work)
                finally:
                    self.history.outages[-1] = (began, time.monotonic())
                    self.injected.append(f"{began:.3f} to {time.monotonic():.3f}: {kind}")
                await _either(asyncio.sleep(self._random.uniform(0, self.rest)), work)
        finally:
            await work

    async def _inject(self, kind: str, work: "asyncio.Future[Any]") -> None:
        raise NotImplementedError(kind)


class _InNetwork(_Saboteur):
    kinds = KINDS

    def __init__(self, one: Round, plain: outlast.Backend, network: Network) -> None:
        super().__init__(one, plain)
        self._network = network

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
                self.history.late_since = min(self.history.late_since, time.monotonic())
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


class _Within(_Saboteur):
    """For stores that no network reaches: faults between the contracts and the driver."""

    kinds = KINDS_WITHIN
    rest = 0.01

    def __init__(self, one: Round, plain: outlast.Backend) -> None:
        super().__init__(one, plain)
        self.failures: Failures | None = None
        self._passed = asyncio.Event()

    async def step(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """For `TamperedDriver`."""
        try:
            return await (call() if self.failures is None else self.failures(name, call))
        finally:
            if self.failures is not None and not self.failures.left:
                self._passed.set()

    async def _inject(self, kind: str, work: "asyncio.Future[Any]") -> None:
        # A number of calls, not a time: on a store in memory the two would hardly ever meet.
        self.failures = Failures(kind, self._random.choice((1, 2, 4, 16)))
        self._passed.clear()
        await _either(self._passed.wait(), work)
        self.failures = None


async def _saboteur(
    harness: Harness, namespace: str, one: Round, stack: contextlib.AsyncExitStack
) -> _Saboteur:
    plain = await stack.enter_async_context(await harness.open(namespace))
    try:
        network = await stack.enter_async_context(Network(harness))
    except NotRun:
        within = _Within(one, plain)
        for _ in range(2):
            inner = await stack.enter_async_context(await harness.open(namespace))
            if not isinstance(inner, DriverBackend):
                within.clients.append(inner)
                continue
            driver = TamperedDriver(inner.driver, within.step)
            disturbed = DriverBackend(driver, namespace=namespace, timeout=TIMEOUT)
            within.clients.append(await stack.enter_async_context(disturbed))
        return within
    saboteur = _InNetwork(one, plain, network)
    for _ in range(2):
        client = await network.make(namespace, timeout=TIMEOUT)
        saboteur.clients.append(await stack.enter_async_context(client))
    return saboteur


async def _either(event: Awaitable[Any], work: "asyncio.Future[Any]") -> None:
    """Wait for an event, or for the end of the work."""
    waiting = asyncio.ensure_future(event)
    await asyncio.wait([waiting, work], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    await asyncio.wait([waiting])


__all__ = ["KINDS", "KINDS_WITHIN", "PREFIX", "Finding", "Round", "run_round", "shorten", "soak"]
