"""Child processes of the suite: one that is started, and forks a worker each time it is asked.

Importing a backend's driver takes most of a second; a fork of a process that has done so takes
milliseconds. Each worker connects to the socket of the check that wants it and does what it is
told, one line of JSON after the other.
"""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import msgspec

import outlast
from outlast.driver import Scope
from outlast.errors import OutlastError
from outlast_contract.mutations import MUTATIONS, claim
from outlast_contract.owners import Owner


def main() -> None:
    """Fork a worker for each line of standard input; end with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system clears up ended workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the suite ends this process by closing its input
    known: set[str] = set()
    for line in sys.stdin.buffer:
        order: dict[str, Any] = json.loads(line)
        if order["url"] not in known:
            known.add(order["url"])
            _import(order)
        pid = os.fork()
        if pid == 0:
            _work(order)


def _import(order: dict[str, Any]) -> None:
    try:
        _backend(order)
    except OutlastError:
        return  # the workers will say so


def _backend(order: dict[str, Any]) -> outlast.Backend:
    options: dict[str, Any] = dict(order["options"])
    if "checkpoint_ttl" in options:  # JSON knows seconds only
        options["checkpoint_ttl"] = timedelta(seconds=options["checkpoint_ttl"])
    return outlast.open_backend(order["url"], namespace=order["namespace"], **options)


def _work(order: dict[str, Any]) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(order["socket"])
            asyncio.run(Worker(order, connection).run())
        code = 0
    finally:
        os._exit(code)


class Worker:
    """Does what the check says, with a backend of its own."""

    def __init__(self, order: dict[str, Any], connection: socket.socket) -> None:
        """Serve one connection."""
        self._order = order
        self._connection = connection
        self._claims: dict[str, outlast.Claim] = {}
        self._owners: dict[str, Owner] = {}
        self._backend: outlast.Backend | None = None

    async def run(self) -> None:
        """Answer each line with a line, until there are no more."""
        self._say({"pid": os.getpid(), "token": self._order["token"]})
        with self._connection.makefile("rb") as lines:
            for line in lines:
                request: dict[str, Any] = json.loads(line)
                try:
                    answer = await self._do(request.pop("do"), **request)
                except OutlastError as error:
                    answer = _told(error)
                except Exception as error:  # noqa: BLE001 - the check judges it
                    answer = {"error": type(error).__name__, "message": str(error), "foreign": True}
                self._say(answer)
        if self._backend is not None:
            await self._backend.aclose()

    def _say(self, answer: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(answer).encode() + b"\n")

    @property
    def _open(self) -> outlast.Backend:
        assert self._backend is not None
        return self._backend

    async def _do(self, command: str, **options: Any) -> dict[str, Any]:
        match command:
            case "open":
                self._backend = _backend(self._order)
                await self._backend.open()
                return {}
            case "claim":
                return await self._claim(**options)
            case "apply":
                await self._apply(**options)
                return {}
            case "append":
                return await self._append(**options)
            case "write":
                return await self._write(**options)
            case "own":
                return await self._own(**options)
            case "get":
                point = await self._open.checkpoints.get(**options)
                return {"text": point and point.text}
            case "limit":
                _limit(**options)
                return {}
            case "now":
                return {"now": time.time()}
            case "sweep":
                swept = await self._open.sweep(older_than=timedelta(**options))
                return {"tombstones": swept.tombstones}
            case _:
                raise ValueError(command)

    async def _claim(
        self, kind: str, id: str, *, times: int = 1, claim_id: str | None = None
    ) -> dict[str, Any]:
        epochs: list[int] = []
        for _ in range(times):
            owner = await claim(self._open, _scope(kind, id), claim_id=claim_id)
            self._claims[kind + id] = owner
            epochs.append(owner.epoch)
        return {"epochs": epochs, "claim_id": self._claims[kind + id].claim_id}

    async def _apply(self, mutation: str, id: str, mark: str, *, owned: bool) -> None:
        one = MUTATIONS[mutation]
        owner = self._claims[one.kind + id] if owned else None
        await one.apply(self._open, id, mark, owner)

    async def _append(self, id: str, prefix: str, count: int) -> dict[str, Any]:
        for number in range(count):
            message = outlast.ApiMessage(id=f"{prefix}{number}", role="user", content="")
            await self._open.persistence.append_api_message(id, message)
        return {}

    async def _own(self, id: str, seed: int, *, writes_stale: bool) -> dict[str, Any]:
        """Go on as the owner of a task, for some calls."""
        if id not in self._owners:
            scope = _scope("task", id)
            self._owners[id] = Owner([self._open], scope, seed, writes_stale=writes_stale)
        return {"events": msgspec.to_builtins(await self._owners[id].steps(3))}

    async def _write(
        self, task: str, run: str, mark: str, mutations: list[str], first: int
    ) -> dict[str, Any]:
        """Mutate a task and a run, saying before and after each time; end when refused."""
        number = first
        while True:
            one = MUTATIONS[mutations[number % len(mutations)]]
            target = task if one.kind == "task" else run
            self._say({"begun": number})
            try:
                owner = self._claims[one.kind + target]
                await one.apply(self._open, target, f"{mark}-{number}-", owner)
            except OutlastError as error:
                return {**_told(error), "refused": number}
            self._say({"done": number})
            number += 1


def _limit(file_size: int | None) -> None:
    # Python ignores the signal, so a write beyond the limit fails as on a full disk.
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if file_size is None else file_size, most))


def _scope(kind: str, id: str) -> Scope:
    return Scope("task" if kind == "task" else "run", id)


def _told(error: OutlastError) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "reason": getattr(error, "reason", None),
        "applied": error.applied,
        "message": str(error),
    }


if __name__ == "__main__":
    main()
