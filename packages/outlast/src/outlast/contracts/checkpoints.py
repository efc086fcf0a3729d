"""The contract for the model turn in flight: one checkpoint per run, fenced."""

import abc
from collections.abc import AsyncIterator
from datetime import datetime

from outlast.contracts.claim import Claim
from outlast.models import StreamCheckpoint


class StreamCheckpointStore(abc.ABC):
    """Keeps one stream checkpoint per run: what the turn in flight has produced so far.

    **Guarantees** and errors are those of `PersistenceManager`: every write is atomic, durable as
    declared, visible to all later reads, and refused from a claim that was superseded.
    """

    @abc.abstractmethod
    async def claim(
        self,
        run_id: str,
        *,
        thread_id: str | None = None,
        claim_id: str | None = None,
        at_least: int | None = None,
        if_epoch: int | None = None,
    ) -> Claim:
        """Become the owner of a run; the claim's ``checkpoint`` is what to resume from.

        **Guarantees.** Raising the epoch and reading the checkpoint are one step: nothing of an
        older claim can be accepted afterwards.

        Args:
            run_id: The run; it need not exist.
            thread_id: The task that the run belongs to, so that deleting the task finds it.
            claim_id: As in `PersistenceManager.claim_task`.
            at_least: As in `PersistenceManager.claim_task`.
            if_epoch: As in `PersistenceManager.claim_task`; a checkpoint that was read has it in
                ``epoch``.

        Raises:
            FencedError: ``at_least`` is not above the stored epoch, or that is not ``if_epoch``.

        **Clauses**: F1, F3, F5, F9, F10.
        """

    @abc.abstractmethod
    async def get(self, run_id: str) -> StreamCheckpoint | None:
        """Return the run's checkpoint with the ``epoch`` of its newest claim, or ``None``.

        **Clauses**: C6, F4, S5, V8.
        """

    @abc.abstractmethod
    async def put(self, checkpoint: StreamCheckpoint, *, claim: Claim | None = None) -> None:
        """Replace the checkpoint of ``checkpoint.run_id``; ``updated_at`` is set to now.

        **Clauses**: F2, F6, F8, F12, S3.
        """

    @abc.abstractmethod
    async def delete(self, run_id: str, *, claim: Claim | None = None) -> None:
        """Remove the run's checkpoint; its fence stays, so that no late write brings it back.

        **Clauses**: C2, F7.
        """

    @abc.abstractmethod
    async def delete_thread(self, thread_id: str, *, force: bool = False) -> int:
        """Remove the checkpoints of all runs of a task, and return how many there were.

        Args:
            thread_id: The task's id.
            force: Claim every run first, fencing its owner; again if somebody else claims it before
                its checkpoint is removed.

        Raises:
            FencedError: Without ``force``: a run with a checkpoint is claimed; nothing was removed.
            OutcomeUnknownError: Also with ``force``, if others claimed a run again and again, for
                as long as a call may take: its checkpoint may be there; a repetition goes on.

        **Clauses**: C1, C2.
        """

    @abc.abstractmethod
    def iter_checkpoints(
        self, *, thread_id: str | None = None, updated_before: datetime | None = None
    ) -> AsyncIterator[StreamCheckpoint]:
        """Yield the checkpoints that match, each run exactly once, in the backend's own order.

        Args:
            thread_id: Only runs of this task.
            updated_before: Only checkpoints last written before this aware instant.

        **Clauses**: L1, L2, L3.
        """


__all__ = ["StreamCheckpointStore"]
