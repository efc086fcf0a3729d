"""A fault at the first exchange of a call, then at its second, and so on, as many as it has."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from types import TracebackType
from typing import Final

import outlast
from outlast_contract.engine import Context
from outlast_contract.expect import NotRun
from outlast_contract.faults.kinds import BROKEN
from outlast_contract.faults.proxy import Fault, Script, Shot

Matches = bytes | Callable[[bytes], bool]

_FEW: Final = ("cut", "reply reset")


class Strike:
    """One fault at one exchange of the call that is made within ``with strike:``.

    Attributes:
        what: Fault and place in words.
        was_struck: Whether the call had an exchange there.
    """

    def __init__(self, script: Script, fault: Fault, at: int, what: str, matches: Matches) -> None:
        """For `under_faults`."""
        self.what: str = what
        self._script, self._fault, self._at, self._matches = script, fault, at, matches
        self._shot: Shot | None = None

    @property
    def was_struck(self) -> bool:
        return self._shot is not None and bool(self._shot.hits)

    @property
    def shot(self) -> Shot:
        """To wait for it."""
        assert self._shot is not None
        return self._shot

    def __enter__(self) -> Shot:
        self._shot = self._script.arm(self._fault, at=self._at, matches=self._matches)
        return self._shot

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._script.disarm()


def breaking(context: Context) -> Mapping[str, Fault]:
    """The faults that break a connection, as many as the settings ask for."""
    return BROKEN if context.settings.thorough else {name: BROKEN[name] for name in _FEW}


Body = Callable[[outlast.Backend, Iterator[Strike]], Awaitable[None]]
"""What is done through a client that is struck: one call within each strike."""


async def under_faults(
    context: Context,
    body: Body,
    faults: Mapping[str, Fault] | None = None,
    *,
    matches: Matches = b"",
) -> None:
    """Run ``body`` for every fault that breaks a connection, or the given ones, side by side, each
    with a client behind a network of its own.

    Args:
        context: Of the check.
        body: Makes the calls that are struck.
        faults: By name.
        matches: Which exchanges count, as for `Script.arm`.

    Raises:
        NotRun: The calls do not go through the network.
    """
    chosen = breaking(context) if faults is None else faults
    first = 12 if context.settings.thorough else 4
    async with asyncio.TaskGroup() as group:
        for name, fault in chosen.items():
            network = await context.network()
            client = await context.open_through(network)
            found = strikes(network.script, name, fault, first, matches)
            group.create_task(_run(body(client, found)))


async def _run(body: Awaitable[None]) -> None:
    await body


def strikes(
    script: Script, name: str, fault: Fault, first: int, matches: Matches = b""
) -> Iterator[Strike]:
    """A fault at the exchanges of a call, which the caller makes anew within each strike.

    At every one of the first few, then at ever fewer. In the last round nothing is struck: the call
    had no exchange any more.
    """
    for place in places(first):
        before = script.calls
        strike = Strike(script, fault, place, f"exchange {place} struck ({name})", matches)
        yield strike
        if script.calls == before:
            raise NotRun("the client's requests do not come through its endpoints")
        if not strike.was_struck:
            return


def places(first: int) -> Iterator[int]:
    """Numbers of exchanges: each of the first ones, then ever fewer."""
    place = 0
    while True:
        place = place + 1 if place < first else place + place // 2
        yield place


__all__ = ["Body", "Strike", "breaking", "places", "strikes", "under_faults"]
