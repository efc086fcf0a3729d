"""A driver between the contracts and a real driver: counts calls, loses replies, fails on purpose.

It stands where a network stands for a server, so that what must happen after a lost reply can be
checked against the real driver below.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from outlast.driver import (
    Capabilities,
    Driver,
    Entry,
    Fence,
    Index,
    Page,
    Scope,
    ScopeKind,
    SweepPage,
    Value,
    Where,
)
from outlast.errors import OutcomeUnknownError, UnavailableError
from outlast_contract.recording import injected

Step = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]


class TamperedDriver(Driver):
    """Passes calls on to another driver through ``step``.

    Attributes:
        calls: The names of the calls so far.
    """

    def __init__(self, inner: Driver, step: Step | None = None) -> None:
        """Stand before ``inner``, which stays open when this one is closed."""
        self._inner = inner
        self._step = step or _pass_on
        self.name: str = inner.name
        self.capabilities: Capabilities = inner.capabilities
        self.calls: list[str] = []

    async def _call(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        self.calls.append(name)
        return await self._step(name, call)

    async def setup(self, *, create: bool) -> None:
        """It is set up already."""

    async def ping(self) -> None:
        await self._call("ping", self._inner.ping)

    async def aclose(self) -> None:
        """The real driver belongs to another client."""

    async def claim(
        self,
        scope: Scope,
        claim_id: str,
        *,
        at_least: int | None = None,
        if_epoch: int | None = None,
        parent: str | None = None,
    ) -> Value:
        found: Value = await self._call(
            "claim",
            lambda: self._inner.claim(
                scope, claim_id, at_least=at_least, if_epoch=if_epoch, parent=parent
            ),
        )
        return found

    async def read(self, scope: Scope, register: str) -> Value:
        found: Value = await self._call("read", lambda: self._inner.read(scope, register))
        return found

    async def was_swept(self, scope: Scope, epoch: int) -> bool:
        answer: bool = await self._call("read", lambda: self._inner.was_swept(scope, epoch))
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
        version: int = await self._call(
            "write",
            lambda: self._inner.write(
                scope, register, data, fence=fence, index=index, if_version=if_version
            ),
        )
        return version

    async def load(self, scope: Scope, log: str, *, last: int | None = None) -> list[Entry]:
        found: list[Entry] = await self._call(
            "load", lambda: self._inner.load(scope, log, last=last)
        )
        return found

    async def append(
        self,
        scope: Scope,
        log: str,
        entries: Sequence[Entry],
        *,
        fence: Fence | None,
        present: Sequence[str] = (),
    ) -> list[Entry]:
        known: list[Entry] = await self._call(
            "append",
            lambda: self._inner.append(scope, log, entries, fence=fence, present=present),
        )
        return known

    async def replace(
        self, scope: Scope, log: str, entries: Sequence[Entry], *, fence: Fence | None
    ) -> None:
        await self._call("replace", lambda: self._inner.replace(scope, log, entries, fence=fence))

    async def remove(self, scope: Scope, *, fence: Fence | None) -> None:
        await self._call("remove", lambda: self._inner.remove(scope, fence=fence))

    async def scan(self, kind: ScopeKind, *, where: Where, after: str | None, limit: int) -> Page:
        page: Page = await self._call(
            "scan", lambda: self._inner.scan(kind, where=where, after=after, limit=limit)
        )
        return page

    async def sweep(
        self, *, older_than: float, limit: int, dry_run: bool, after: str | None
    ) -> SweepPage:
        page: SweepPage = await self._call(
            "sweep",
            lambda: self._inner.sweep(
                older_than=older_than, limit=limit, dry_run=dry_run, after=after
            ),
        )
        return page


async def _pass_on(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


MUTATING = frozenset({"claim", "write", "append", "replace", "remove"})
"""The driver calls that change something."""


class Failures:
    """A step that fails the next calls in a given way, and lets all others through.

    Attributes:
        how: As given.
        after: How many calls it still lets through before.
        left: How many calls it still fails.
        failed: How many it has failed.
    """

    def __init__(self, how: str, count: int, *, only: str | None = None, after: int = 0) -> None:
        """Fail ``count`` mutating calls (or calls of the one name ``only``).

        Args:
            how: ``lost reply``: applied, but not answered; ``lost request``: not applied, and not
                answered; ``refused``: certainly not applied; ``broken``: an error of another kind.
            count: How many.
            only: The name of a driver call.
            after: How many of those calls pass before the first that fails.
        """
        self.how: str = how
        self.after: int = after
        self._only = only
        self.left: int = count
        self.failed: int = 0

    async def __call__(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        is_meant = name == self._only if self._only else name in MUTATING
        if not is_meant or not self.left:
            return await call()
        if self.after:
            self.after -= 1
            return await call()
        self.left -= 1
        self.failed += 1
        injected(f"{self.how} (driver)")
        if self.how == "lost reply":
            await call()
        if self.how == "refused":
            raise UnavailableError("the suite lets this call fail")
        if self.how == "broken":
            raise RuntimeError("the suite lets this call fail with a foreign error")
        raise OutcomeUnknownError("the suite loses this call's reply")


__all__ = ["MUTATING", "Failures", "TamperedDriver"]
