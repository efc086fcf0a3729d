"""A server that is killed and started again under load: nothing acknowledged may be missing.

In the tests of a backend::

    async def test_what_is_done_outlasts_five_kills(server: Server) -> None:
        history = await survive_restarts(server)
        assert history.keeps_data
"""

import asyncio
import contextlib
import math
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

import outlast
from outlast.driver import Scope, Survives
from outlast_contract.expect import Violation
from outlast_contract.harness import Harness, ServerControls, UrlHarness
from outlast_contract.outages import History
from outlast_contract.owners import Event, Owner
from outlast_contract.recording import begun, watched
from outlast_contract.workers import Worker, Workers

_PATIENCE: Final = 60.0
"""Seconds after which owners that did not get on are taken for stuck."""


async def survive_restarts(
    server: ServerControls,
    harness: Harness | None = None,
    *,
    kills: int = 5,
    seed: int = 0,
    owners: int = 6,
    children: int = 1,
    fault: Survives = "server",
    survives: bool | None = None,
    node: Callable[[], int] = lambda: 0,
    timeout: float = 5.0,
) -> History:
    """Kill a server under load and start it again, several times, and judge what came of it.

    Owners claim, write, append, remove and read through the contract the whole time, and write
    through superseded claims too. Each kill waits until all of them got on after the last one;
    every fourth restart waits until a call has failed.

    Args:
        server: One of the test's own.
        harness: Opens its clients; by default the server's URL does.
        kills: How many.
        seed: Of the calls and of the moments.
        owners: How many runs and tasks, by turns, are kept busy from this process.
        children: How many more tasks are, each by a process of its own; none without
            ``harness.url``.
        fault: What such a kill is, in the words of `Capabilities`.
        survives: Judge by this, instead of by what the backend declares.
        node: Gives the node to kill.
        timeout: Of each call, in seconds.

    Returns:
        What was done, for a test to see that it was enough.

    Raises:
        Violation: With the clause that was broken, and the calls that show it.
    """

    async def kill(load: Load, number: int) -> None:
        await load.suffer(server, await asyncio.to_thread(node), until_felt=number % 4 == 1)

    return await survive(
        kill,
        harness or UrlHarness(server.url, **server.options),
        times=kills,
        scopes=[
            Scope("run" if number % 2 else "task", f"owner {number}") for number in range(owners)
        ],
        seed=seed,
        children=children,
        fault=fault,
        survives=survives,
        timeout=timeout,
    )


async def survive(
    disturb: Callable[["Load", int], Awaitable[None]],
    harness: Harness,
    *,
    times: int,
    scopes: Sequence[Scope],
    namespace: str | None = None,
    seed: int = 0,
    children: int = 0,
    fault: Survives = "server",
    survives: bool | None = None,
    timeout: float = 5.0,
) -> History:
    """Disturb a server under load, several times, and judge what came of it.

    As `survive_restarts`, for whatever may be done to a server.

    Args:
        disturb: Called with the load and a number, each time that all owners got on after the last
            time; inside of ``load.disturbed`` calls may fail.
        harness: Opens the clients.
        times: How often.
        scopes: What the owners in this process keep busy.
        namespace: Where these are; one of its own by default.
        seed: As for `survive_restarts`, like the other arguments.
        children: As there.
        fault: As there.
        survives: As there.
        timeout: As there.

    Raises:
        Violation: With the clause that was broken, and the calls that show it.
    """
    namespace = namespace or f"restarts-{secrets.token_hex(6)}"
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                watched(await harness.open_with(namespace, timeout=timeout))
            )
            for _ in range(2)
        ]
        declared = clients[0].capabilities
        history = History(
            timeout,
            fault in declared.data_survives if survives is None else survives,
            fault in declared.fences_survive if survives is None else survives,
        )
        load = Load(history, random.Random(seed))
        for number, scope in enumerate(scopes):
            load.add(
                Owner(
                    clients,
                    scope,
                    seed,
                    removes=number % 4 != 0,
                    writes_stale=history.keeps_fences,
                )
            )
        if harness.url is not None and children:
            workers = await stack.enter_async_context(Workers(harness, namespace, timeout=timeout))
            for number in range(children):
                worker = await workers.spawn()
                child = _Child(worker, f"child {number}", seed, writes_stale=history.keeps_fences)
                load.add(child)
        async with load:
            for number in range(times):
                await load.get_on()
                await disturb(load, number)
            await load.get_on()
        await load.end(clients, seed)
    history.check()
    return history


class _Busy(Protocol):
    """An owner, here or in another process."""

    scope: Scope

    async def steps(self) -> Sequence[Event]:
        """Go on."""
        ...


class _Child:
    """An owner in another process."""

    def __init__(self, worker: Worker, task_id: str, seed: int, *, writes_stale: bool) -> None:
        self.scope = Scope("task", task_id)
        self._worker = worker
        self._order = {"id": task_id, "seed": seed, "writes_stale": writes_stale}

    async def steps(self) -> Sequence[Event]:
        answer = await self._worker.done("own", **self._order)
        return msgspec.convert(answer["events"], list[Event])


class Load:
    """Owners that are at work while it is entered."""

    def __init__(self, history: History, chance: random.Random) -> None:
        self._history = history
        self._random = chance
        self._owners: list[_Busy] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False
        self._back = -math.inf

    def add(self, owner: _Busy) -> None:
        """Before it is entered."""
        self._owners.append(owner)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._keep_busy(owner)) for owner in self._owners]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over = True
        if error is not None:
            for task in self._tasks:
                task.cancel()
        for ending in await asyncio.gather(*self._tasks, return_exceptions=True):
            if error is None and isinstance(ending, BaseException):
                raise ending

    async def _keep_busy(self, owner: _Busy) -> None:
        while not self._is_over:
            self._history.add(await owner.steps())

    async def get_on(self) -> None:
        """Wait until each owner did something, and was fenced, since the server is back."""
        wanted = self._random.randint(10, 40)
        await self._until(
            lambda: all(self._got_on(owner.scope, wanted) for owner in self._owners),
            f"each owner made {wanted} calls, one of them through a superseded claim",
        )

    @contextlib.contextmanager
    def disturbed(self, what: str) -> Generator[float]:
        """While it is entered, calls may fail; gives the moment from which on."""
        gone = time.monotonic()
        outages = self._history.outages
        outages.append((gone, math.inf))
        end = begun(what)
        yield gone
        self._back = time.monotonic()
        outages[-1] = (gone, self._back)
        end()

    async def go_on(self, calls: int) -> None:
        """Wait until the owners made so many calls from now on, whatever came of them."""
        now = time.monotonic()
        await self._until(
            lambda: sum(len(self._history.since(now, one.scope)) for one in self._owners) >= calls,
            f"the owners made {calls} more calls",
        )

    async def suffer(self, server: ServerControls, node: int, *, until_felt: bool) -> None:
        """Kill a node and start it again."""
        with self.disturbed("server killed (SIGKILL), and started again") as gone:
            await asyncio.to_thread(server.kill, node)
            if until_felt:
                what = "a call failed, or none needs the node"
                await self._until(lambda: self._is_felt(gone), what)
            await asyncio.to_thread(server.restart, node)

    async def end(self, clients: Sequence[outlast.Backend], seed: int) -> None:
        """Look at what is left, through claims that settle whatever was not answered."""
        for owner in self._owners:
            last = Owner(clients, owner.scope, seed)
            self._history.add(await last.steps(2))
            # An owner who has found its fence lost begins anew, and may have no former claim.
            if isinstance(owner, Owner) and owner.was_superseded and self._history.keeps_fences:
                self._history.add([await owner.write_stale()])

    def _got_on(self, scope: Scope, wanted: int) -> bool:
        calls = self._history.since(self._back, scope)
        was_fenced = any(event.is_stale and event.reason for event in calls)
        return len(calls) >= wanted and (was_fenced or not self._history.keeps_fences)

    def _is_felt(self, gone: float) -> bool:
        calls = [self._history.since(gone, owner.scope) for owner in self._owners]
        failed = any(event.outcome != "done" and not event.reason for one in calls for event in one)
        return failed or all(len(one) >= 10 for one in calls)

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            for task in self._tasks:
                if task.done():
                    await task  # It has failed: owners do not end by themselves.
            if time.monotonic() > deadline:
                raise Violation(f"after {_PATIENCE:g} s still not so: {what}", "C8")
            await asyncio.sleep(0.005)


__all__ = ["Load", "survive", "survive_restarts"]
