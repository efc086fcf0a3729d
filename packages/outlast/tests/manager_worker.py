"""A process that changes a task's state and messages until it is killed.

Started by test_manager_kills with a store's URL. It prints a line for each change, with the time,
one for each save that it waited for, and one when a write begins and when it has ended.
"""

import asyncio
import sys
import time
from typing import Any

from outlast import ApiMessage, PersistenceManager, open_backend
from outlast.runtime import MessageManager, StateManager

DEBOUNCE = 0.1
MAX_WAIT = 0.5
STEP = 0.01
"""Seconds between two changes."""


def say(what: str, number: int) -> None:
    print(what, number, time.monotonic(), flush=True)


class Telling:
    """A store that says when a write begins and ends."""

    def __init__(self, inner: PersistenceManager) -> None:
        self._inner = inner
        self._writes = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not name.startswith(("save_", "append_")):
            return method

        async def call(*arguments: Any, **options: Any) -> Any:
            self._writes += 1
            number = self._writes
            say("writing", number)
            try:
                return await method(*arguments, **options)
            finally:
                say("written", number)

        return call


async def main(url: str) -> None:
    """Never ends."""
    async with open_backend(url) as backend:
        claim = await backend.persistence.claim_task("t")
        store: Any = Telling(backend.persistence)
        options = {"debounce": DEBOUNCE, "max_wait": MAX_WAIT}
        state = StateManager("t", store, claim=claim, **options)
        messages = MessageManager("t", store, claim=claim, **options)
        number = 0
        while True:
            number += 1
            state.update_state(retry_count=number)
            messages.add_api_message(ApiMessage(id=f"a{number}", role="user", content="x"))
            say("changed", number)
            if number % 40 == 0:
                state.update_state(status="paused" if number % 80 else "running")
                await state.save_state_now()
                say("saved", number)
            await asyncio.sleep(STEP)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
