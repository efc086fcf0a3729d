"""Simulated owners: each keeps one task or run busy through the contract and notes what came of it.

Between its writes an owner is superseded now and then, by itself through another client, and goes
on trying to write through its older claims.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal

import msgspec

import outlast
from outlast.contracts.claim import new_claim_id
from outlast.driver import Scope
from outlast.errors import FencedError
from outlast_contract.expect import error_of
from outlast_contract.mutations import (
    MUTATIONS,
    RUN_MUTATIONS,
    TASK_MUTATIONS,
    Image,
    bare,
    claim,
    image,
)

Outcome = Literal["done", "refused", "unknown"]

CANCELLED: Final = asyncio.CancelledError.__name__

_OFTEN: Final = {
    "append_api_message": 12,
    "append_api_messages": 4,
    "append_user_message": 6,
    "save_task_state": 4,
    "update_task_state": 4,
    "put": 6,
}
"""How often a mutation is drawn where the others are drawn once."""


class Event(msgspec.Struct, frozen=True):
    """One call and its outcome.

    Attributes:
        name: A method of `MUTATIONS`, ``claim`` or ``read``.
        mark: What was written.
        epoch: Of the claim that it went through, or that it returned; else 0.
        began: When, by the clock that all processes of a host share.
        outcome: By the error's ``applied``.
        error: Name of the error's class; empty if the call was done.
        is_stale: Whether the claim had been superseded before.
        seen: What a read, or the claim of a run, returned.
        claim_id: Of a claim: the one that was sent.
        holder: Of a refusal as superseded: the claim_id and the epoch that the store held then.
    """

    scope: Scope
    name: str
    began: float
    ended: float
    mark: str = ""
    epoch: int = 0
    outcome: Outcome = "done"
    error: str = ""
    message: str = ""
    reason: str = ""
    is_stale: bool = False
    seen: Image | None = None
    claim_id: str = ""
    holder: tuple[str, int] | None = None

    @property
    def call(self) -> str:
        """What was called, in words."""
        # Without what all marks of an owner begin with.
        mark = f" {self.mark.rpartition('.')[2]}" if self.mark else ""
        name = f" {self.claim_id[:6]}" if self.claim_id else ""
        epoch = f"epoch {self.epoch}" if self.epoch else "no epoch"
        return f"{self.name}{mark}{name} ({epoch}{', superseded' if self.is_stale else ''})"

    @property
    def ending(self) -> str:
        """What came of it, in words."""
        if not self.error:
            return self.outcome
        text = f"{self.outcome}, {self.error}"
        return f"{text} ({self.message})" if self.message else text

    def __str__(self) -> str:
        return f"{self.began:.3f} {self.call}: {self.ending}"


class Owner:
    """Keeps one scope busy, one call after the other; whatever a call ends with, it goes on."""

    def __init__(
        self,
        clients: Sequence[outlast.Backend],
        scope: Scope,
        seed: int,
        *,
        removes: bool = True,
        writes_stale: bool = True,
        cancels: float = 0.0,
        holder: Callable[[Scope], Awaitable[tuple[str, int] | None]] | None = None,
    ) -> None:
        """Own a scope that nobody else touches.

        Args:
            clients: Open ones, on one namespace; each new claim goes through the next of them.
            scope: The task or run.
            seed: Of the calls that are drawn.
            removes: Whether messages are replaced and removed, too, instead of appended only.
            writes_stale: Whether superseded claims go on writing.
            cancels: The share of calls that are cancelled on their way.
            holder: Asks the store past the contracts whose claim it holds: claim_id and epoch.
        """
        self.scope = scope
        self._clients = clients
        self._random = random.Random(f"{scope.id} {seed}")
        self._writes_stale = writes_stale
        self._cancels = cancels
        self._holder = holder
        # Long enough to be found in the bytes of a store.
        self._tag = hashlib.sha256(f"{scope} {seed}".encode()).hexdigest()[:8]
        self._claims: list[tuple[outlast.Backend, outlast.Claim]] = []
        self._claiming: str | None = new_claim_id()
        self._steps = 0
        # What was not answered may still come in; until it is settled, nothing that is read is
        # final (F).
        self._is_settled = True
        self._looks = False
        mutations = RUN_MUTATIONS if scope.kind == "run" else TASK_MUTATIONS
        kept = [
            one.name
            for one in mutations
            if removes or not (one.removes or one.name.startswith("save_api"))
        ]
        self._names = [name for name in kept for _ in range(_OFTEN.get(name, 1))]

    async def steps(self, count: int = 1) -> list[Event]:
        """Make so many calls."""
        return [await self._step() for _ in range(count)]

    async def _step(self) -> Event:
        self._steps += 1
        if self._claiming is None and self._steps % 16 == 0:
            self._claiming = new_claim_id()
        if self._claiming is not None:
            return await self._claim(self._claiming)
        if self._writes_stale and self._steps % 5 == 0 and self.was_superseded:
            return await self.write_stale()
        if self._is_settled and (self._looks or self._steps % 9 == 0):
            return await self._read()
        name = self._random.choice(self._names)
        return await self._write(name, *self._claims[-1])

    @property
    def was_superseded(self) -> bool:
        """Whether `write_stale` has a claim to write through."""
        return len(self._claims) > 1

    async def write_stale(self) -> Event:
        """Write through one of the claims that were superseded."""
        name = self._random.choice(self._names)
        return await self._write(name, *self._random.choice(self._claims[:-1]), is_stale=True)

    async def _claim(self, claim_id: str) -> Event:
        """Supersede oneself; repeated with the same claim_id until it is answered (F10)."""
        client = self._clients[self._steps % len(self._clients)]
        taken: list[outlast.Claim] = []

        async def take() -> None:
            taken.append(await claim(client, self.scope, claim_id=claim_id))

        event = await self._noted("claim", take(), claim_id=claim_id)
        if not taken:
            return event
        self._claims.append((client, taken[0]))
        self._claiming, self._is_settled, self._looks = None, True, True
        seen = None
        if self.scope.kind == "run":
            seen = Image(checkpoint=bare(taken[0].checkpoint))
        return msgspec.structs.replace(event, epoch=taken[0].epoch, seen=seen)

    async def _read(self) -> Event:
        self._looks = False
        found: list[Image] = []

        async def look() -> None:
            found.append(await image(self._claims[-1][0], self.scope))

        event = await self._noted("read", look(), epoch=self._claims[-1][1].epoch)
        return msgspec.structs.replace(event, seen=found[0] if found else None)

    async def _write(
        self, name: str, client: outlast.Backend, owned: outlast.Claim, *, is_stale: bool = False
    ) -> Event:
        mark = f"{self._tag}.{self._steps}"
        call = MUTATIONS[name].apply(client, self.scope.id, mark, owned)
        event = await self._noted(name, call, mark=mark, epoch=owned.epoch, is_stale=is_stale)
        if is_stale:
            return event
        if event.outcome == "unknown":
            self._is_settled = False
        elif event.outcome == "done" and not self._is_settled:
            self._is_settled, self._looks = True, True
        if event.reason:
            # A claim that came late took over, or the store lost fences: begin anew.
            if self._holder is not None:
                event = msgspec.structs.replace(event, holder=await self._holder(self.scope))
            self._claims.clear()
            self._claiming = new_claim_id()
        return event

    async def _noted(self, name: str, call: Awaitable[object], **known: Any) -> Event:
        began = time.monotonic()
        task = asyncio.ensure_future(error_of(call))
        if self._random.random() < self._cancels:
            for _ in range(self._random.randint(0, 20)):
                await asyncio.sleep(0)
            await asyncio.wait([task], timeout=self._random.choice((0, 0.001, 0.01)))
            task.cancel()
        await asyncio.wait([task])
        event = Event(self.scope, name, began, time.monotonic(), **known)
        if task.cancelled():
            return msgspec.structs.replace(event, outcome="unknown", error=CANCELLED)
        error = task.result()
        if error is None:
            return event
        return msgspec.structs.replace(
            event,
            outcome="unknown" if error.applied is None else "refused",
            error=type(error).__name__,
            message=str(error),
            reason=error.reason if isinstance(error, FencedError) else "",
        )


__all__ = ["CANCELLED", "Event", "Outcome", "Owner"]
