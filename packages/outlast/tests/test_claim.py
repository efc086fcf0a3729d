"""The claim as a handle."""

import copy
import pickle

import pytest

import outlast
from outlast import (
    ApiMessage,
    Claim,
    CorruptDataError,
    InvalidDataError,
    InvalidIdError,
    MemoryBackend,
    Scope,
)
from outlast.contracts import new_claim_id


def test_a_claim_equals_by_scope_epoch_and_claim_id() -> None:
    identity = new_claim_id()
    one, other = (Claim(Scope("task", "t"), 1, identity, seq=seq) for seq in (0, 5))
    assert one == other
    assert len({one, other}) == 1
    assert one != Claim(Scope("run", "t"), 1, identity)
    assert one != Claim(Scope("task", "t"), 2, identity)
    assert one != "claim"


def test_a_claim_is_neither_copied_nor_pickled() -> None:
    claim = Claim(Scope("task", "t"), 1, new_claim_id())
    for spoil in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"[Cc]laim"):
            spoil(claim)


@pytest.mark.parametrize("name", ["scope", "epoch", "claim_id", "checkpoint"])
def test_a_claims_identity_is_read_only(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Claim(Scope("task", "t"), 1, new_claim_id()), name, None)


def test_the_claim_id_is_a_secret_of_its_owner_and_not_shown() -> None:
    claim = Claim(Scope("task", "t"), 7, new_claim_id())
    assert claim.claim_id not in repr(claim)
    assert "'t'" in repr(claim)


async def test_a_claim_of_another_scope_is_refused_before_anything_is_sent() -> None:
    async with outlast.open_backend("memory://") as backend:
        claim = await backend.persistence.claim_task("t")
        run = await backend.checkpoints.claim("t")
        for wrong, text in ((claim, "of task 't', not of task 'u'"), (run, "of run 't'")):
            with pytest.raises(InvalidDataError, match=text):
                await backend.persistence.append_api_message(
                    "u", ApiMessage("m", "user", ""), claim=wrong
                )
        with pytest.raises(InvalidDataError, match="claim must be a Claim"):
            await backend.persistence.delete_task("t", claim="x")  # type: ignore[arg-type]
        assert await backend.persistence.load_api_messages("u") == []


@pytest.mark.parametrize("at_least", [0, -1, 2**52 + 1, True, "5", 1.0])
async def test_an_epoch_out_of_range_is_refused(at_least: int) -> None:
    async with outlast.open_backend("memory://") as backend:
        for claim in (backend.persistence.claim_task, backend.checkpoints.claim):
            with pytest.raises(InvalidDataError, match="at_least"):
                await claim("t", at_least=at_least)
            with pytest.raises(InvalidIdError, match="claim_id"):
                await claim("t", claim_id="short")


@pytest.mark.parametrize("if_epoch", [-1, 2**53 + 1, True, "5", 1.0])
async def test_an_epoch_that_none_can_have_been_is_refused(if_epoch: int) -> None:
    async with outlast.open_backend("memory://") as backend:
        for claim in (backend.persistence.claim_task, backend.checkpoints.claim):
            with pytest.raises(InvalidDataError, match="if_epoch"):
                await claim("t", if_epoch=if_epoch)


async def test_a_claim_of_a_run_whose_checkpoint_cannot_be_read_says_that_it_was_taken() -> None:
    async with MemoryBackend() as backend:
        await backend.driver.write(Scope("run", "r"), "checkpoint", b"damaged", fence=None)
        with pytest.raises(CorruptDataError) as caught:
            await backend.checkpoints.claim("r")
        assert caught.value.applied is True
        stored = await backend.driver.read(Scope("run", "r"), "checkpoint")
        assert stored.epoch == 1
        with pytest.raises(CorruptDataError) as caught:
            await backend.checkpoints.get("r")
        assert caught.value.applied is False
