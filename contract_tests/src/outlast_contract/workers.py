"""Child processes that open the harness's store: made, told what to do, stopped and killed."""

import asyncio
import atexit
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from outlast_contract.expect import NotRun, Violation, expect
from outlast_contract.harness import Harness
from outlast_contract.recording import injected

_PATIENCE: Final = 30.0
"""Seconds after which a worker that does not answer is taken for hung."""
_SIGNALS: Final = {signal.SIGKILL: "killed (SIGKILL)", signal.SIGSTOP: "stopped (SIGSTOP)"}
"""Those that are injected faults."""

Answer = dict[str, Any]


class _Forker:
    """The process that forks workers; one for each process of the suite, started when needed."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._path: list[str] = []

    def fork(self, order: Mapping[str, Any]) -> None:
        process = self._process
        if process is None or self._owner != os.getpid() or process.poll() is not None:
            process = self._start()
        elif self._path != sys.path:
            self._end(process, self._owner)
            process = self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()

    def _start(self) -> subprocess.Popen[bytes]:
        # What this process can import, its workers can, however it came by its path.
        paths = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONPATH": paths, **self._environment}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "outlast_contract._worker"],
            stdin=subprocess.PIPE,
            env=environment,
        )
        self._owner, self._path = os.getpid(), list(sys.path)
        atexit.register(self.end)
        return self._process

    def end(self) -> None:
        """End the process, if this one has started it."""
        atexit.unregister(self.end)
        if self._process is not None:
            self._end(self._process, self._owner)

    @staticmethod
    def _end(process: subprocess.Popen[bytes], owner: int) -> None:
        if owner == os.getpid() and process.stdin is not None:
            process.stdin.close()
            process.wait(timeout=10)


_forker = _Forker()


class Worker:
    """One child process with a backend of its own.

    Attributes:
        pid: Its process id.
    """

    def __init__(
        self, pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """For `Workers`."""
        self.pid = pid
        self._reader = reader
        self._writer = writer

    async def call(self, do: str, **options: Any) -> Answer:
        """Let it do something and return its answer; an error of outlast is in ``error``.

        Raises:
            Violation: It hangs, or raised an error of another kind.
        """
        self.tell(do, **options)
        return await self.answer()

    def tell(self, do: str, **options: Any) -> None:
        """Let it do something; `answer` waits for the answer."""
        self._writer.write(json.dumps({"do": do, **options}).encode() + b"\n")

    async def answer(self) -> Answer:
        """Its next line.

        Raises:
            Violation: It hangs, has ended, or raised an error of another kind.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await self._line()
        except TimeoutError:
            raise Violation(f"a process gave no answer within {_PATIENCE:g} s", "E6") from None
        if answer is None:
            raise Violation("a process ended by itself", "E3")
        if answer.get("foreign"):
            raise Violation(
                f"in another process {answer['error']} left the backend: {answer['message']}", "E3"
            )
        return answer

    async def done(self, do: str, **options: Any) -> Answer:
        """`call`, and expect that it was done."""
        answer = await self.call(do, **options)
        expect("error" not in answer, f"{do} in another process: {answer.get('message')}")
        return answer

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if number in _SIGNALS:
            injected(f"client process {_SIGNALS[number]}")
        os.kill(self.pid, number)

    async def kill(self) -> list[Answer]:
        """Kill it, and return what it had still said."""
        self.signal(signal.SIGKILL)
        said: list[Answer] = []
        while (answer := await self._line()) is not None:
            said.append(answer)
        self._writer.close()
        return said

    async def _line(self) -> Answer | None:
        try:
            line = await self._reader.readline()
        except ConnectionResetError:
            return None
        if not line.endswith(b"\n"):
            return None
        answer: Answer = json.loads(line)
        return answer

    async def end(self) -> None:
        """Let it close its backend and end; kill it if it does not."""
        if self._writer.is_closing():
            return
        self._writer.write_eof()
        try:
            async with asyncio.timeout(5):
                while await self._line() is not None:
                    pass
        except TimeoutError:
            await self.kill()
        self._writer.close()


class Workers:
    """Makes workers for one check: ``async with Workers(harness, namespace) as workers:``."""

    def __init__(
        self,
        harness: Harness,
        namespace: str,
        *,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Let workers open the namespace by the harness's URL.

        Args:
            harness: One that has a ``url``.
            namespace: What they open.
            environment: Further variables of their environment.
            options: Further keywords for ``outlast.open_backend``.

        Raises:
            NotRun: The harness has no URL.
        """
        if harness.url is None:
            raise NotRun("needs Harness.url: child processes open the store by it")
        self._order = {
            "url": harness.url,
            "namespace": namespace,
            "options": {**harness.options, **options},
        }
        self._forker = _Forker(environment) if environment else _forker
        self._folder = ""
        self._server: asyncio.Server | None = None
        self._waiting: dict[str, asyncio.Future[Worker]] = {}
        self._all: list[Worker] = []

    async def __aenter__(self) -> Self:
        self._folder = tempfile.mkdtemp(prefix="outlast-contract-")
        path = str(Path(self._folder) / "workers")
        self._server = await asyncio.start_unix_server(self._connected, path)
        self._order["socket"] = path
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self._all:
            await worker.end()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._forker is not _forker:
            await asyncio.to_thread(self._forker.end)

    async def spawn(self, *, opened: bool = True) -> Worker:
        """Make a worker, and let it open its backend."""
        token = secrets.token_hex(8)
        future: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        self._forker.fork({**self._order, "token": token})
        try:
            async with asyncio.timeout(_PATIENCE):
                worker = await future
        except TimeoutError:
            raise Violation("a child process did not start") from None
        if opened:
            await worker.done("open")
        return worker

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello: Answer = json.loads(await reader.readline())
        worker = Worker(hello["pid"], reader, writer)
        self._all.append(worker)
        self._waiting.pop(hello["token"]).set_result(worker)


__all__ = ["Answer", "Worker", "Workers"]
