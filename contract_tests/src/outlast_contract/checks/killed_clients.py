"""Processes that are killed at one of their requests (D1, A1, S3, F5, F1)."""

import asyncio
from typing import Final

from outlast_contract.engine import Context, check_each
from outlast_contract.expect import expect, expect_equal
from outlast_contract.faults import Hold
from outlast_contract.faults.strikes import places
from outlast_contract.mutations import MUTATIONS, Image, Mutation, claim, expect_image, fill, image
from outlast_contract.workers import Workers

_ENDS: Final = {"on its way": False, "done, and not answered": True}
"""What has become of the request when its sender is killed: whether the server has seen it."""


@check_each(
    MUTATIONS,
    "A1",
    "D1",
    "S3",
    "F5",
    "F1",
    tier="faults",
    needs=["endpoints", "same store in processes"],
)
async def a_process_killed_at_a_request_leaves_old_or_new(
    context: Context, mutation: Mutation
) -> None:
    """Killed at any one of the requests of a mutation, before the server sees it or before its
    reply comes, a process leaves the old data or the new; a successor's claim settles which, and
    goes on; what arrives after it changes nothing.
    """
    plain = await context.open()
    network = await context.network()
    async with Workers(network.for_processes(), context.namespace) as workers:
        for end, delivered in _ENDS.items():
            for at in places(3):
                if at > 3 and not context.settings.thorough:
                    break
                scope = mutation.scope(context.new_id(mutation.kind))
                owner = await claim(plain, scope)
                before = await fill(plain, scope, "base", owner)
                worker = await workers.spawn()
                taken = await worker.done(
                    "claim", kind=scope.kind, id=scope.id, claim_id=owner.claim_id
                )
                expect_equal(taken["epochs"], [owner.epoch], "the claim that was taken up")
                hold = Hold(delivered=delivered)
                shot = network.script.arm(hold, at=at)
                worker.tell(
                    "apply", mutation=mutation.name, id=scope.id, mark="last words", owned=True
                )
                answered = asyncio.ensure_future(worker.answer())
                await hold.arrived_or(answered)
                network.script.disarm()
                answered.cancel()
                await asyncio.wait([answered])
                if not shot.hits:
                    break
                await worker.kill()
                what = f"{mutation.name} of a process killed with request {at} {end}"
                if delivered:
                    await hold.release()
                after = mutation.model(before, scope.id, "last words")
                _expect_old_or_new(await image(plain, scope), before, after, mutation, what)
                successor = await claim(plain, scope)
                expect(successor.epoch > owner.epoch, f"the epoch after {what}", clause="F1")
                settled = await image(plain, scope)
                _expect_old_or_new(settled, before, after, mutation, f"a claim after {what}")
                await hold.release()
                await expect_image(plain, scope, settled, f"data long after {what}", clause="F5")
                now = await fill(plain, scope, "next", successor)
                await expect_image(plain, scope, now, f"what the successor wrote after {what}")


def _expect_old_or_new(
    found: Image, before: Image, after: Image, mutation: Mutation, what: str
) -> None:
    # A deletion of a whole task has many steps, and is cut off between two of them.
    if mutation.name != "delete_task":
        expect(found in (before, after), f"{what} left {found}, neither {before} nor {after}")
