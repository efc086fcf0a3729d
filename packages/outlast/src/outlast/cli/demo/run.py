"""One run of the demo: a turn loses its process, and the next one changes hands."""

import asyncio
import time
from collections import Counter
from functools import partial

import msgspec
from rich.text import Text

from outlast import Backend, OutlastError
from outlast.cli._chat_server import ChatServer
from outlast.cli.demo import script
from outlast.cli.demo.events import (
    Accepted,
    AnyEvent,
    Claimed,
    Finished,
    Job,
    Recovered,
    Refused,
    Streaming,
    ToolRun,
)
from outlast.cli.demo.moments import PLACE_NAMES, Moment, deltas_of
from outlast.cli.demo.processes import Crew, DemoError, Worker
from outlast.cli.demo.timeline import Timeline, recovery_text
from outlast.cli.demo.verdict import compare
from outlast.models import ApiMessage, StreamCheckpoint, TaskStatus
from outlast.runtime import RecoveryKind

_LATE_WRITES = ("checkpoint", "message", "state")


class Site(msgspec.Struct, frozen=True):
    """Where the runs of one demo take place.

    Attributes:
        url: The store.
        namespace: The demo's own.
        backend: Open, on the same store; the demo only looks through it while workers are there.
        servers: The model, once for each worker, so that each can be held up by itself.
        interval: Seconds between two checkpoints.
        served: What the model says.
    """

    url: str
    namespace: str
    backend: Backend
    servers: dict[str, ChatServer]
    interval: float
    served: script.Conversation


class Outcome(msgspec.Struct):
    """What a run came to.

    Attributes:
        kill: When the first worker was killed.
        stop: When the second one was stopped.
        saved: What the store held of the killed turn.
        plans: How the killed turn went on, and the stopped one.
        epochs: Of the task's claims.
        refused: Late writes that the store refused.
        messages: The conversation as it was committed.
        problems: All that was not as it must be; empty: the run went well.
        seconds: How long it took.
    """

    kill: Moment
    stop: Moment
    saved: str = ""
    plans: list[str] = []
    epochs: list[int] = []
    refused: int = 0
    messages: list[ApiMessage] = []
    problems: list[str] = []
    seconds: float = 0.0


class Run:
    """Plays one conversation with three workers."""

    def __init__(self, site: Site, kill: Moment, stop: Moment, timeline: Timeline) -> None:
        self._site = site
        self._replies = site.served.replies()
        self._timeline = timeline
        self._workers: list[Worker] = []
        self._survivor: Worker | None = None
        self.outcome: Outcome = Outcome(kill, stop)

    async def play(self, first: Worker, crew: Crew) -> Outcome:
        """Play it; what goes wrong is among the outcome's problems.

        Args:
            first: The worker to be killed.
            crew: Two more come from here.
        """
        start = time.monotonic()
        try:
            await self._play(first, crew)
        except (DemoError, OutlastError) as error:
            self._timeline.close()
            self.outcome.problems.append(str(error))
        self.outcome.seconds = time.monotonic() - start
        return self.outcome

    @property
    def survivor(self) -> Worker | None:
        """The worker that finished the conversation, ready for another one; else none is left."""
        return self._survivor

    async def _play(self, killed: Worker, crew: Crew) -> None:
        outcome, timeline = self.outcome, self._timeline
        timeline.restart_clock()
        timeline.heading("Killed in mid-stream")
        await self._until_kill(killed)
        stopped = await crew.take()
        timeline.heading("Taken up by another process")
        await self._until_stop(stopped)
        successor = await crew.take()
        timeline.heading("Superseded while it was stopped")
        await self._finish(successor)
        timeline.heading("Woken too late")
        await self._wake(stopped)
        await successor.wait_until_ready()
        await self._check()
        claims = [event for worker in self._workers for event in worker.all(Claimed)]
        outcome.epochs = [event.epoch for event in claims if event.scope == "task"]
        outcome.plans = [_plan_of(stopped, 1), _plan_of(successor, 2)]
        self._survivor = successor

    async def dismiss(self) -> None:
        """End every worker but the survivor."""
        for worker in self._workers:
            if worker is not self._survivor:
                await worker.aclose()

    async def _until_kill(self, worker: Worker) -> None:
        moment = self.outcome.kill
        server = self._site.servers["A"]
        server.hold(self._replies[moment.turn - 1], after=moment.hold + 1)
        await self._give(worker, "A", holds_checkpoints=moment.place == "early")
        await worker.wait_for(
            lambda: moment.is_reached(worker), f"delta {moment.at} of turn {moment.turn}"
        )
        if moment.seconds is not None:
            await asyncio.sleep(moment.seconds)
        await worker.kill()
        server.release()
        self._timeline.row("demo", _signal_text("SIGKILL", worker, moment))
        self.outcome.saved = await self._show_saved(moment.turn)

    async def _until_stop(self, worker: Worker) -> None:
        moment = self.outcome.stop
        self._site.servers["B"].hold(self._replies[moment.turn - 1], after=moment.hold + 1)
        await self._give(worker, "B")
        while True:
            await worker.wait_for(
                lambda: moment.is_settled(worker), f"delta {moment.at} of turn {moment.turn}"
            )
            if await worker.stop():
                break
        self._timeline.row("demo", _signal_text("SIGSTOP", worker, moment))
        await self._show_saved(moment.turn)

    async def _finish(self, worker: Worker) -> None:
        await self._give(worker, "C")
        await worker.wait_for(lambda: worker.last(Finished) is not None, "the conversation's end")

    async def _wake(self, worker: Worker) -> None:
        """Wake the stopped worker, to which the model has said the rest of its turn meanwhile."""
        before = await self._site.backend.persistence.load_api_messages(script.TASK_ID)
        self._site.servers["B"].release()
        worker.wake()
        self._timeline.row("demo", "SIGCONT to B, which does not know that time has passed")
        await worker.wait_until_ready()
        refused = [event.what for event in worker.all(Refused) if event.reason == "superseded"]
        self.outcome.refused = len(refused)
        problems = self.outcome.problems
        problems += [f"the store took a late {event.what}" for event in worker.all(Accepted)]
        problems += [f"no late {what} was refused" for what in _LATE_WRITES if what not in refused]
        after = await self._site.backend.persistence.load_api_messages(script.TASK_ID)
        if before != after:
            problems.append("the woken process has changed the conversation")

    async def _check(self) -> None:
        """Compare what is in the store with the script."""
        outcome, backend = self.outcome, self._site.backend
        outcome.messages = await backend.persistence.load_api_messages(script.TASK_ID)
        outcome.problems += compare(outcome.messages, script.CONVERSATION.messages())
        state = await backend.persistence.load_task_state(script.TASK_ID)
        if state is None or state.status is not TaskStatus.COMPLETED:
            outcome.problems.append(f"the task is {state.status if state else 'missing'}")
        left = [found.run_id async for found in backend.checkpoints.iter_checkpoints()]
        if left:
            outcome.problems.append(f"checkpoints are left of {', '.join(left)}")
        ran = [event for worker in self._workers for event in worker.all(ToolRun)]
        counts = Counter(_call_key(event.name, event.arguments) for event in ran)
        wanted = {_call_key(call.name, call.arguments) for call in script.CONVERSATION.calls()}
        outcome.problems += [
            f"{key} ran {counts[key]} times"
            for key in sorted(wanted | counts.keys())
            if counts[key] != (key in wanted)
        ]

    async def _give(self, worker: Worker, name: str, *, holds_checkpoints: bool = False) -> None:
        site = self._site
        self._workers.append(worker)
        job = Job(
            site.url, site.namespace, site.servers[name].url, site.interval, holds_checkpoints
        )
        await worker.give(job, name, partial(self._hear, worker))

    def _hear(self, worker: Worker, event: AnyEvent) -> None:
        self._timeline.heard(worker.name, worker.pid, event)
        interrupted = {"B": script.run_id(1), "C": script.run_id(2)}.get(worker.name)
        if isinstance(event, Claimed) and event.id == interrupted and not event.found:
            self._timeline.row(worker.name, recovery_text(RecoveryKind.RESTART.value))

    async def _show_saved(self, number: int) -> str:
        """Read what the store holds of a turn, and show it."""
        turn = script.CONVERSATION.turns[number - 1]
        backend = self._site.backend
        checkpoint = await backend.checkpoints.get(script.run_id(number))
        committed = len(await backend.persistence.load_api_messages(script.TASK_ID))
        text = Text(f"holds {committed} committed message{'s' if committed != 1 else ''}")
        if checkpoint is None:
            self._timeline.row("store", text.append(f", and nothing of turn {number}"))
            return "nothing"
        text.append(f"; of turn {number}: {len(checkpoint.text)} of {len(turn.text)} characters")
        saved = f"{len(checkpoint.text)}/{len(turn.text)}"
        for call in checkpoint.tool_calls:
            wanted = len(turn.call.text) if turn.call else 0
            text.append(f", {len(call.arguments)} of {wanted} of the arguments of {call.name}")
            saved += f" + {len(call.arguments)}/{wanted}"
        self._timeline.row("store", text)
        self._timeline.row("store", _excerpt(checkpoint))
        if not turn.text.startswith(checkpoint.text):
            self.outcome.problems.append(f"the checkpoint of turn {number} is no part of the turn")
        return saved


def _plan_of(worker: Worker, turn: int) -> str:
    for event in worker.all(Recovered):
        if event.turn == turn:
            return event.plan
    return RecoveryKind.RESTART.value


def _signal_text(name: str, worker: Worker, moment: Moment) -> Text:
    total = deltas_of(script.CONVERSATION.turns[moment.turn - 1])[1]
    shown = worker.last(Streaming)
    place = PLACE_NAMES[moment.place] if moment.seconds is None else f"after {moment.seconds:g} s"
    return Text.assemble(
        (f"{name} to {worker.name}", "bold red"),
        f" {place}, {shown.deltas if shown else 0} of {total} deltas shown",
    )


def _excerpt(checkpoint: StreamCheckpoint) -> Text:
    """The end of what was saved, as it is."""
    text = Text(f"…{checkpoint.text[-36:]}", style="italic")
    for call in checkpoint.tool_calls:
        text.append(f"\n{call.name}({call.arguments}")
    return text.append("▌", style="not italic")


def _call_key(name: str, arguments: object) -> str:
    return f"{name}({msgspec.json.encode(arguments, order='sorted').decode()})"


__all__ = ["Outcome", "Run", "Site"]
