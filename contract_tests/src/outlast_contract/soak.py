"""Random owners behind a network that fails at random: all of it drawn from a seed.

A round lasts some hundred calls. A round that breaks a clause is tried again with fewer owners,
fewer calls and fewer kinds of faults, as long as it still breaks one.
"""

import asyncio
import contextlib
import dataclasses
import functools
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from outlast.driver import Scope
from outlast_contract.expect import Violation
from outlast_contract.harness import Harness
from outlast_contract.outages import History
from outlast_contract.owners import Owner
from outlast_contract.readout import holder, read_out
from outlast_contract.saboteurs import KINDS, KINDS_WITHIN, TIMEOUT, saboteur

PREFIX: Final = "oc-soak-"
"""Of all namespaces."""


@dataclass(frozen=True)
class Round:
    """What one round does; the same again with the same store.

    Attributes:
        seed: Of the owners' calls and of the faults.
        owners: How many tasks and runs, by turns, are kept busy.
        calls: How many calls each makes.
        kinds: Which faults are drawn from; all by default.
        cancels: The share of calls that are cancelled.
        first: The number of the first owner; what an owner does depends on seed and number.
    """

    seed: int
    owners: int = 6
    calls: int = 80
    kinds: tuple[str, ...] = ()
    cancels: float = 0.05
    first: int = 0

    @property
    def options(self) -> str:
        """As arguments of the command."""
        parts = [f"--seed {self.seed}", f"--owners {self.owners}", f"--calls {self.calls}"]
        if self.first:
            parts.append(f"--first-owner {self.first}")
        parts += [f"--fault {kind!r}" for kind in self.kinds]
        if self.cancels != Round.cancels:
            parts.append(f"--cancels {self.cancels:g}")
        return " ".join(parts)

    @property
    def scopes(self) -> list[Scope]:
        """What its owners own."""
        numbers = range(self.first, self.first + self.owners)
        return [Scope("run" if number % 2 else "task", f"owner {number}") for number in numbers]


@dataclass(frozen=True)
class Finding:
    """A round that broke a clause.

    Attributes:
        round: As short as it could be made.
        broken: The clause, and the calls that show it.
        injected: What went wrong with the network: when it began, when it ended, and in words.
        history: The calls of all owners.
    """

    round: Round
    broken: Violation
    injected: tuple[tuple[float, float, str], ...]
    history: History


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
            return await shorten(harness, Finding(now, broken, injected, history))
        told(now, history)
        if time.monotonic() - began >= seconds:
            return None
        now = dataclasses.replace(now, seed=now.seed + 1)


async def shorten(harness: Harness, found: Finding, *, attempts: int = 3) -> Finding:
    """A smaller round that breaks a clause, too, if there is one within some attempts."""
    for smaller in _smaller(found):
        for _ in range(attempts):
            history, injected, broken = await run_round(harness, smaller)
            if broken is not None:
                return await shorten(harness, Finding(smaller, broken, injected, history))
    return found


def _smaller(found: Finding) -> Iterator[Round]:
    one = found.round
    if found.history.broken is not None:
        scope, number = found.history.broken
        owner = one.first + one.scopes.index(scope)
        calls = min(one.calls, number + 1)
        if one.owners > 1:
            yield dataclasses.replace(one, owners=1, first=owner, calls=calls)
        if calls < one.calls:
            yield dataclasses.replace(one, calls=calls)
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
) -> tuple[History, tuple[tuple[float, float, str], ...], Violation | None]:
    """What was done, what was injected, and what was broken, if anything."""
    await harness.start()
    namespace = f"{PREFIX}{secrets.token_hex(6)}"
    history = History(TIMEOUT, keeps_data=True, keeps_fences=True)
    broken: Violation | None = None
    try:
        async with contextlib.AsyncExitStack() as stack:
            plain = await stack.enter_async_context(await harness.open(namespace))
            nemesis = await saboteur(harness, namespace, one.seed, one.kinds, history, stack)
            async with contextlib.AsyncExitStack() as disturbed:
                owners: list[Owner] = []
                for number, scope in enumerate(one.scopes, one.first):
                    owner = Owner(
                        await nemesis.clients(scope, disturbed),
                        scope,
                        one.seed,
                        removes=number % 4 != 0,
                        cancels=one.cancels,
                        holder=functools.partial(holder, plain),
                    )
                    owners.append(owner)
                work = asyncio.gather(*(_keep_busy(owner, one.calls, history) for owner in owners))
                await nemesis.work(work)
            try:
                await read_out(harness, namespace, one.seed, one.scopes, history)
            except Violation as error:
                broken = error
    finally:
        with contextlib.suppress(Exception):
            await harness.wipe(namespace)
        await harness.stop()
    return history, tuple(nemesis.injected), broken


async def _keep_busy(owner: Owner, calls: int, history: History) -> None:
    for _ in range(calls):
        history.add(await owner.steps())


__all__ = ["KINDS", "KINDS_WITHIN", "PREFIX", "Finding", "Round", "run_round", "shorten", "soak"]
