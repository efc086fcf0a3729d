"""The handle of an owner."""

import asyncio
import os
from typing import Any, NoReturn

from outlast.contracts.turns import Turns
from outlast.driver import Fence, Scope
from outlast.errors import InvalidDataError, NotSupportedError, shown
from outlast.models import StreamCheckpoint
from outlast.values import check_claim_id, check_id


def new_claim_id() -> str:
    """A claim_id: 128 random bits as 32 hexadecimal digits."""
    return os.urandom(16).hex()


class Claim:
    """Ownership of one task or run, as its owner holds it: pass it to every write as ``claim=``.

    It counts the owner's mutations and lets them through one at a time, in the order called, so it
    works through any backend object on the same store. It is not released: a newer claim supersedes
    it, and its writes then raise `FencedError`.

    Two claims are equal if scope, epoch and claim_id are. A claim is bound to the event loop in
    which it was taken, and cannot be copied or pickled: another process takes it up with
    ``claim_task(task_id, claim_id=...)``.

    **Clauses**: F2, F6, F10, F11.
    """

    __slots__ = ("_checkpoint", "_claim_id", "_epoch", "_loop", "_scope", "_seq", "_turns")

    def __init__(
        self,
        scope: Scope,
        epoch: int,
        claim_id: str,
        *,
        seq: int = 0,
        checkpoint: StreamCheckpoint | None = None,
    ) -> None:
        """For implementers of the contracts; users get claims from ``claim_task`` and ``claim``.

        Args:
            scope: What is owned.
            epoch: As the store handed it out.
            claim_id: As the store keeps it.
            seq: The last seq that the store accepted of this claim.
            checkpoint: What the run's register held in the step that raised the epoch (F5).
        """
        self._scope = scope
        self._epoch = epoch
        self._claim_id = claim_id
        self._seq = seq
        self._checkpoint = checkpoint
        self._turns = Turns()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def scope(self) -> Scope:
        """What is owned."""
        return self._scope

    @property
    def epoch(self) -> int:
        """The fencing token; the store refuses every smaller one from now on."""
        return self._epoch

    @property
    def claim_id(self) -> str:
        """32 hexadecimal digits; whoever has them can take this claim up."""
        return self._claim_id

    @property
    def checkpoint(self) -> StreamCheckpoint | None:
        """Of a run: what to resume from, final for all older claims (F5). Of a task: ``None``."""
        return self._checkpoint

    def next_fence(self) -> Fence:
        """The fence of the claim's next mutation; for implementers of the contracts.

        Draw one for each mutation, and repeat an unanswered attempt with the same one (F6).
        """
        self._seq += 1
        return Fence(self._epoch, self._claim_id, self._seq, os.urandom(8).hex())

    def turns(self) -> Turns:
        """The queue of this claim's mutations, for implementers: hold a `Ticket` of it while one is
        sent.

        Raises:
            NotSupportedError: The running loop is not the one in which the claim was first used.
        """
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise NotSupportedError(
                "this claim belongs to another event loop; take it up in this one with claim_id=..."
            )
        return self._turns

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Claim):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Scope, int, str]:
        return self._scope, self._epoch, self._claim_id

    def __repr__(self) -> str:
        return f"<Claim of {self._scope.kind} {self._scope.id!r}, epoch {self._epoch}>"

    def __copy__(self) -> NoReturn:
        raise TypeError("a Claim counts its owner's writes and cannot be copied")

    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Claim cannot be pickled; send its claim_id and take it up with claim(claim_id=...)"
        )


def check_scope(scope: Scope, argument: str, claim: object) -> Scope:
    """Return ``scope`` if its id is valid and ``claim``, if any, is of it.

    Raises:
        InvalidIdError: No id.
        InvalidDataError: ``claim`` is not a `Claim`, or that of another scope.
    """
    check_id(scope.id, argument)
    if claim is None:
        return scope
    if not isinstance(claim, Claim):
        raise InvalidDataError(f"claim must be a Claim or None, not {type(claim).__name__}")
    if claim.scope != scope:
        raise InvalidDataError(
            f"the claim is of {claim.scope.kind} {claim.scope.id!r}, "
            f"not of {scope.kind} {scope.id!r}"
        )
    return scope


def check_at_least(at_least: object, limit: int) -> int | None:
    """Return ``at_least`` if it is ``None`` or an epoch that may be asked for (F9)."""
    if at_least is None:
        return None
    if type(at_least) is not int or not 1 <= at_least <= limit:
        raise InvalidDataError(f"at_least must be an int from 1 to 2**52, not {shown(at_least)}")
    return at_least


def check_if_epoch(if_epoch: object, limit: int) -> int | None:
    """Return ``if_epoch`` if it is ``None`` or can be an epoch, or 0 for none."""
    if if_epoch is None:
        return None
    if type(if_epoch) is not int or not 0 <= if_epoch <= 2 * limit:
        raise InvalidDataError(f"if_epoch must be an int from 0 to 2**53, not {shown(if_epoch)}")
    return if_epoch


def claim_id_or_new(claim_id: object) -> str:
    """The given claim_id, checked, or a fresh one."""
    return new_claim_id() if claim_id is None else check_claim_id(claim_id)


__all__ = [
    "Claim",
    "check_at_least",
    "check_if_epoch",
    "check_scope",
    "claim_id_or_new",
    "new_claim_id",
]
