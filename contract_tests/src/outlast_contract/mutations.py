"""Every mutation of the contract as data, and a model of what each one does to a scope.

A mutation writes a **mark**, a short text, so that a reader can tell who wrote what it sees. The
model is the contract read sequentially; checks compare a backend's `Image` of a scope with it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

import outlast
from outlast.driver import Scope, ScopeKind
from outlast_contract.expect import expect_equal


class Image(msgspec.Struct, frozen=True):
    """All that can be read of a scope, without what the adapter sets (``updated_at``,
    ``epoch``).
    """

    state: outlast.TaskState | None = None
    input: outlast.TaskInput | None = None
    api: list[outlast.ApiMessage] = []
    user: list[outlast.UserMessage] = []
    checkpoint: outlast.StreamCheckpoint | None = None


Apply = Callable[[outlast.Backend, str, str, outlast.Claim | None], Awaitable[object]]


@dataclass(frozen=True)
class Mutation:
    """One mutating method of the contract.

    Attributes:
        name: The method's.
        kind: Which kind of scope it changes.
        apply: Calls it: (backend, id, mark, claim).
        model: Gives the image after it: (image, id, mark).
        removes: Whether it only removes.
        needs_state: Whether it needs a state to be there.
    """

    name: str
    kind: ScopeKind
    apply: Apply
    model: Callable[[Image, str, str], Image]
    removes: bool = False
    needs_state: bool = False

    def scope(self, id: str) -> Scope:
        """The scope of this kind with the given id."""
        return Scope(self.kind, id)


def state_of(id: str, mark: str) -> outlast.TaskState:
    """A state that shows its mark in several fields, so that a mixture of two is seen."""
    return outlast.TaskState(
        id=id, status=outlast.TaskStatus.RUNNING, config={"mark": mark}, context={"mark": mark}
    )


def input_of(mark: str) -> outlast.TaskInput:
    """An input with a mark."""
    return outlast.TaskInput(message=mark, params={"mark": mark})


def api_of(mark: str, number: int = 0) -> outlast.ApiMessage:
    """An api message with a mark, which is part of its id."""
    return outlast.ApiMessage(id=f"{mark}#{number}", role="user", content=mark)


def user_of(mark: str, number: int = 0) -> outlast.UserMessage:
    """A user message with a mark, which is part of its id."""
    return outlast.UserMessage(id=f"{mark}#{number}", type="text", role="user", content=mark)


def checkpoint_of(run_id: str, mark: str, thread_id: str | None = None) -> outlast.StreamCheckpoint:
    """A checkpoint that shows its mark in several fields."""
    return outlast.StreamCheckpoint(
        run_id=run_id,
        thread_id=thread_id or thread_of(run_id),
        message_id=mark,
        model="m",
        text=mark,
        tool_calls=[outlast.PartialToolCall(id=mark, name="tool", arguments='{"a":')],
    )


def thread_of(run_id: str) -> str:
    """The thread of a run's checkpoint, unless the check names one."""
    return f"thread of {run_id[:40]}"


async def image(backend: outlast.Backend, scope: Scope) -> Image:
    """Read a scope through the contract."""
    if scope.kind == "run":
        return Image(checkpoint=bare(await backend.checkpoints.get(scope.id)))
    tasks = backend.persistence
    return Image(
        state=bare(await tasks.load_task_state(scope.id)),
        input=await tasks.load_task_input(scope.id),
        api=await tasks.load_api_messages(scope.id),
        user=await tasks.load_user_messages(scope.id),
    )


def bare(record: Any) -> Any:
    """A state or checkpoint without what the adapter sets; ``None`` for ``None``."""
    if record is None:
        return None
    changes = {"updated_at": None}
    if isinstance(record, outlast.StreamCheckpoint):
        return msgspec.structs.replace(record, **changes, epoch=0)
    return msgspec.structs.replace(record, **changes)


async def expect_image(
    backend: outlast.Backend, scope: Scope, wanted: Image, what: str, *, clause: str | None = None
) -> None:
    """Expect a scope to read as ``wanted``."""
    expect_equal(await image(backend, scope), wanted, what, clause=clause)


def _with(before: Image, **changes: Any) -> Image:
    return msgspec.structs.replace(before, **changes)


def _updated(before: Image, mark: str) -> Image:
    if before.state is None:
        return before
    return _with(before, state=msgspec.structs.replace(before.state, config={"updated": mark}))


TASK_MUTATIONS: Final[Sequence[Mutation]] = (
    Mutation(
        "save_task_state",
        "task",
        lambda b, i, m, c: b.persistence.save_task_state(i, state_of(i, m), claim=c),
        lambda before, i, m: _with(before, state=state_of(i, m)),
    ),
    Mutation(
        "update_task_state",
        "task",
        lambda b, i, m, c: b.persistence.update_task_state(i, {"config": {"updated": m}}, claim=c),
        lambda before, i, m: _updated(before, m),
        needs_state=True,
    ),
    Mutation(
        "delete_task_state",
        "task",
        lambda b, i, m, c: b.persistence.delete_task_state(i, claim=c),
        lambda before, i, m: _with(before, state=None),
        removes=True,
    ),
    Mutation(
        "save_task_input",
        "task",
        lambda b, i, m, c: b.persistence.save_task_input(i, input_of(m), claim=c),
        lambda before, i, m: _with(before, input=input_of(m)),
    ),
    Mutation(
        "delete_task_input",
        "task",
        lambda b, i, m, c: b.persistence.delete_task_input(i, claim=c),
        lambda before, i, m: _with(before, input=None),
        removes=True,
    ),
    Mutation(
        "save_api_messages",
        "task",
        lambda b, i, m, c: b.persistence.save_api_messages(
            i, [api_of(m, 1), api_of(m, 2)], claim=c
        ),
        lambda before, i, m: _with(before, api=[api_of(m, 1), api_of(m, 2)]),
    ),
    Mutation(
        "append_api_message",
        "task",
        lambda b, i, m, c: b.persistence.append_api_message(i, api_of(m), claim=c),
        lambda before, i, m: _with(before, api=[*before.api, api_of(m)]),
    ),
    Mutation(
        "append_api_messages",
        "task",
        lambda b, i, m, c: b.persistence.append_api_messages(
            i, [api_of(m, 1), api_of(m, 2)], claim=c
        ),
        lambda before, i, m: _with(before, api=[*before.api, api_of(m, 1), api_of(m, 2)]),
    ),
    Mutation(
        "delete_api_messages",
        "task",
        lambda b, i, m, c: b.persistence.delete_api_messages(i, claim=c),
        lambda before, i, m: _with(before, api=[]),
        removes=True,
    ),
    Mutation(
        "save_user_messages",
        "task",
        lambda b, i, m, c: b.persistence.save_user_messages(
            i, [user_of(m, 1), user_of(m, 2)], claim=c
        ),
        lambda before, i, m: _with(before, user=[user_of(m, 1), user_of(m, 2)]),
    ),
    Mutation(
        "append_user_message",
        "task",
        lambda b, i, m, c: b.persistence.append_user_message(i, user_of(m), claim=c),
        lambda before, i, m: _with(before, user=[*before.user, user_of(m)]),
    ),
    Mutation(
        "append_user_messages",
        "task",
        lambda b, i, m, c: b.persistence.append_user_messages(
            i, [user_of(m, 1), user_of(m, 2)], claim=c
        ),
        lambda before, i, m: _with(before, user=[*before.user, user_of(m, 1), user_of(m, 2)]),
    ),
    Mutation(
        "delete_user_messages",
        "task",
        lambda b, i, m, c: b.persistence.delete_user_messages(i, claim=c),
        lambda before, i, m: _with(before, user=[]),
        removes=True,
    ),
    Mutation(
        "delete_task",
        "task",
        lambda b, i, m, c: b.persistence.delete_task(i, claim=c),
        lambda before, i, m: Image(),
        removes=True,
    ),
)

RUN_MUTATIONS: Final[Sequence[Mutation]] = (
    Mutation(
        "put",
        "run",
        lambda b, i, m, c: b.checkpoints.put(checkpoint_of(i, m), claim=c),
        lambda before, i, m: _with(before, checkpoint=checkpoint_of(i, m)),
    ),
    Mutation(
        "delete",
        "run",
        lambda b, i, m, c: b.checkpoints.delete(i, claim=c),
        lambda before, i, m: Image(),
        removes=True,
    ),
)

MUTATIONS: Final[dict[str, Mutation]] = {
    mutation.name: mutation for mutation in (*TASK_MUTATIONS, *RUN_MUTATIONS)
}
"""All mutating methods that take a claim, by name."""

KINDS: Final[dict[str, ScopeKind]] = {"task": "task", "run": "run"}


async def claim(backend: outlast.Backend, scope: Scope, **options: Any) -> outlast.Claim:
    """Claim a scope of either kind."""
    if scope.kind == "task":
        return await backend.persistence.claim_task(scope.id, **options)
    return await backend.checkpoints.claim(scope.id, **options)


def filled(scope: Scope, mark: str) -> Image:
    """The image that `fill` leaves in an empty scope."""
    if scope.kind == "run":
        return Image(checkpoint=checkpoint_of(scope.id, mark))
    return Image(
        state=state_of(scope.id, mark),
        input=input_of(mark),
        api=[api_of(mark, 1), api_of(mark, 2)],
        user=[user_of(mark, 1), user_of(mark, 2)],
    )


async def fill(
    backend: outlast.Backend, scope: Scope, mark: str, claim: outlast.Claim | None = None
) -> Image:
    """Write something into every part of a scope and return its image."""
    names = (
        ("put",)
        if scope.kind == "run"
        else ("save_task_state", "save_task_input", "save_api_messages", "save_user_messages")
    )
    for name in names:
        await MUTATIONS[name].apply(backend, scope.id, mark, claim)
    return filled(scope, mark)


__all__ = [
    "KINDS",
    "MUTATIONS",
    "RUN_MUTATIONS",
    "TASK_MUTATIONS",
    "Image",
    "Mutation",
    "api_of",
    "bare",
    "checkpoint_of",
    "claim",
    "expect_image",
    "fill",
    "filled",
    "image",
    "input_of",
    "state_of",
    "thread_of",
    "user_of",
]
