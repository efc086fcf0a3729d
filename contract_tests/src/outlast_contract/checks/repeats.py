"""Late copies, repetitions, deletion and claims taken up again (F6, F7, F10, A2)."""

from datetime import timedelta

import outlast
from outlast.driver import Fence, Scope, ScopeKind
from outlast.errors import StaleWriteError
from outlast_contract.engine import Context, check_each
from outlast_contract.expect import NotRun, error_of, expect, expect_equal, fenced, refused
from outlast_contract.mutations import (
    KINDS,
    MUTATIONS,
    Image,
    Mutation,
    claim,
    expect_image,
    fill,
    image,
)

_OPS = ("0a" * 8, "0b" * 8, "0c" * 8)


class Copy(outlast.Claim):
    """A handle of a claim that sends one fence for whatever it is used for: a copy of that
    mutation.
    """

    __slots__ = ("_fence", "used")

    def __init__(self, owner: outlast.Claim, seq: int, op: str = _OPS[0]) -> None:
        """Make the copy of the mutation with the given number."""
        super().__init__(owner.scope, owner.epoch, owner.claim_id)
        self._fence = Fence(owner.epoch, owner.claim_id, seq, op)
        self.used: bool = False

    def next_fence(self) -> Fence:
        self.used = True
        return self._fence


async def _send(
    client: outlast.Backend, mutation: Mutation, scope: Scope, mark: str, copy: Copy
) -> None:
    try:
        await mutation.apply(client, scope.id, mark, copy)
    finally:
        if not copy.used:
            raise NotRun("the backend does not draw fences from Claim.next_fence()")


@check_each(MUTATIONS, "F6", "A2", "F13")
async def a_late_copy_has_no_effect(context: Context, mutation: Mutation) -> None:
    """A copy of a mutation that arrives after a newer one of the same claim is refused as stale."""
    client, network = await context.open_many(2)
    scope = mutation.scope(context.new_id(mutation.kind))
    owner = await claim(client, scope)
    await fill(client, scope, "base", owner)
    await _send(client, mutation, scope, "early", Copy(owner, 10))
    after = MUTATIONS["put" if mutation.kind == "run" else "save_task_state"]
    await _send(client, after, scope, "later", Copy(owner, 11, _OPS[1]))
    current = await image(client, scope)
    for seq, op, what in (
        (10, _OPS[0], "a late copy"),
        (9, _OPS[2], "a copy that was never answered before"),
        (11, _OPS[2], "another mutation of a number that was used"),
        (1, _OPS[0], "a very old copy"),
    ):
        call = _send(network, mutation, scope, "early", Copy(owner, seq, op))
        error = await error_of(call)
        await expect_image(client, scope, current, f"data after {what} of {mutation.name}")
        expect(
            isinstance(error, StaleWriteError),
            f"{what} of {mutation.name} ended with {error!r}; it must raise StaleWriteError",
        )
        assert isinstance(error, StaleWriteError)
        expect_equal(error.reason, "stale", f"reason of {what}", clause="F13")
    await _send(client, mutation, scope, "gap", Copy(owner, 1000, _OPS[1]))
    wanted = mutation.model(current, scope.id, "gap")
    await expect_image(client, scope, wanted, f"{mutation.name} after a gap in the numbers")


@check_each(MUTATIONS, "F6", "A2", "E2")
async def a_repetition_is_done_and_has_one_effect(context: Context, mutation: Mutation) -> None:
    """The retry after a lost reply, same number and op, is answered as done and changes nothing."""
    client, network = await context.open_many(2)
    scope = mutation.scope(context.new_id(mutation.kind))
    owner = await claim(client, scope)
    current = await fill(client, scope, "base", owner)
    await _send(client, mutation, scope, "once", Copy(owner, 10))
    current = mutation.model(current, scope.id, "once")
    stamps = await _updated_at(client, scope)
    for attempt in range(3):
        call = _send(network, mutation, scope, "once", Copy(owner, 10))
        error = await error_of(call)
        expect(
            error is None, f"repetition {attempt + 1} of a done {mutation.name} raised {error!r}"
        )
        await expect_image(
            client, scope, current, f"data after repetition {attempt + 1} of {mutation.name}"
        )
        expect_equal(await _updated_at(client, scope), stamps, "updated_at after a repetition")


async def _updated_at(client: outlast.Backend, scope: Scope) -> object:
    if scope.kind == "run":
        point = await client.checkpoints.get(scope.id)
        return point and point.updated_at
    state = await client.persistence.load_task_state(scope.id)
    return state and state.updated_at


@check_each(MUTATIONS, "F6")
async def a_done_mutation_stores_its_number(context: Context, mutation: Mutation) -> None:
    """Also a done mutation that changed nothing makes older numbers of its claim stale."""
    client = await context.open()
    scope = mutation.scope(context.new_id(mutation.kind))
    owner = await claim(client, scope)
    await fill(client, scope, "base", owner)
    await _send(client, mutation, scope, "same", Copy(owner, 20))
    await _send(client, mutation, scope, "same", Copy(owner, 30, _OPS[1]))
    current = await image(client, scope)
    other = MUTATIONS["put" if mutation.kind == "run" else "save_task_input"]
    await refused(
        _send(client, other, scope, "older", Copy(owner, 29, _OPS[2])),
        StaleWriteError,
        f"number 29 after {mutation.name} with number 30, which had nothing left to change,",
    )
    await expect_image(client, scope, current, "data after the stale number")
    newer = await claim(client, scope)
    await _send(client, other, scope, "first", Copy(newer, 1, _OPS[2]))
    wanted = other.model(current, scope.id, "first")
    await expect_image(client, scope, wanted, "number 1 of a newer claim")


@check_each(MUTATIONS, "F7", "F2")
async def no_write_brings_deleted_data_back(context: Context, mutation: Mutation) -> None:
    """After deletion, stale and late writes are refused; the current claim may write again."""
    client, other = await context.open_many(2)
    scope = mutation.scope(context.new_id(mutation.kind))
    stale = await claim(client, scope)
    await fill(client, scope, "old", stale)
    owner = await claim(other, scope)
    remove = MUTATIONS["delete_task" if mutation.kind == "task" else "delete"]
    await _send(other, mutation, scope, "early", Copy(owner, 5))
    await _send(other, remove, scope, "", Copy(owner, 10, _OPS[1]))
    await expect_image(client, scope, Image(), "data after deletion")
    await fenced(
        mutation.apply(client, scope.id, "stale", stale),
        "superseded",
        f"{mutation.name} of a superseded claim after deletion",
        clause="F7",
    )
    await fenced(
        _send(client, mutation, scope, "early", Copy(owner, 5)),
        "stale",
        f"a late copy of {mutation.name} after deletion",
        clause="F7",
    )
    await fenced(
        mutation.apply(client, scope.id, "free", None),
        "claimed",
        f"unclaimed {mutation.name} after deletion",
    )
    await expect_image(client, scope, Image(), "deleted data after late writes")
    written = await fill(other, scope, "next", Copy(owner, 11, _OPS[2]))
    if mutation.kind == "run":
        await expect_image(
            client, scope, written, "what the current claim wrote after its deletion"
        )


@check_each(KINDS, "F7", "F1")
async def the_current_claim_writes_again_after_deletion(context: Context, kind: ScopeKind) -> None:
    """The next turn of the same owner starts with an empty scope, and no older epoch comes back."""
    client, other = await context.open_many(2)
    scope = Scope(kind, context.new_id(kind))
    owner = await claim(client, scope)
    remove = MUTATIONS["delete_task" if kind == "task" else "delete"]
    for turn in range(3):
        written = await fill(client, scope, f"turn {turn}", owner)
        await expect_image(other, scope, written, f"turn {turn}")
        await remove.apply(client, scope.id, "", owner)
        await expect_image(other, scope, Image(), f"after the deletion of turn {turn}")
    newer = await claim(other, scope)
    expect(newer.epoch > owner.epoch, f"epoch {newer.epoch} after {owner.epoch}", clause="F1")
    expect(newer.checkpoint is None, "a claim returned a checkpoint that was deleted")


@check_each(KINDS, "F10", "F3")
async def a_repeated_claim_is_the_same_claim(context: Context, kind: ScopeKind) -> None:
    """claim with the claim_id that the store holds returns that claim, its counter where the
    store is.
    """
    client, other = await context.open_many(2)
    scope = Scope(kind, context.new_id(kind))
    owner = await claim(client, scope)
    written = await fill(client, scope, "one", owner)
    for options in ({}, {"at_least": 1}, {"at_least": owner.epoch + 9}):
        again = await claim(other, scope, claim_id=owner.claim_id, **options)
        expect_equal(again.epoch, owner.epoch, f"epoch of a repeated claim, {options or 'plain'}")
        expect(again == owner, "a repeated claim is not equal to the first")
        await expect_image(client, scope, written, "data after a repeated claim")
        if kind == "run":
            expect_equal(
                again.checkpoint and again.checkpoint.text, "one", "checkpoint of a repeated claim"
            )
    again = await claim(other, scope, claim_id=owner.claim_id)
    written = await fill(other, scope, "two", again)
    await expect_image(client, scope, written, "written by whoever took the claim up")
    third = await claim(client, scope, claim_id=owner.claim_id)
    written = await fill(client, scope, "three", third)
    await claim(other, scope, claim_id=owner.claim_id)
    name = "put" if kind == "run" else "save_task_state"
    late = _send(client, MUTATIONS[name], scope, "late", Copy(owner, 1))
    await fenced(late, "stale", "a late copy after the claim was repeated", clause="F10")
    await expect_image(client, scope, written, "data after a late copy")
    fresh = Scope(kind, context.new_id(kind))
    chosen = "0123456789abcdef" * 2
    first = await claim(client, fresh, claim_id=chosen)
    expect_equal(first.claim_id, chosen, "claim_id of a claim that brought its own")
    second = await claim(other, fresh, claim_id=chosen)
    expect_equal(second.epoch, first.epoch, "epoch of a first claim that was repeated")


@check_each(KINDS, "F10", "F6")
async def of_two_holders_one_is_refused(context: Context, kind: ScopeKind) -> None:
    """Two holders of one claim_id: neither loses a write silently, the one behind is told."""
    client, other = await context.open_many(2)
    scope = Scope(kind, context.new_id(kind))
    name = "put" if kind == "run" else "append_api_message"
    mutation = MUTATIONS[name]
    first = await claim(client, scope)
    second = await claim(other, scope, claim_id=first.claim_id)
    accepted = Image()
    for number in range(8):
        handle, through = ((first, client), (second, other))[context.rng.randrange(2)]
        error = await error_of(mutation.apply(through, scope.id, f"m{number}", handle))
        if error is None:
            accepted = mutation.model(accepted, scope.id, f"m{number}")
        else:
            expect(
                isinstance(error, StaleWriteError),
                f"the second holder of a claim_id got {error!r}, not StaleWriteError",
            )
        await expect_image(client, scope, accepted, f"after write {number} of two holders")
    ahead = await claim(client, scope, claim_id=first.claim_id)
    behind = await claim(other, scope, claim_id=first.claim_id)
    await mutation.apply(client, scope.id, "a", ahead)
    await refused(
        mutation.apply(other, scope.id, "b", behind),
        StaleWriteError,
        "the holder that is one write behind",
    )
    await expect_image(
        client, scope, mutation.model(accepted, scope.id, "a"), "data after the refused write"
    )


@check_each(KINDS, "F10", "F1", "F2")
async def a_superseded_claim_id_counts_as_new(context: Context, kind: ScopeKind) -> None:
    """A claim request that arrives late may fence its successor, and never lets an old claim
    write.
    """
    client, other = await context.open_many(2)
    scope = Scope(kind, context.new_id(kind))
    first = await claim(client, scope)
    second = await claim(other, scope)
    written = await fill(other, scope, "second", second)
    back = await claim(client, scope, claim_id=first.claim_id)
    expect(back.epoch > second.epoch, f"epoch {back.epoch} after {second.epoch}", clause="F1")
    name = "put" if kind == "run" else "save_task_state"
    for old in (first, second):
        await fenced(
            MUTATIONS[name].apply(client, scope.id, "late", old),
            "superseded",
            f"a write of epoch {old.epoch} after epoch {back.epoch}",
            clause="F2",
        )
    await expect_image(other, scope, written, "data after late writes")
    await client.sweep(older_than=timedelta(0))
    await fill(client, scope, "back", back)
