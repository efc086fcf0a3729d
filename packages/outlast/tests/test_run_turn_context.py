"""RunContext and its policies: what they refuse, and how long a turn waits."""

import random
from typing import Any

import pytest

from outlast import InvalidDataError, InvalidIdError, MemoryBackend
from outlast.runtime import CheckpointPolicy, RetryPolicy, RunContext

NAMES: dict[str, Any] = {"task_id": "t", "run_id": "r", "message_id": "m"}


@pytest.mark.parametrize("argument", sorted(NAMES))
@pytest.mark.parametrize("bad", ["", None, "x" * 513, "\ud800"])
async def test_a_bad_id_is_refused_by_name(argument: str, bad: Any) -> None:
    """The argument is named before anything is sent."""
    async with MemoryBackend() as backend:
        with pytest.raises(InvalidIdError, match=argument):
            RunContext(backend.persistence, **{**NAMES, argument: bad})


async def test_a_claim_of_another_task_is_refused() -> None:
    """A claim guards its own scope only."""
    async with MemoryBackend() as backend:
        claim = await backend.persistence.claim_task("other")
        with pytest.raises(InvalidDataError, match="'other'"):
            RunContext(backend.persistence, **NAMES, claim=claim)
        run_claim = await backend.checkpoints.claim("t")
        with pytest.raises(InvalidDataError, match="run"):
            RunContext(backend.persistence, **NAMES, claim=run_claim)


async def test_what_is_no_store_or_policy_is_refused() -> None:
    """The argument and the expected type are named."""
    async with MemoryBackend() as backend:
        with pytest.raises(InvalidDataError, match="persistence must be a PersistenceManager"):
            RunContext(backend, **NAMES)  # type: ignore[arg-type]
        with pytest.raises(InvalidDataError, match="retry must be a RetryPolicy"):
            RunContext(backend.persistence, **NAMES, retry=3)  # type: ignore[arg-type]
        with pytest.raises(InvalidDataError, match="store must be a StreamCheckpointStore"):
            RunContext(backend.persistence, **NAMES).with_stream_checkpoint(
                backend.persistence  # type: ignore[arg-type]
            )


async def test_a_wrapper_that_passes_the_methods_on_will_do() -> None:
    """Instrumentation need not inherit from the contracts."""

    class Wrapper:
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    async with MemoryBackend() as backend:
        made = RunContext(Wrapper(backend.persistence), **NAMES)  # type: ignore[arg-type]
        made.with_stream_checkpoint(Wrapper(backend.checkpoints))  # type: ignore[arg-type]


async def test_adding_a_store_makes_a_copy() -> None:
    """The context that was given stays as it was."""
    async with MemoryBackend() as backend:
        claim = await backend.persistence.claim_task("t")
        retry, policy = RetryPolicy(max_retries=1), CheckpointPolicy(interval=1)
        plain = RunContext(
            backend.persistence, **NAMES, claim=claim, retry=retry, checkpointing=policy
        )
        stored = plain.with_stream_checkpoint(backend.checkpoints)
        assert plain.stream_checkpoint is None
        assert stored.stream_checkpoint is backend.checkpoints
        assert (stored.task_id, stored.run_id, stored.message_id) == ("t", "r", "m")
        assert (stored.claim, stored.retry, stored.checkpointing) == (claim, retry, policy)
        assert stored.task_epoch == claim.epoch == 1


@pytest.mark.parametrize(
    ("policy", "bad"),
    [
        (RetryPolicy, {"max_retries": -1}),
        (RetryPolicy, {"max_retries": 1.5}),
        (RetryPolicy, {"max_retries": True}),
        (RetryPolicy, {"base_delay": -0.1}),
        (RetryPolicy, {"max_delay": float("nan")}),
        (RetryPolicy, {"max_hint": float("inf")}),
        (RetryPolicy, {"base_delay": "1"}),
        (CheckpointPolicy, {"interval": -1}),
        (CheckpointPolicy, {"interval": float("nan")}),
        (CheckpointPolicy, {"max_bytes": 0}),
        (CheckpointPolicy, {"max_bytes": 1.5}),
    ],
    ids=str,
)
def test_a_policy_that_makes_no_sense_is_refused(policy: Any, bad: dict[str, Any]) -> None:
    """The field is named."""
    with pytest.raises(InvalidDataError, match=next(iter(bad))):
        policy(**bad)


@pytest.mark.parametrize(
    ("hint", "waited"),
    [(0.0, 0.0), (1.5, 1.5), (60, 60), (61, 60), (3600, 60), (float("inf"), 60), (-5, 0)],
)
def test_a_hint_is_followed_up_to_its_cap(hint: float, waited: float) -> None:
    """A provider can make a turn wait for a minute, not for an hour."""
    assert RetryPolicy().delay(1, hint, random.Random(1)) == waited


@pytest.mark.parametrize("hint", [None, float("nan")])
def test_without_a_usable_hint_the_wait_doubles_up_to_its_cap(hint: float | None) -> None:
    """Backoff with jitter between half of the wait and all of it."""
    rng = random.Random(7)
    policy = RetryPolicy(base_delay=0.5, max_delay=30.0)
    for retry, longest in [(1, 0.5), (2, 1.0), (3, 2.0), (7, 30.0), (1000, 30.0)]:
        waits = [policy.delay(retry, hint, rng) for _ in range(200)]
        assert all(longest / 2 <= wait <= longest for wait in waits)
        assert max(waits) - min(waits) > longest / 4
