"""Long random work, compared with the model after every step (S3, A1, F2 and what they rest on)."""

from datetime import timedelta
from typing import Any

import msgspec

import outlast
from outlast.driver import Scope
from outlast.errors import FencedError
from outlast_contract.engine import Context, check_each
from outlast_contract.expect import Violation, error_of, expect, expect_equal
from outlast_contract.mutations import (
    MUTATIONS,
    Image,
    Mutation,
    claim,
    expect_image,
    image,
)

_CLAUSES = {"state": "S3", "input": "S3", "api": "A1", "user": "A1", "checkpoint": "S3"}
_REFUSED = {"superseded": "F2", "lost": "F2", "claimed": "F8", "no_record": "C5", "stale": "F6"}
"""The clause that is broken if the present owner is refused for a reason."""


class _Work:
    """A few scopes, their owners past and present, and what they must hold."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.rng = context.rng
        self.clients: list[outlast.Backend] = []
        self.images: dict[Scope, Image] = {}
        self.owners: dict[Scope, list[outlast.Claim]] = {}
        self.steps = 0

    async def step(self) -> None:
        """Do one random thing."""
        self.steps += 1
        scope = self.rng.choice(list(self.images))
        try:
            await self._do(scope, self.rng.choice(self.clients))
        except FencedError as error:
            what = f"step {self.steps}: the present owner of {scope.id!r} was refused: {error!r}"
            raise Violation(what, _REFUSED[error.reason]) from error
        await self._compare(scope)

    async def _do(self, scope: Scope, client: outlast.Backend) -> None:
        chance = self.rng.random()
        if chance < 0.08:
            self.owners[scope].append(await claim(client, scope))
        elif chance < 0.11:
            await client.sweep(older_than=timedelta(hours=1))
        elif chance < 0.14:
            await self._reopen()
        elif chance < 0.24:
            await self._write_late(client, scope)
        elif chance < 0.44 and scope.kind == "task":
            await self._write_long(client, scope)
        else:
            await self._write(client, scope)

    async def _reopen(self) -> None:
        place = self.rng.randrange(len(self.clients))
        await self.clients[place].aclose()
        self.clients[place] = await self.context.open()

    def _mutation(self, scope: Scope) -> Mutation:
        choice = [one for one in MUTATIONS.values() if one.kind == scope.kind]
        # Deletions would leave little to look at if they came as often as the rest.
        weights = [1 if one.removes else 4 for one in choice]
        return self.rng.choices(choice, weights)[0]

    async def _write(self, client: outlast.Backend, scope: Scope) -> None:
        mutation = self._mutation(scope)
        if mutation.needs_state and self.images[scope].state is None:
            return
        owner = self.owners[scope][-1] if self.owners[scope] else None
        mark = f"s{self.steps}" + "x" * self.rng.choice((0, 0, 10, 450))
        await mutation.apply(client, scope.id, mark, owner)
        self.images[scope] = mutation.model(self.images[scope], scope.id, mark)

    async def _write_late(self, client: outlast.Backend, scope: Scope) -> None:
        """A former owner, or somebody without a claim, tries to write."""
        owners = self.owners[scope]
        if not owners:
            return
        stale = self.rng.choice([None, *owners[:-1]])
        mutation = self._mutation(scope)
        error = await error_of(mutation.apply(client, scope.id, f"late {self.steps}", stale))
        expect(
            isinstance(error, FencedError),
            f"step {self.steps}: {mutation.name} of a former owner got {error!r}",
            clause="F8" if stale is None else "F2",
        )

    async def _write_long(self, client: outlast.Backend, scope: Scope) -> None:
        """Messages of all sizes, so that the log grows over whatever it is cut at."""
        before = self.images[scope]
        owner = self.owners[scope][-1] if self.owners[scope] else None
        messages = [
            outlast.ApiMessage(
                id=f"s{self.steps}.{number}",
                role="user",
                content="y" * self.rng.choice((0, 1, 100, 3000, 20_000, 40_000)),
            )
            for number in range(self.rng.choice((1, 2, 7, 33, 70)))
        ]
        known = self.rng.sample(before.api, min(len(before.api), self.rng.choice((0, 0, 2))))
        batch = [*messages, *known]
        self.rng.shuffle(batch)
        if self.rng.random() < 0.2:
            await client.persistence.save_api_messages(scope.id, batch, claim=owner)
            api = batch
        else:
            await client.persistence.append_api_messages(scope.id, batch, claim=owner)
            api = [*before.api, *(one for one in batch if one not in known)]
        self.images[scope] = msgspec.structs.replace(before, api=api)

    async def _compare(self, scope: Scope) -> None:
        found = await image(self.rng.choice(self.clients), scope)
        wanted = self.images[scope]
        for part, clause in _CLAUSES.items():
            what = f"step {self.steps}: {part} of {scope.kind} {scope.id!r}"
            expect_equal(getattr(found, part), getattr(wanted, part), what, clause=clause)
        if scope.kind == "task" and wanted.api:
            last = self.rng.choice((1, 2, 31, 32, 33, 64, 100))
            tail: list[Any] = list(
                await self.clients[0].persistence.load_api_messages(scope.id, last=last)
            )
            what = f"step {self.steps}: last={last} of {len(wanted.api)} messages"
            expect_equal(tail, wanted.api[-last:], what, clause="A10")


@check_each(
    {f"round {number}": number for number in range(1, 4)},
    "A1",
    "A4",
    "S3",
    "S4",
    "F2",
    "F8",
    "A10",
    "C4",
    "C5",
)
async def random_work_agrees_with_the_model(context: Context, number: int) -> None:
    """After each of many random calls, by owners and others, through clients that come and go,
    every part reads as the contract says.
    """
    work = _Work(context)
    work.clients = await context.open_many(2 + number % 2)
    for kind, count in (("task", 2), ("run", 1)):
        for _ in range(count):
            scope = Scope("task" if kind == "task" else "run", context.new_id(kind))
            work.images[scope], work.owners[scope] = Image(), []
    for _ in range(110):
        await work.step()
    for scope, wanted in work.images.items():
        await expect_image(work.clients[0], scope, wanted, f"{scope.kind} in the end")
    await work.clients[-1].sweep(older_than=timedelta(0))
    for scope, wanted in work.images.items():
        what = f"{scope.kind} after a last sweep"
        await expect_image(work.clients[0], scope, wanted, what, clause="C4")
