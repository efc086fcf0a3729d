"""What the store holds in the end, read past the contracts: it settles what was not answered."""

import re
from collections.abc import Iterable

import outlast
from outlast.contracts import DriverBackend
from outlast.driver import PRIMARY, Scope
from outlast_contract.expect import NotRun, Violation
from outlast_contract.harness import Harness
from outlast_contract.judge import marks_of
from outlast_contract.mutations import Image
from outlast_contract.outages import History
from outlast_contract.owners import Owner


async def holder(backend: outlast.Backend, scope: Scope) -> tuple[str, int] | None:
    """The claim_id and the epoch that the store holds, or ``None`` if that cannot be seen."""
    if not isinstance(backend, DriverBackend):
        return None
    try:
        found = await backend.driver.read(scope, PRIMARY[scope.kind])
    except Exception:  # noqa: BLE001 - whatever it is, it is no answer
        return None
    return None if found.fence is None else (found.fence.claim_id, found.fence.epoch)


async def read_out(
    harness: Harness, namespace: str, seed: int, scopes: Iterable[Scope], history: History
) -> None:
    """Claim and read every scope through a client of its own, for the history to be judged by.

    After a claim nothing that was not answered can still come (F5), so what is read then is final.
    Owners' clients should be closed before: what they still have under way would come in between.

    Raises:
        Violation: The history breaks a clause, or the store holds something else than it says.
    """
    seen: dict[Scope, Image] = {}
    async with await harness.open(namespace) as client:
        for scope in scopes:
            last = Owner([client], scope, seed)
            history.add(await last.steps(2))
        history.check()
        for scope in scopes:
            taken, read = history.events[scope][-2:]
            seen[scope] = read.seen or Image()
            _judge_holder(history, scope, taken.claim_id, taken.epoch, await holder(client, scope))
    try:
        stored = b"\n".join(data for _, data in await harness.raw(namespace))
    except NotRun:
        return
    _judge_bytes(history, seen, stored)


def _judge_holder(
    history: History, scope: Scope, claim_id: str, epoch: int, found: tuple[str, int] | None
) -> None:
    if found is None or not history.keeps_fences:
        return
    late = history.late_since < float("inf")
    known = {
        event.claim_id
        for event in history.events[scope]
        if event.name == "claim" and (late or event.outcome == "unknown")
    }
    if found != (claim_id, epoch) and not (found[0] in known and found[1] > epoch):
        _broken(
            history,
            scope,
            f"the newest claim is {claim_id[:6]} of epoch {epoch}, but the store holds "
            f"{found[0][:6]} of epoch {found[1]}",
            "F5",
        )


def _judge_bytes(history: History, seen: dict[Scope, Image], stored: bytes) -> None:
    """Everything that is read must be in the bytes of the store, not only in a client."""
    missing = {
        scope: lost
        for scope, image in seen.items()
        if (lost := [mark for mark in sorted(marks_of(image)) if not _is_in(stored, mark)])
    }
    if all(len(missing.get(scope, ())) == len(marks_of(image)) for scope, image in seen.items()):
        return  # What is stored cannot be read: it is encrypted, or nothing was written.
    for scope, lost in missing.items():
        _broken(
            history,
            scope,
            f"what was read last has {', '.join(lost)}, of which the store holds nothing",
            "D1",
        )


def _is_in(stored: bytes, mark: str) -> bool:
    return re.search(re.escape(mark).encode() + rb"(?!\d)", stored) is not None


def _broken(history: History, scope: Scope, message: str, clause: str) -> None:
    last = len(history.events[scope]) - 1
    history.broken = scope, last
    text = f"{scope.kind} {scope.id!r}: {message}\n{history.told(scope, last)}"
    raise Violation(text, clause)


__all__ = ["holder", "read_out"]
