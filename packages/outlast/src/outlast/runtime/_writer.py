"""Writing a turn's checkpoints beside its stream: coalesced, never waited for by a delta."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from outlast.contracts import Claim, StreamCheckpointStore
from outlast.errors import FencedError
from outlast.models import StreamCheckpoint
from outlast.runtime.context import CheckpointPolicy

log = logging.getLogger("outlast.runtime.stream")

_MIN_PAUSE = 0.05
_MAX_PAUSE = 30.0
"""Seconds; the pauses after writes that failed. The first is the policy's interval, then it
doubles.
"""


class CheckpointWriter:
    """Keeps a run's checkpoint near what was streamed; at most one write is under way.

    A write that fails is logged and made again later, with what is there then. The first one that
    is fenced is the last one.

    Args:
        store: Where to write.
        claim: Of the run.
        policy: When a write is due.
        snapshot: Makes the checkpoint; called when a write begins, not when a delta arrives.
        on_fenced: Called in the background once the store has refused a write for its claim.
    """

    def __init__(
        self,
        store: StreamCheckpointStore,
        claim: Claim,
        policy: CheckpointPolicy,
        snapshot: Callable[[], StreamCheckpoint],
        on_fenced: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._claim = claim
        self._policy = policy
        self._snapshot = snapshot
        self._on_fenced = on_fenced
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._not_before = 0.0
        self._size = 0
        self._size_written = 0
        self._is_dirty = False
        self._is_stopped = False
        self._failures = 0
        self.is_fenced = False

    def touch(self, size: int) -> None:
        """Note that something changed; cheap, for every delta.

        Args:
            size: Bytes taken in so far.
        """
        self._size = size
        self._is_dirty = True
        if self._task is not None or self._is_stopped:
            return
        if self._timer is None:
            self._arm()
        elif self._is_full:
            self._start()

    @property
    def _is_full(self) -> bool:
        return self._size - self._size_written >= self._policy.max_bytes and not self._failures

    def _arm(self) -> None:
        now = self._loop.time()
        if self._is_full or now >= self._not_before:
            self._start()
        else:
            self._timer = self._loop.call_at(self._not_before, self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = self._loop.create_task(self._write(), name="outlast-checkpoint")

    async def _write(self) -> None:
        self._not_before = self._loop.time() + self._policy.interval
        self._size_written = self._size
        self._is_dirty = False
        try:
            await self._store.put(self._snapshot(), claim=self._claim)
        except FencedError as error:
            self.is_fenced = self._is_stopped = True
            self._log(logging.ERROR, "put", error)
            await self._on_fenced()
        except asyncio.CancelledError:
            self._is_dirty = True
            self._is_stopped = True
            raise
        except Exception as error:  # noqa: BLE001 - whatever a store does, the turn goes on
            self._is_dirty = True
            pause = max(self._policy.interval, _MIN_PAUSE) * 2.0 ** min(self._failures, 32)
            self._not_before = self._loop.time() + min(pause, _MAX_PAUSE)
            self._failures += 1
            self._log(logging.WARNING, "put", error)
        else:
            self._failures = 0
        finally:
            self._task = None
        if self._is_dirty and not self._is_stopped:
            self._arm()

    def stop(self) -> None:
        """Begin no further write."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def aclose(self, *, flush: bool) -> None:
        """Stop, and wait for the write under way; it ends within the store's timeout.

        Args:
            flush: Whether to write once more what no write has covered. One attempt.
        """
        self.stop()
        await self._join()
        if flush and self._is_dirty and not self.is_fenced:
            self._start()
            await self._join()

    async def _join(self) -> None:
        task = self._task
        if task is None:
            return
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise

    async def delete(self) -> None:
        """Remove the checkpoint of a committed turn, best effort; the message in the log outranks
        it.
        """
        self.stop()
        await self._join()
        if self.is_fenced:
            return
        self._is_dirty = False
        try:
            await self._store.delete(self._claim.scope.id, claim=self._claim)
        except Exception as error:  # noqa: BLE001 - the message is committed
            self._log(logging.WARNING, "delete", error)

    def _log(self, level: int, operation: str, error: Exception) -> None:
        log_failure(level, self._claim.scope.id, operation, error)


def log_failure(level: int, run_id: str, operation: str, error: Exception) -> None:
    """Log what went wrong beside a turn, with run id, operation and error."""
    log.log(
        level,
        "run %r: checkpoint %s failed: %s: %s",
        run_id,
        operation,
        type(error).__name__,
        error,
        extra={"run_id": run_id, "operation": operation},
    )


__all__ = ["CheckpointWriter", "log", "log_failure"]
