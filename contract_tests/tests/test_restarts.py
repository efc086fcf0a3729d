"""The judge of restarts: true histories pass, and each thing that can go wrong is found."""

import asyncio
import copy
import math
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import outlast
from outlast.backends.memory import MemoryDriver
from outlast.contracts import DriverBackend
from outlast.driver import Scope
from outlast_contract.expect import Violation
from outlast_contract.mutations import Image, api_of, checkpoint_of, state_of
from outlast_contract.outages import History
from outlast_contract.owners import Event, Owner

TASK, RUN = Scope("task", "t"), Scope("run", "r")


@asynccontextmanager
async def clients() -> AsyncIterator[list[outlast.Backend]]:
    url = f"memory://restarts-{secrets.token_hex(6)}"
    async with outlast.open_backend(url) as one, outlast.open_backend(url) as other:
        yield [one, other]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scope", [TASK, RUN], ids=["task", "run"])
async def test_what_a_good_store_did_is_accepted(scope: Scope, seed: int) -> None:
    """And it was enough: reads, claims, and refusals of superseded claims are in it."""
    history = History(timeout=10.0, keeps_data=True, keeps_fences=True)
    async with clients() as opened:
        owner = Owner(opened, scope, seed)
        history.add(await owner.steps(400))
    history.check()
    events = history.events[scope]
    assert sum(event.seen is not None for event in events) >= 40
    assert sum(event.name == "claim" for event in events) >= 20
    assert sum(event.reason == "superseded" for event in events) >= 60


@pytest.mark.parametrize("loses", ["data", "fences"])
@pytest.mark.parametrize("seed", range(4))
async def test_a_store_that_goes_back_is_found_out(loses: str, seed: int) -> None:
    """What was done of late is undone between two calls, as after a crash without a log."""
    history = History(timeout=10.0, keeps_data=True, keeps_fences=True)
    async with clients() as opened:
        owner = Owner(opened, TASK, seed, removes=False)
        history.add(await owner.steps(60))
        assert isinstance(opened[0], DriverBackend)
        driver = opened[0].driver
        assert isinstance(driver, MemoryDriver)
        (record,) = driver.store.records.values()
        before = copy.deepcopy(record)
        history.add(await owner.steps(20))
        if loses == "data":
            record.registers, record.logs = before.registers, before.logs
        else:
            record.fence = before.fence
        history.add(await owner.steps(60))
    with pytest.raises(Violation) as caught:
        history.check()
    assert caught.value.clause == {"data": "D1", "fences": "F2"}[loses]


class Play:
    """A history that is written by hand."""

    def __init__(self, scope: Scope = TASK) -> None:
        self.scope = scope
        self.history = History(timeout=1.0, keeps_data=True, keeps_fences=True)
        self._now = 100.0
        self.call("claim", epoch=1)

    def call(self, name: str, mark: str = "", *, epoch: int = 1, **known: Any) -> "Play":
        event = Event(self.scope, name, self._now, self._now + 0.5, mark, epoch)
        self._now += 1
        self.history.add([msgspec.structs.replace(event, **known)])
        return self

    def fail(self, name: str, error: str, mark: str = "", **known: Any) -> "Play":
        outcome = "unknown" if error == "OutcomeUnknownError" else "refused"
        return self.call(name, mark, error=error, outcome=outcome, **known)

    def sees(self, *api: str, **parts: Any) -> "Play":
        seen = Image(api=[api_of(mark) for mark in api], **parts)
        return self.call("read", seen=seen)

    def away(self) -> "Play":
        self.history.outages.append((self._now - 0.25, self._now + 0.25))
        return self


BAD: dict[str, tuple[str, Callable[[Play], Play]]] = {
    "a done append is missing": (
        "D1",
        lambda p: p.call("append_api_message", "1").call("append_api_message", "2").sees("1"),
    ),
    "a done append is there twice": (
        "D1",
        lambda p: p.call("append_api_message", "1").sees("1", "1"),
    ),
    "two appends changed places": (
        "D1",
        lambda p: p.call("append_api_message", "1").call("append_api_message", "2").sees("2", "1"),
    ),
    "an unanswered append came in later": (
        "D1",
        lambda p: (
            p.away()
            .fail("append_api_message", "OutcomeUnknownError", "1")
            .call("append_api_message", "2")
            .sees("2", "1")
        ),
    ),
    "an unanswered append came in after all": (
        "D1",
        lambda p: (
            p.away()
            .fail("append_api_message", "OutcomeUnknownError", "1")
            .call("append_api_message", "2")
            .sees("2")
            .sees("1", "2")
        ),
    ),
    "a refused append was done": (
        "D1",
        lambda p: p.away().fail("append_api_message", "UnavailableError", "1").sees("1"),
    ),
    "a register has a value from before": (
        "D1",
        lambda p: (
            p.call("save_task_state", "1")
            .call("save_task_state", "2")
            .sees(state=state_of("t", "1"))
        ),
    ),
    "a saved state is not found": (
        "D1",
        lambda p: p.call("save_task_state", "1").fail("update_task_state", "TaskNotFoundError"),
    ),
    "a superseded claim writes": (
        "F2",
        lambda p: p.call("claim", epoch=2).call("save_task_state", "1", is_stale=True),
    ),
    "a superseded claim is taken for the store's mistake": (
        "F13",
        lambda p: p.call("claim", epoch=2).fail(
            "save_task_state", "FencedError", "1", is_stale=True, reason="lost"
        ),
    ),
    "the newest claim is refused": (
        "F2",
        lambda p: p.fail("save_task_state", "FencedError", "1", reason="lost"),
    ),
    "an epoch comes again": ("F1", lambda p: p.call("claim", epoch=2).call("claim", epoch=2)),
    "an error that nobody documents": (
        "E2",
        lambda p: p.fail("append_api_message", "ConflictError", "1"),
    ),
    "a call that takes too long": ("E6", lambda p: p.call("read", ended=math.inf)),
    "a client that does not find back": (
        "C8",
        lambda p: p.away().call("read").fail("read", "UnavailableError"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_goes_wrong_is_found(name: str) -> None:
    """With the clause, and the calls that show it."""
    clause, play = BAD[name]
    with pytest.raises(Violation, match=r"the server was away") as caught:
        play(Play()).history.check()
    assert caught.value.clause == clause


def test_what_was_not_answered_may_be_in_or_not() -> None:
    """Once a later write of the claim is done it is settled, one way or the other."""
    for seen in (["1", "2"], ["2"]):
        play = Play().away().fail("append_api_message", "OutcomeUnknownError", "1")
        play.call("append_api_message", "2").sees(*seen).sees(*seen).history.check()


def test_a_late_claim_may_supersede_the_newest_owner_but_lets_nobody_write() -> None:
    """F10: the owner claims again; until then nothing of the superseded claim is done."""
    superseded = {"error": "FencedError", "reason": "superseded"}
    play = Play()
    play.history.late_since = 0.0
    play.fail("save_task_state", mark="1", **superseded).call("claim", epoch=3).history.check()
    play = Play()
    play.history.late_since = 0.0
    play.fail("save_task_state", mark="1", **superseded).call("save_task_state", "2")
    with pytest.raises(Violation, match="late claim") as caught:
        play.history.check()
    assert caught.value.clause == "F2"


SUPERSEDED: dict[str, Any] = {"error": "FencedError", "reason": "superseded"}


def test_an_unanswered_claim_may_supersede_at_any_later_time() -> None:
    """F10: its repetition was answered, and still it may come; then the owner claims again."""
    play = Play().away().fail("claim", "OutcomeUnknownError", claim_id="aa").call("read")
    play.call("claim", epoch=2, claim_id="aa").call("claim", epoch=3, claim_id="bb")
    for mark in "123":
        play.call("save_task_state", mark, epoch=3)
    play.fail("save_task_state", mark="4", epoch=3, holder=("aa", 4), **SUPERSEDED)
    play.call("claim", epoch=5, claim_id="cc").sees(state=state_of("t", "3")).history.check()


@pytest.mark.parametrize(
    ("holder", "says"),
    [
        (("bb", 5), "which was answered before"),
        (("ee", 5), "which nobody sent"),
        (("aa", 3), "epoch 3 of claim aa"),
    ],
)
def test_nothing_but_an_unanswered_claim_may_supersede(holder: tuple[str, int], says: str) -> None:
    """The store shows whose claim it holds, and its epoch must be newer."""
    play = Play().away().fail("claim", "OutcomeUnknownError", claim_id="aa")
    play.call("claim", epoch=2, claim_id="bb").call("claim", epoch=3, claim_id="cc")
    play.fail("save_task_state", mark="1", epoch=3, holder=holder, **SUPERSEDED)
    with pytest.raises(Violation, match=says) as caught:
        play.history.check()
    assert caught.value.clause == "F2"


def test_an_owner_is_not_superseded_if_every_claim_was_answered() -> None:
    play = Play().call("claim", epoch=2, claim_id="aa")
    play.fail("save_task_state", mark="1", epoch=2, **SUPERSEDED)
    with pytest.raises(Violation, match="every claim was answered") as caught:
        play.history.check()
    assert caught.value.clause == "F2"


def test_reads_settle_what_was_not_answered() -> None:
    """Applied, not applied, or overwritten so that nobody can tell."""
    play = Play().away().fail("append_api_message", "OutcomeUnknownError", "1")
    play.away().fail("append_api_message", "OutcomeUnknownError", "2")
    play.away().fail("save_task_state", "OutcomeUnknownError", "3")
    play.call("save_task_state", "4").sees("2", state=state_of("t", "4")).history.check()
    fates = play.history.fates[TASK]
    assert list(fates.values()) == ["not applied", "applied", "cannot be told"]
    assert play.history.count(fate="applied") == 1


def test_a_claim_of_a_run_returns_what_was_put() -> None:
    """F5: what it returns counts as read."""
    play = Play(RUN).call("put", "1")
    old = Image(checkpoint=checkpoint_of("r", "0"))
    with pytest.raises(Violation):
        play.call("claim", epoch=2, seen=old).history.check()


async def test_without_durability_only_inventions_are_wrong() -> None:
    """Loss is allowed then, a message that nobody sent or a changed order is not."""

    def judged(*seen: str) -> None:
        play = Play().call("append_api_message", "1").call("append_api_message", "2")
        play.history.keeps_data = play.history.keeps_fences = False
        play.sees(*seen).call("claim", epoch=1).history.check()

    judged("2")
    judged("1")
    for wrong in (("3",), ("2", "1"), ("1", "1")):
        with pytest.raises(Violation) as caught:
            judged(*wrong)
        assert caught.value.clause == "A3"


async def test_owners_repeat_an_unanswered_claim_as_the_same() -> None:
    """F10: the claim_id stays until it is answered, so that no claim is left behind."""
    async with clients() as opened:
        ids: list[object] = []
        asked = opened[0].persistence.claim_task

        async def unanswered(task_id: str, **options: object) -> outlast.Claim:
            ids.append(options["claim_id"])
            if len(ids) < 3:
                raise outlast.OutcomeUnknownError("no answer")
            await asyncio.sleep(0)
            return await asked(task_id, **options)  # type: ignore[arg-type]

        opened[0].persistence.claim_task = unanswered  # type: ignore[method-assign]
        owner = Owner(opened[:1], TASK, 0)
        events = await owner.steps(3)
    assert [event.outcome for event in events] == ["unknown", "unknown", "done"]
    assert len(set(ids)) == 1
