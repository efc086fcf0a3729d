"""Recorded histories of contenders for one scope, and what the contract says about them.

Each event has the interval of real time in which it was under way, so "before" means: it ended
before the other began.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import outlast
from outlast.driver import Scope
from outlast.errors import FencedError, OutcomeUnknownError, OutlastError, UnavailableError
from outlast_contract.expect import Violation, error_of, expect, expect_equal
from outlast_contract.mutations import Image, Mutation, bare, claim


@dataclass
class Claimed:
    """A claim that was completed.

    Attributes:
        checkpoint: What it returned to resume from, without what the adapter sets.
    """

    epoch: int
    began: float
    ended: float
    checkpoint: outlast.StreamCheckpoint | None


@dataclass
class Wrote:
    """A mutation and its outcome.

    Attributes:
        error: ``None`` if it was done.
        number: Of the mutation within its claim.
    """

    epoch: int
    number: int
    mutation: Mutation
    mark: str
    began: float
    ended: float
    error: OutlastError | None

    @property
    def is_unknown(self) -> bool:
        """Whether it may have been applied."""
        return self.error is not None and self.error.applied is None


@dataclass
class History:
    """What the contenders for one scope did.

    Attributes:
        initial: The image before the first of them began.
        first_epoch: An epoch that had been handed out by then, or 0.
    """

    scope: Scope
    initial: Image
    first_epoch: int = 0
    claims: list[Claimed] = field(default_factory=list[Claimed])
    writes: list[Wrote] = field(default_factory=list[Wrote])

    async def claim(self, client: outlast.Backend) -> outlast.Claim:
        """Claim the scope and record it."""
        began = _now()
        owner = await claim(client, self.scope)
        point = bare(owner.checkpoint)
        self.claims.append(Claimed(owner.epoch, began, _now(), point))
        return owner

    async def write(
        self, client: outlast.Backend, owner: outlast.Claim, mutation: Mutation, number: int
    ) -> OutlastError | None:
        """Mutate the scope through a claim and record the outcome."""
        mark = f"{owner.epoch}.{number}"
        began = _now()
        error = await error_of(mutation.apply(client, self.scope.id, mark, owner))
        self.writes.append(Wrote(owner.epoch, number, mutation, mark, began, _now(), error))
        return error

    def check(self, final: Image) -> None:
        """Hold the history and the image at its end to F1, F2, F5, F13 and E3.

        Raises:
            Violation: With the clause that was broken.
        """
        self._check_epochs()
        # Before the refusals: what a former owner wrote may refuse the present one's next write.
        self._check_fences()
        self._check_refusals()
        self._check_snapshots()
        self._check_final(final)

    def _check_epochs(self) -> None:
        epochs = sorted(one.epoch for one in self.claims)
        expect(
            len(set(epochs)) == len(epochs) and all(epoch > self.first_epoch for epoch in epochs),
            f"epochs {epochs} were handed out after {self.first_epoch}",
            clause="F1",
        )
        for one in self.claims:
            for other in self.claims:
                expect(
                    not (one.ended < other.began and one.epoch >= other.epoch),
                    f"epoch {other.epoch} was handed out after {one.epoch}",
                    clause="F1",
                )

    def _check_refusals(self) -> None:
        for one in self.writes:
            if one.error is None or isinstance(one.error, OutcomeUnknownError | UnavailableError):
                continue
            what = f"{one.mutation.name} of epoch {one.epoch} ended with {one.error!r}"
            expect(isinstance(one.error, FencedError), what, clause="E2")
            assert isinstance(one.error, FencedError)
            newer = [
                claimed.epoch
                for claimed in self.claims
                if claimed.epoch > one.epoch and claimed.began < one.ended
            ]
            expect(newer, f"{what}, but it is the newest", clause="F2")
            expect(one.error.reason == "superseded", what, clause="F13")

    def _check_fences(self) -> None:
        for one in self.writes:
            for claimed in self.claims:
                expect(
                    one.error is not None
                    or not (claimed.epoch > one.epoch and claimed.ended < one.began),
                    f"{one.mutation.name} of epoch {one.epoch} was done after epoch "
                    f"{claimed.epoch} had been claimed",
                    clause="F2",
                )

    def _check_snapshots(self) -> None:
        if self.scope.kind != "run":
            return
        for claimed in self.claims:
            older = [one for one in self.writes if one.epoch < claimed.epoch]
            images = self._outcomes(older)
            expect(
                any(image.checkpoint == claimed.checkpoint for image in images),
                f"the claim of epoch {claimed.epoch} returned "
                f"{claimed.checkpoint and claimed.checkpoint.text!r}, though older claims "
                f"left {[image.checkpoint and image.checkpoint.text for image in images]}",
                clause="F5",
            )

    def _check_final(self, final: Image) -> None:
        images = self._outcomes(self.writes)
        if final in images:
            return
        expect_equal(
            final,
            images[0],
            f"{self.scope.kind} after a race of {len(self.claims)} owners, each accepted write "
            "in the order of epochs",
            clause="F2",
        )
        raise Violation("unequal images without a difference", "F2")

    def _outcomes(self, writes: Iterable[Wrote]) -> list[Image]:
        """All images that the accepted writes can have left, in the order of epoch and number."""
        images = [self.initial]
        for one in sorted(writes, key=lambda one: (one.epoch, one.number)):
            if one.error is not None and not one.is_unknown:
                continue
            after = [one.mutation.model(image, self.scope.id, one.mark) for image in images]
            images = [*after, *images] if one.is_unknown else after
        return images


def _now() -> float:
    return asyncio.get_running_loop().time()


__all__ = ["Claimed", "History", "Wrote"]
