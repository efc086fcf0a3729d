"""The contract for what a task keeps: state, input, and the two message logs."""

import abc
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime

from outlast.contracts.claim import Claim
from outlast.models import ApiMessage, TaskInput, TaskState, TaskStatus, UserMessage

_PAGE = 200


class PersistenceManager(abc.ABC):
    """Keeps tasks: two registers (state, input) and two logs (api messages, user messages) each.

    **Guarantees.** Every write is atomic and, when it returns, durable as `Capabilities` declares;
    every read that starts afterwards, in any process, sees it. A write that passes ``claim=`` is
    refused once a newer claim of the task was completed (`FencedError`), and repeating it after an
    unknown outcome has one effect. Writes of one task through one claim or one backend object
    happen in the order called.

    **Not guaranteed.** A write without a claim is for a single process: it is accepted only while
    the task has never been claimed, and a late copy of it may overwrite a newer one.

    All methods may raise `UnavailableError` (certainly not done), `OutcomeUnknownError` (writes:
    may be done or not), `ClosedError`, and `InvalidIdError` or `InvalidDataError` before anything
    is sent. Writes may raise `FencedError`, reads `CorruptDataError`, `UnsupportedVersionError`,
    `DecryptionError`.
    """

    @abc.abstractmethod
    async def initialize(self) -> None:
        """Create or migrate what the store needs; harmless when repeated or done by many at once.

        ``open_backend(..., setup=True)`` has done it on opening.

        **Clauses**: X4.
        """

    @abc.abstractmethod
    async def claim_task(
        self,
        task_id: str,
        *,
        claim_id: str | None = None,
        at_least: int | None = None,
        if_epoch: int | None = None,
    ) -> Claim:
        """Become the owner of a task: of its state, its input and both its logs at once.

        **Guarantees.** When it returns, no older claim can change any of them any more. Data stays
        as it is.
        **Not guaranteed.** Nobody is told: the former owner learns of it at its next write.

        Args:
            task_id: The task; it need not exist.
            claim_id: 32 hexadecimal digits. The one that the store holds takes that claim up again,
                and makes a repetition after an unknown outcome harmless; fresh random bits by
                default.
            at_least: Ask for exactly this epoch, given out by an outside lease, queue or workflow;
                the issuer answers for its growth.
            if_epoch: Claim only if the newest claim has this epoch; 0: only if there is none. Of
                all that look first and claim then, one gets it. The new epoch is the store's next
                one.

        Raises:
            FencedError: ``at_least`` is not above the stored epoch, or that is not ``if_epoch``.

        **Clauses**: F1, F3, F5, F9, F10, F11.
        """

    @abc.abstractmethod
    async def check_claim(self, claim: Claim) -> None:
        """Ask the store whether ``claim`` is still the newest of its scope; one read.

        A tool asks it before an effect that cannot be undone. The answer can be outdated when it
        arrives.

        Raises:
            FencedError: It is not, with the reason.

        **Clauses**: F2, F13.
        """

    @abc.abstractmethod
    async def save_task_state(
        self, task_id: str, state: TaskState, *, claim: Claim | None = None
    ) -> None:
        """Replace the task's state; ``updated_at`` is set to now.

        Args:
            task_id: The task.
            state: Its new state; ``state.id`` equals ``task_id``.
            claim: The task's claim.

        **Clauses**: F2, F6, F8, S3, V7.
        """

    @abc.abstractmethod
    async def load_task_state(self, task_id: str) -> TaskState | None:
        """Return the task's state, or ``None`` if it has none.

        **Clauses**: F4, S5, V1, V8.
        """

    @abc.abstractmethod
    async def update_task_state(
        self, task_id: str, updates: Mapping[str, object], *, claim: Claim | None = None
    ) -> TaskState:
        """Replace some top-level fields of the task's state atomically, and return the whole.

        **Guarantees.** Of two concurrent updates of different fields both survive.

        Args:
            task_id: The task.
            updates: New values by field name; ``None`` is a value. Not ``id`` or ``updated_at``.
            claim: The task's claim.

        Raises:
            TaskNotFoundError: The task has no state.

        **Clauses**: S1, S2.
        """

    @abc.abstractmethod
    async def delete_task_state(self, task_id: str, *, claim: Claim | None = None) -> None:
        """Remove the task's state and nothing else; what is not there is removed already.

        **Clauses**: C2, S4.
        """

    @abc.abstractmethod
    async def list_task_states(
        self,
        *,
        status: TaskStatus | None = None,
        parent_id: str | None = None,
        updated_before: datetime | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[TaskState]:
        """Return the states that match all given filters, in the backend's own fixed order.

        **Guarantees.** Complete whatever the server's page size; a task that is there throughout
        appears exactly once.

        Args:
            status: Only tasks of this status.
            parent_id: Only tasks started by this one.
            updated_before: Only tasks last written before this aware instant, by their writers'
                clocks.
            after: Go on behind this id (the last one of the page before), which may be gone.
            limit: At most so many.

        **Clauses**: L1, L2, L3, L4.
        """

    async def iter_task_states(
        self,
        *,
        status: TaskStatus | None = None,
        parent_id: str | None = None,
        updated_before: datetime | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[TaskState]:
        """Yield what `list_task_states` returns, without holding all of it.

        **Clauses**: L1, L2, L3, L4.
        """
        while True:
            wanted = _PAGE if limit is None else limit
            if type(wanted) is int:  # What is no number is refused there, by name.
                wanted = min(wanted, _PAGE)
            states = await self.list_task_states(
                status=status,
                parent_id=parent_id,
                updated_before=updated_before,
                after=after,
                limit=wanted,
            )
            for state in states:
                yield state
            limit = None if limit is None else limit - len(states)
            if len(states) < wanted or limit == 0:
                return
            after = states[-1].id

    @abc.abstractmethod
    async def save_api_messages(
        self, task_id: str, messages: Iterable[ApiMessage], *, claim: Claim | None = None
    ) -> None:
        """Replace the whole api log at once: every reader sees the old list or the new one.

        Raises:
            InvalidDataError: An id occurs twice.

        **Clauses**: A7, A8.
        """

    @abc.abstractmethod
    async def load_api_messages(self, task_id: str, *, last: int | None = None) -> list[ApiMessage]:
        """Return the api log in append order: all of it, or the newest ``last`` messages.

        **Clauses**: A3, A4, A5, A6, A10, S5.
        """

    @abc.abstractmethod
    async def append_api_message(
        self, task_id: str, message: ApiMessage, *, claim: Claim | None = None
    ) -> None:
        """Append one message; see `append_api_messages`."""

    @abc.abstractmethod
    async def append_api_messages(
        self, task_id: str, messages: Iterable[ApiMessage], *, claim: Claim | None = None
    ) -> None:
        """Append a batch: all of it, in order and together, or nothing.

        **Guarantees.** A message that is in the log already, equal in all but ``ts``, is left out:
        repeating an append is harmless. The cost does not grow with the length of the log.

        Raises:
            ConflictError: A message of one of the ids is there and differs; nothing was appended.
            InvalidDataError: An id occurs twice in the batch.

        **Clauses**: A1, A2, A4, A8, A9.
        """

    @abc.abstractmethod
    async def delete_api_messages(self, task_id: str, *, claim: Claim | None = None) -> None:
        """Empty the api log and nothing else.

        **Clauses**: C2, S4.
        """

    @abc.abstractmethod
    async def save_user_messages(
        self, task_id: str, messages: Iterable[UserMessage], *, claim: Claim | None = None
    ) -> None:
        """Replace the whole user log at once; as `save_api_messages`."""

    @abc.abstractmethod
    async def load_user_messages(
        self, task_id: str, *, last: int | None = None
    ) -> list[UserMessage]:
        """Return the user log in append order; as `load_api_messages`."""

    @abc.abstractmethod
    async def append_user_message(
        self, task_id: str, message: UserMessage, *, claim: Claim | None = None
    ) -> None:
        """Append one message to the user log; as `append_api_messages`."""

    @abc.abstractmethod
    async def append_user_messages(
        self, task_id: str, messages: Iterable[UserMessage], *, claim: Claim | None = None
    ) -> None:
        """Append a batch to the user log; as `append_api_messages`."""

    @abc.abstractmethod
    async def delete_user_messages(self, task_id: str, *, claim: Claim | None = None) -> None:
        """Empty the user log and nothing else.

        **Clauses**: C2, S4.
        """

    @abc.abstractmethod
    async def save_task_input(
        self, task_id: str, task_input: TaskInput, *, claim: Claim | None = None
    ) -> None:
        """Replace the task's input.

        **Clauses**: F2, F6, F8, S3.
        """

    @abc.abstractmethod
    async def load_task_input(self, task_id: str) -> TaskInput | None:
        """Return the task's input, or ``None`` if it has none.

        **Clauses**: F4, S5, V1, V8.
        """

    @abc.abstractmethod
    async def delete_task_input(self, task_id: str, *, claim: Claim | None = None) -> None:
        """Remove the task's input and nothing else.

        **Clauses**: C2, S4.
        """

    @abc.abstractmethod
    async def delete_task(
        self, task_id: str, *, claim: Claim | None = None, force: bool = False
    ) -> None:
        """Remove everything of a task: the checkpoints of its runs, then state, input and messages
        at once.

        **Guarantees.** The runs' owners are fenced before their checkpoints are removed, except
        where a newer claim of the task took a run over. Interrupted, a repetition finishes it. No
        stale write brings the task back. What is left, a record of the fence, goes at a sweep past
        the retention time.

        Args:
            task_id: The task; deleting what is not there is fine.
            claim: The task's claim.
            force: Take a new claim first, fencing the owner; ``claim`` is then not needed. Again if
                somebody else claims the task before it is removed.

        Raises:
            FencedError: A newer claim than ``claim`` was taken; or, with ``force``, others claimed
                the task again and again for as long as a call may take.
            OutcomeUnknownError: Also if others did so with a run of the task; a repetition goes on.

        **Clauses**: C1, C2, C3, F7.
        """


__all__ = ["PersistenceManager"]
