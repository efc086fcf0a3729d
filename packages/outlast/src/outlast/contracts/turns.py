"""The order of mutations: each waits for all that were called before it in the same queues."""

import asyncio
from types import TracebackType


class Turns:
    """One queue of mutations: of a claim, or of a scope through one backend object."""

    __slots__ = ("tail",)

    def __init__(self) -> None:
        self.tail: asyncio.Future[None] | None = None
        """Done when everything that has queued up so far is."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in the queue."""
        return self.tail is None or self.tail.done()


class Ticket:
    """A place in several queues at once, taken when it is made; entering waits for the places
    before it.

    Places in all queues are taken in one step, so two mutations never wait for each other. Whoever
    gives up while waiting leaves the place in order: those behind still wait for those before.
    """

    __slots__ = ("_before", "done")

    def __init__(self, *queues: Turns) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._before = [
            queue.tail for queue in queues if queue.tail is not None and not queue.tail.done()
        ]
        for queue in queues:
            queue.tail = self.done

    @property
    def has_to_wait(self) -> bool:
        """Whether others were before it when it was made."""
        return bool(self._before)

    async def __aenter__(self) -> None:
        for future in self._before:
            # Shielded: giving up must not cancel the place of another.
            await asyncio.shield(future)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()

    def leave(self, _: asyncio.Future[None] | None = None) -> None:
        """Let those behind go on, as soon as those before have ended; idempotent."""
        for future in self._before:
            if not future.done():
                future.add_done_callback(self.leave)
                return
        if not self.done.done():
            self.done.set_result(None)


__all__ = ["Ticket", "Turns"]
