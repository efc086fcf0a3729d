"""A process that changes a task's state and messages until it is killed.

Started by test_manager_kills with a store's URL. It prints a line for each change, with the time,
and one for each save that it waited for.
"""

import asyncio
import sys
import time

from outlast import ApiMessage, open_backend
from outlast.runtime import MessageManager, StateManager

DEBOUNCE = 0.1
MAX_WAIT = 0.5


async def main(url: str) -> None:
    """Never ends."""
    async with open_backend(url) as backend:
        claim = await backend.persistence.claim_task("t")
        options = {"debounce": DEBOUNCE, "max_wait": MAX_WAIT}
        state = StateManager("t", backend.persistence, claim=claim, **options)
        messages = MessageManager("t", backend.persistence, claim=claim, **options)
        number = 0
        while True:
            number += 1
            state.update_state(retry_count=number)
            messages.add_api_message(ApiMessage(id=f"a{number}", role="user", content="x"))
            print("changed", number, time.monotonic(), flush=True)
            if number % 40 == 0:
                state.update_state(status="paused" if number % 80 else "running")
                await state.save_state_now()
                print("saved", number, time.monotonic(), flush=True)
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
