"""Under which names, and by which rules, a model turn runs."""

import math
import random

import msgspec

from outlast.contracts import Claim, PersistenceManager, StreamCheckpointStore
from outlast.contracts.claim import check_scope
from outlast.driver import Scope
from outlast.errors import InvalidDataError, shown
from outlast.values import check_id


def _check_number(owner: object, field: str, *, least: float) -> None:
    value = getattr(owner, field)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not least <= value < math.inf
    ):
        raise InvalidDataError(
            f"{type(owner).__name__}.{field} must be a finite number of at least {least:g}, "
            f"not {shown(value)}"
        )


def _check_contract(value: object, contract: type, argument: str) -> None:
    """Accept the contract's subclasses, and wrappers that pass its methods on."""
    methods: frozenset[str] = getattr(contract, "__abstractmethods__", frozenset())
    if not isinstance(value, contract) and not all(hasattr(value, name) for name in methods):
        raise InvalidDataError(
            f"{argument} must be a {contract.__name__}, not {type(value).__name__}"
        )


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often a failed model call is repeated in one turn, and after which wait.

    Attributes:
        max_retries: Failed calls after which the error is raised, over all processes of the turn.
        base_delay: Seconds; the first wait. It doubles with each failure.
        max_delay: Seconds; the longest wait of its own choice.
        max_hint: Seconds; the longest wait that a provider's hint can cause.
    """

    max_retries: int = 5
    base_delay: float = 0.5
    max_delay: float = 30.0
    max_hint: float = 60.0

    def __post_init__(self) -> None:
        if type(self.max_retries) is not int:
            raise InvalidDataError(
                f"RetryPolicy.max_retries must be an int, not {type(self.max_retries).__name__}"
            )
        for field in self.__struct_fields__:
            _check_number(self, field, least=0)

    def delay(self, retry: int, hint: float | None, rng: random.Random) -> float:
        """Seconds to wait before a repetition.

        Args:
            retry: Which one; the first is 1.
            hint: What the provider asked for; followed exactly, up to ``max_hint``.
            rng: Draws the jitter: between half of the wait and all of it.
        """
        if hint is not None and not math.isnan(hint):
            return min(max(hint, 0.0), self.max_hint)
        longest = min(self.max_delay, self.base_delay * 2.0 ** min(max(retry, 1) - 1, 64))
        return longest * rng.uniform(0.5, 1.0)


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a turn in flight is written down. At most one write is under way, whatever this says.

    Attributes:
        interval: Seconds from the begin of one write to that of the next, if something changed.
        max_bytes: Bytes taken in since the last write that make the next one due before that.
    """

    interval: float = 0.25
    max_bytes: int = 16384

    def __post_init__(self) -> None:
        _check_number(self, "interval", least=0)
        if type(self.max_bytes) is not int or self.max_bytes < 1:
            raise InvalidDataError(
                "CheckpointPolicy.max_bytes must be an int of at least 1, "
                f"not {shown(self.max_bytes)}"
            )


class RunContext:
    """Where a model turn is stored, under which names, and by which rules it runs.

    Args:
        persistence: Where the turn's message is committed.
        task_id: The task, to whose API messages it is appended.
        run_id: The run that the turn belongs to; at most one turn of it is in flight.
        message_id: Under which the message is committed. Choose it before the first attempt, and
            use the same one in every process: it is what makes the turn happen once.
        claim: Of the task. Without one, the turn runs unclaimed (single-process use).
        retry: How model calls are repeated.
        checkpointing: When the turn is written down; without a checkpoint store, never.

    Raises:
        InvalidIdError: One of the ids is none.
        InvalidDataError: The claim is not of this task, or another argument is not what it should
            be.
    """

    __slots__ = (
        "checkpointing",
        "claim",
        "is_uncommitted",
        "message_id",
        "persistence",
        "retry",
        "run_id",
        "stream_checkpoint",
        "task_id",
    )

    def __init__(
        self,
        persistence: PersistenceManager,
        *,
        task_id: str,
        run_id: str,
        message_id: str,
        claim: Claim | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        checkpointing: CheckpointPolicy = CheckpointPolicy(),  # noqa: B008 - frozen
    ) -> None:
        check_scope(Scope("task", task_id), "task_id", claim)
        _check_contract(persistence, PersistenceManager, "persistence")
        for policy, kind, argument in (
            (retry, RetryPolicy, "retry"),
            (checkpointing, CheckpointPolicy, "checkpointing"),
        ):
            if not isinstance(policy, kind):
                raise InvalidDataError(
                    f"{argument} must be a {kind.__name__}, not {type(policy).__name__}"
                )
        self.persistence: PersistenceManager = persistence
        self.task_id: str = task_id
        self.run_id: str = check_id(run_id, "run_id")
        self.message_id: str = check_id(message_id, "message_id")
        self.claim: Claim | None = claim
        self.retry: RetryPolicy = retry
        self.checkpointing: CheckpointPolicy = checkpointing
        self.stream_checkpoint: StreamCheckpointStore | None = None
        self.is_uncommitted: bool = False
        """Set by an owner who has read the log under this claim and knows that it has no message
        of ``message_id``: the turn then does not read it again.
        """

    def with_stream_checkpoint(self, store: StreamCheckpointStore) -> "RunContext":
        """A copy whose turn is written to ``store`` while it streams, so that another process can
        go on.

        Raises:
            InvalidDataError: It is no checkpoint store.
        """
        _check_contract(store, StreamCheckpointStore, "store")
        copy = RunContext(
            self.persistence,
            task_id=self.task_id,
            run_id=self.run_id,
            message_id=self.message_id,
            claim=self.claim,
            retry=self.retry,
            checkpointing=self.checkpointing,
        )
        copy.stream_checkpoint = store
        copy.is_uncommitted = self.is_uncommitted
        return copy

    @property
    def task_epoch(self) -> int:
        """The epoch of the task's claim; 0 without one."""
        return 0 if self.claim is None else self.claim.epoch

    def __repr__(self) -> str:
        return (
            f"<RunContext of task {self.task_id!r}, run {self.run_id!r}, "
            f"message {self.message_id!r}>"
        )


__all__ = ["CheckpointPolicy", "RetryPolicy", "RunContext"]
