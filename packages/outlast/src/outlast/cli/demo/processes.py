"""The demo's side of a worker process: start it, hear what it says, kill, stop and wake it."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

import msgspec

from outlast.cli.demo.events import AnyEvent, Event, Failed, Job, Ready, Saved, Saving

EventT = TypeVar("EventT", bound=Event)

PATIENCE: Final = 30.0
"""Seconds; deadline of every wait. A machine that needs longer is not slow, something is wrong."""

_QUIET_PASSES: Final = 20
_AHEAD: Final = 2

_decoder: Final = msgspec.json.Decoder(AnyEvent)


class DemoError(Exception):
    """The demo itself cannot go on: a worker died or hung."""


class Worker:
    """A worker process; made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.name: str = "?"
        self.events: list[AnyEvent] = []
        self._process = process
        self._listener: Callable[[AnyEvent], None] | None = None
        self._changed = asyncio.Condition()
        self._errors = b""
        self._has_ended = False
        self._tasks = [
            asyncio.create_task(self._listen(), name="outlast-demo-events"),
            asyncio.create_task(self._collect_errors(), name="outlast-demo-errors"),
        ]

    @classmethod
    async def start(cls) -> "Worker":
        """Start a process, and wait until it waits for its job."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # A file in the current directory must not shadow a package.
            "-m",
            "outlast.cli.demo.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        worker = cls(process)
        try:
            await worker.wait_until_ready()
        except BaseException:
            await worker.aclose()
            raise
        return worker

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def all(self, kind: type[EventT]) -> list[EventT]:
        """The events of a kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def last(self, kind: type[EventT]) -> EventT | None:
        """The newest event of a kind."""
        return next((event for event in reversed(self.events) if isinstance(event, kind)), None)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint write has begun that has not ended."""
        return isinstance(
            next((e for e in reversed(self.events) if isinstance(e, Saving | Saved)), None), Saving
        )

    async def give(self, job: Job, name: str, listener: Callable[[AnyEvent], None]) -> None:
        """Give it a job, once it is ready; what it said before is forgotten.

        Args:
            job: What it is to do.
            name: For people.
            listener: Called with everything that it says from now on.
        """
        self.name = name
        self._listener = listener
        self.events.clear()
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(job) + b"\n")
        await self._process.stdin.drain()

    async def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until ``condition`` holds; it is asked again after every event.

        Raises:
            DemoError: The worker has failed, or the deadline has come, before it did.
        """

        def is_over() -> bool:
            return condition() or self._has_ended or self.last(Failed) is not None

        try:
            async with asyncio.timeout(PATIENCE), self._changed:
                await self._changed.wait_for(is_over)
        except TimeoutError:
            raise DemoError(
                f"{self} took more than {PATIENCE:g} s before {what}{self._trouble()}"
            ) from None
        if self.last(Failed) is not None or not condition():
            if self._has_ended:
                await self._end()
            raise DemoError(f"{self} failed before {what}{self._trouble()}")

    async def wait_until_ready(self) -> None:
        """Wait until it has ended its job."""
        await self.wait_for(lambda: self.last(Ready) is not None, "it was ready")

    async def kill(self) -> None:
        """SIGKILL: what the kernel does when memory runs out. Returns when the process is gone."""
        self._signal(signal.SIGKILL)
        await self._end()
        if self._process.returncode != -signal.SIGKILL:
            raise DemoError(
                f"{self} ended by itself ({self._process.returncode}) before it was killed"
                f"{self._trouble()}"
            )

    async def stop(self) -> bool:
        """SIGSTOP, and wait until it stands still.

        Returns:
            Whether it stands between two writes; within one, it is woken again.
        """
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE
        while True:
            # WNOWAIT leaves the status to whoever waits for the process's end.
            options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, self.pid, options) is not None:  # noqa: ASYNC222 - WNOHANG
                break
            if time.monotonic() > deadline or self._has_ended:
                raise DemoError(f"{self} does not stop{self._trouble()}")
            await asyncio.sleep(0.001)
        await self._drain()
        if self.is_writing:
            self.wake()
            return False
        return True

    def wake(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    async def aclose(self) -> None:
        """Leave nothing behind, whatever state it is in."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()  # Ends a stopped process, too.
        await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _end(self) -> None:
        """Wait for its end, and hear all that it has said until then."""
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.wait(self._tasks)
                await self._process.wait()
        except TimeoutError:
            raise DemoError(f"{self} does not end{self._trouble()}") from None

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if not line.endswith(b"\n"):
                break  # Its end came within a line.
            event = _decoder.decode(line)
            self.events.append(event)
            if self._listener is not None:
                self._listener(event)
            async with self._changed:
                self._changed.notify_all()
        self._has_ended = True
        async with self._changed:
            self._changed.notify_all()

    async def _collect_errors(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(4096):
            self._errors = (self._errors + data)[-20_000:]

    async def _drain(self) -> None:
        """Hear everything that it has said; it stands still."""
        heard, quiet = len(self.events), 0
        while quiet < _QUIET_PASSES:
            await asyncio.sleep(0)  # One pass of the loop reads what is in the pipe.
            quiet = quiet + 1 if heard == len(self.events) else 0
            heard = len(self.events)

    def _trouble(self) -> str:
        failed = self.last(Failed)
        text = self._errors.decode(errors="replace").strip() if failed is None else failed.error
        return f":\n{text}" if text else ""

    def __str__(self) -> str:
        return f"worker {self.name} (process {self.pid})"


class Crew:
    """Starts workers ahead of their use, since importing an SDK takes longer than a turn.

    Use it as an asynchronous context manager: at its end no process is left.
    """

    def __init__(self) -> None:
        self._orders: asyncio.Queue[None] = asyncio.Queue()
        self._ready: asyncio.Queue[Worker | Exception] = asyncio.Queue()
        self._workers: list[Worker] = []
        self._starter: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._starter = asyncio.create_task(self._start_workers(), name="outlast-demo-crew")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._starter is not None
        self._starter.cancel()
        await asyncio.wait({self._starter})
        for worker in self._workers:
            await worker.aclose()

    def order(self, count: int) -> None:
        """Have so many more workers started, one after the other."""
        for _ in range(count):
            self._orders.put_nowait(None)

    async def take(self) -> Worker:
        """A worker that waits for its first job; one must have been ordered.

        Raises:
            DemoError: It did not start.
        """
        found = await self._ready.get()
        if isinstance(found, Exception):
            raise DemoError(str(found)) from found
        return found

    async def _start_workers(self) -> None:
        while True:
            await self._orders.get()
            try:
                worker = await Worker.start()
            except (DemoError, OSError) as error:
                self._ready.put_nowait(error)
            else:
                self._workers.append(worker)
                self._ready.put_nowait(worker)


__all__ = ["PATIENCE", "Crew", "DemoError", "Worker"]
