"""A process that runs one model turn, and dies or pauses in the middle if it is told to.

Started by test_run_turn_processes with a store's URL and one JSON object. The last line that it
prints is a JSON object: what became of the turn.
"""

import asyncio
import json
import os
import signal
import sys
from typing import Any

from stream_kit import QUESTION, Cut, MortalStore, ScriptedModel, rendered, says

from outlast import FencedError, open_backend
from outlast.runtime import CheckpointPolicy, RunContext, run_turn


async def main(url: str, order: dict[str, Any]) -> dict[str, Any]:
    """Run the turn as ordered."""
    async with open_backend(url) as backend:
        store = MortalStore(backend.checkpoints, None)

        async def stop() -> None:
            if order["saved"]:
                await store.settled(0.2)
            print(json.dumps({"stopping": True}), flush=True)
            os.kill(os.getpid(), signal.SIGKILL if order["how"] == "kill" else signal.SIGSTOP)

        after = order["after"]
        model = ScriptedModel(
            says(order["text"], *map(tuple, order["calls"])),
            cuts=[] if after is None else [Cut(after, stop)],
            pause=lambda: asyncio.sleep(0.001),
        )
        context = RunContext(
            backend.persistence,
            task_id="t",
            run_id="r",
            message_id="m1",
            claim=await backend.persistence.claim_task("t"),
            checkpointing=CheckpointPolicy(interval=0),
        ).with_stream_checkpoint(store)
        try:
            async with run_turn(context, model, QUESTION) as turn:
                shown = [event async for event in turn]
        except FencedError as error:
            return {"fenced": error.reason}
        assert turn.message is not None
        return {
            "content": turn.message.content,
            "shown": rendered(shown),
            "recoveries": [str(recovery.plan.kind) for recovery in turn.recoveries],
            "prefixes": model.prefixes,
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))), flush=True)
