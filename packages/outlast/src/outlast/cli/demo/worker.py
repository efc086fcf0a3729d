"""A worker of the demo: a process that takes the conversation up where it stands.

It reads jobs from standard input, says what it does on standard output, and ends when its input
does.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable
from datetime import datetime
from queue import SimpleQueue
from typing import Final

import msgspec
import openai

import outlast
from outlast.cli.demo import script
from outlast.cli.demo.events import (
    Accepted,
    AnyEvent,
    CallCancelled,
    CallReady,
    Claimed,
    Committed,
    Failed,
    Fenced,
    Finished,
    Job,
    Ready,
    Recovered,
    Refused,
    Saved,
    Saving,
    Streaming,
    ToolRun,
)
from outlast.models import ApiMessage, StreamCheckpoint, TaskState, TaskStatus
from outlast.providers import OpenAIChatCompletions
from outlast.runtime import (
    CheckpointPolicy,
    RunContext,
    StreamReset,
    TextDelta,
    ToolCallCancelled,
    ToolCallDelta,
    ToolCallReady,
    Turn,
    plan_recovery,
    run_turn,
)

_ORPHANED: Final = 3


def say(event: AnyEvent) -> None:
    """Tell the demo, in one write, so that a kill never leaves half a line."""
    os.write(1, msgspec.json.encode(event) + b"\n")


class ReportingStore(outlast.StreamCheckpointStore):
    """Passes every call on to a checkpoint store, and says what came of it."""

    def __init__(self, store: outlast.StreamCheckpointStore, *, holds: bool) -> None:
        self._store = store
        self._holds = holds
        self.turn: int = 0
        self.claimed: outlast.Claim | None = None
        self.latest: StreamCheckpoint | None = None
        self.was_refused: bool = False

    async def claim(
        self,
        run_id: str,
        *,
        thread_id: str | None = None,
        claim_id: str | None = None,
        at_least: int | None = None,
        if_epoch: int | None = None,
    ) -> outlast.Claim:
        claim = await self._store.claim(
            run_id,
            thread_id=thread_id,
            claim_id=claim_id,
            at_least=at_least,
            if_epoch=if_epoch,
        )
        self.claimed = claim
        say(Claimed("run", run_id, claim.epoch, claim.checkpoint is not None))
        return claim

    async def get(self, run_id: str) -> StreamCheckpoint | None:
        return await self._store.get(run_id)

    async def put(
        self, checkpoint: StreamCheckpoint, *, claim: outlast.Claim | None = None
    ) -> None:
        self.latest = checkpoint
        say(Saving(self.turn))
        if self._holds:
            await asyncio.Event().wait()
        try:
            await self._store.put(checkpoint, claim=claim)
        except outlast.FencedError as error:
            self.was_refused = True
            say(_refusal("checkpoint", claim, error))
            raise
        say(
            Saved(
                self.turn,
                len(checkpoint.text),
                len(checkpoint.tool_calls),
                sum(len(call.arguments) for call in checkpoint.tool_calls),
                bool(plan_recovery(checkpoint).tool_calls),
            )
        )

    async def delete(self, run_id: str, *, claim: outlast.Claim | None = None) -> None:
        await self._store.delete(run_id, claim=claim)

    async def delete_thread(self, thread_id: str, *, force: bool = False) -> int:
        return await self._store.delete_thread(thread_id, force=force)

    def iter_checkpoints(
        self, *, thread_id: str | None = None, updated_before: datetime | None = None
    ) -> AsyncIterator[StreamCheckpoint]:
        return self._store.iter_checkpoints(thread_id=thread_id, updated_before=updated_before)


class Agent:
    """The smallest agent: model turns and tool calls until the model asks for no more tools."""

    def __init__(self, job: Job, backend: outlast.Backend, model: OpenAIChatCompletions) -> None:
        self._job = job
        self._tasks = backend.persistence
        self._store = ReportingStore(backend.checkpoints, holds=job.holds_checkpoints)
        self._model = model

    async def run(self) -> None:
        """Own the task, and bring its conversation to the end."""
        claim = await self._tasks.claim_task(script.TASK_ID)
        say(Claimed("task", script.TASK_ID, claim.epoch))
        if await self._tasks.load_task_state(script.TASK_ID) is None:
            state = TaskState(script.TASK_ID, TaskStatus.RUNNING)
            await self._tasks.save_task_state(script.TASK_ID, state, claim=claim)
            question = script.CONVERSATION.messages()[0]
            await self._tasks.append_api_message(script.TASK_ID, question, claim=claim)
        try:
            await self._converse(claim)
        except outlast.FencedError as error:
            say(Fenced(str(error)))
            await self._insist(claim)
        else:
            say(Finished())

    async def _converse(self, claim: outlast.Claim) -> None:
        while True:
            messages = await self._tasks.load_api_messages(script.TASK_ID)
            if messages[-1].role != "assistant":
                await self._take_turn(messages, claim)
                continue
            calls = script.blocks(messages[-1], "tool_call")
            if not calls:
                break
            await self._run_tools(calls, claim)
        await self._tasks.update_task_state(
            script.TASK_ID, {"status": TaskStatus.COMPLETED}, claim=claim
        )

    async def _take_turn(self, messages: list[ApiMessage], claim: outlast.Claim) -> None:
        number = 1 + sum(message.role == "assistant" for message in messages)
        self._store.turn = number
        context = RunContext(
            self._tasks,
            task_id=script.TASK_ID,
            run_id=script.run_id(number),
            message_id=script.message_id(number),
            claim=claim,
            checkpointing=CheckpointPolicy(interval=self._job.interval),
        ).with_stream_checkpoint(self._store)
        async with run_turn(context, self._model, script.request(messages)) as turn:
            await _show(number, turn)
        assert turn.message is not None
        text = sum(len(block["text"]) for block in script.blocks(turn.message, "text"))
        say(Committed(number, text, len(script.blocks(turn.message, "tool_call"))))

    async def _run_tools(self, calls: list[script.Json], claim: outlast.Claim) -> None:
        for call in calls:
            result, is_error = script.run_tool(call["name"], call["arguments"])
            say(ToolRun(call["name"], call["arguments"], is_error))
            answer = script.tool_message(call["id"], result, is_error=is_error)
            await self._tasks.append_api_message(script.TASK_ID, answer, claim=claim)

    async def _insist(self, claim: outlast.Claim) -> None:
        """Try all that is left to a process which does not know that it was superseded."""
        store, task_id = self._store, script.TASK_ID
        checkpoint, run_claim = store.latest, store.claimed
        if checkpoint is None:
            return
        if not store.was_refused:
            await _attempt("checkpoint", run_claim, store.put(checkpoint, claim=run_claim))
        text: list[script.Json] = [{"type": "text", "text": checkpoint.text}]
        message = ApiMessage(checkpoint.message_id, "assistant", text)
        append = self._tasks.append_api_message(task_id, message, claim=claim)
        await _attempt("message", claim, append)
        failed = {"status": TaskStatus.FAILED}
        update = self._tasks.update_task_state(task_id, failed, claim=claim)
        await _attempt("state", claim, update)


async def _attempt(what: str, claim: outlast.Claim | None, write: Awaitable[object]) -> None:
    try:
        await write
    except outlast.FencedError as error:
        if what != "checkpoint":  # That one has been said.
            say(_refusal(what, claim, error))
    else:
        say(Accepted(what))


def _refusal(what: str, claim: outlast.Claim | None, error: outlast.FencedError) -> Refused:
    return Refused(what, error.reason, claim.epoch if claim else 0, error.stored_epoch)


async def _show(number: int, turn: Turn) -> None:
    """Be the application: take in what it would show, and say how far that is."""
    deltas, screen, arguments, call = 0, "", "", ""
    is_first = True
    async for event in turn:
        if is_first and turn.recoveries:
            _say_recovery(number, turn)
        is_first = False
        match event:
            case StreamReset(text):
                screen, arguments, call = text, "", ""
            case TextDelta(text):
                screen, deltas = screen + text, deltas + 1
                say(Streaming(number, deltas, len(screen), len(arguments), call))
            case ToolCallDelta():
                arguments, call, deltas = arguments + event.arguments, event.name, deltas + 1
                say(Streaming(number, deltas, len(screen), len(arguments), call))
            case ToolCallReady():
                say(CallReady(number, event.name))
            case ToolCallCancelled():
                say(CallCancelled(number, event.name, event.arguments))


def _say_recovery(number: int, turn: Turn) -> None:
    plan = turn.recoveries[0].plan
    say(
        Recovered(
            number,
            plan.kind.value,
            len(plan.text),
            [call["name"] for call in plan.tool_calls],
            [call.name for call in plan.dropped],
        )
    )


async def work(job: Job) -> None:
    """Do a job."""
    backend = outlast.open_backend(job.url, namespace=job.namespace)
    # The environment's proxies are not asked: the server is on this machine.
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with (
        backend,
        openai.AsyncOpenAI(api_key="none", base_url=job.model_url, http_client=http) as client,
    ):
        model = OpenAIChatCompletions(client, script.MODEL_NAME)
        await Agent(job, backend, model).run()


def _receive(jobs: SimpleQueue[Job]) -> None:
    """Take in jobs, and end the process when the demo is gone."""
    pending = b""
    while data := os.read(0, 65536):
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            jobs.put(msgspec.json.decode(line, type=Job))
    os._exit(_ORPHANED)


def main() -> None:
    """Do one job after the other."""
    jobs: SimpleQueue[Job] = SimpleQueue()
    threading.Thread(target=_receive, args=(jobs,), daemon=True).start()
    while True:
        say(Ready())
        job = jobs.get()
        try:
            asyncio.run(work(job))
        except outlast.OutlastError as error:
            say(Failed(f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
