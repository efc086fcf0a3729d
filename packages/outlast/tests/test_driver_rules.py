"""The rules that every driver decides by: what is accepted, and what a claim leaves."""

import pytest

from outlast.driver import Fence, StoredFence, admit, next_claim
from outlast.errors import FencedError, StaleWriteError

A, B = "a" * 32, "b" * 32
STORED = StoredFence(5, A, 7, "op7")


@pytest.mark.parametrize("stored", [None, StoredFence()], ids=["no record", "unclaimed record"])
def test_an_unclaimed_mutation_needs_an_unclaimed_scope(stored: StoredFence | None) -> None:
    assert admit(stored, None)
    with pytest.raises(FencedError) as caught:
        admit(STORED, None)
    assert caught.value.reason == "claimed"


@pytest.mark.parametrize(
    ("stored", "fence", "reason"),
    [
        (None, Fence(5, A, 8, "x"), "no_record"),
        (StoredFence(), Fence(5, A, 8, "x"), "lost"),
        (STORED, Fence(4, A, 8, "x"), "superseded"),
        (STORED, Fence(6, A, 8, "x"), "lost"),
        (STORED, Fence(5, B, 8, "x"), "lost"),
        (STORED, Fence(5, A, 7, "other"), "stale"),
        (STORED, Fence(5, A, 6, "op7"), "stale"),
        (StoredFence(10, A), Fence(9, A, 1, "x"), "superseded"),
    ],
)
def test_a_refusal_says_why(stored: StoredFence | None, fence: Fence, reason: str) -> None:
    with pytest.raises(FencedError) as caught:
        admit(stored, fence)
    assert caught.value.reason == reason
    assert isinstance(caught.value, StaleWriteError) is (reason == "stale")


def test_the_claims_next_mutation_is_new_and_a_repetition_is_done() -> None:
    assert admit(STORED, Fence(5, A, 8, "x"))
    assert admit(STORED, Fence(5, A, 100, "x"))
    assert not admit(STORED, Fence(5, A, 7, "op7"))


def test_a_claim_is_above_all_that_was_handed_out() -> None:
    assert next_claim(None, B, None, 0) == StoredFence(1, B)
    assert next_claim(StoredFence(), B, None, 3) == StoredFence(4, B)
    assert next_claim(STORED, B, None, 0) == StoredFence(6, B)
    assert next_claim(STORED, B, None, 90) == StoredFence(91, B)


def test_a_claim_that_is_stored_already_changes_nothing() -> None:
    assert next_claim(STORED, A, None, 90) is STORED
    assert next_claim(STORED, A, 1, 90) is STORED


def test_an_epoch_that_was_asked_for_is_taken_or_refused() -> None:
    assert next_claim(STORED, B, 6, 90) == StoredFence(6, B)
    for epoch in (5, 4, 1):
        with pytest.raises(FencedError) as caught:
            next_claim(STORED, B, epoch, 0)
        assert caught.value.stored_epoch == 5


def test_a_claim_that_depends_on_an_epoch_gets_the_next_one_or_is_refused() -> None:
    assert next_claim(None, B, None, 7, 0) == StoredFence(8, B)
    assert next_claim(STORED, B, None, 0, 5) == StoredFence(6, B)
    assert next_claim(STORED, B, None, 90, 5) == StoredFence(91, B)
    assert next_claim(STORED, A, None, 90, 4) is STORED
    for stored, seen, reason in (
        (STORED, 4, "superseded"),
        (STORED, 0, "superseded"),
        (STORED, 6, "no_record"),
        (StoredFence(), 5, "no_record"),
        (None, 5, "no_record"),
    ):
        with pytest.raises(FencedError, match=f"if_epoch={seen}") as caught:
            next_claim(stored, B, None, 9, seen)
        assert caught.value.reason == reason
