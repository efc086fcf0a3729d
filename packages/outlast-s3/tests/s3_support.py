"""What the tests of this distribution share: a server, and a proxy that spoils requests."""

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import boto3.session
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from outlast.driver import Fence, StoredFence
from outlast_contract.servers import Server, ServerUnavailable
from outlast_contract.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY
from outlast_s3 import S3Driver

HOST = "127.0.0.1"
KEYS = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}

Open = Callable[..., Awaitable[S3Driver]]
"""The fixture ``open_driver``: ``await open_driver(port=, namespace=, create=, timeout=)``."""


class Store:
    """A server that tests look at past the adapter."""

    bucket = BUCKET

    def __init__(self, server: Server) -> None:
        host, self.port = server.addresses[0]
        assert host == HOST
        self.client = client_for(self.port)

    def objects(self, prefix: str) -> dict[str, bytes]:
        """All objects whose names begin with ``prefix``."""
        pages = self.client.get_paginator("list_objects_v2")
        found: dict[str, bytes] = {}
        for page in pages.paginate(Bucket=self.bucket, Prefix=prefix):
            for name in [entry["Key"] for entry in page.get("Contents", ())]:
                with contextlib.suppress(self.client.exceptions.NoSuchKey):
                    answer = self.client.get_object(Bucket=self.bucket, Key=name)
                    found[name] = answer["Body"].read()
        return found


def available(make: Callable[[], Server]) -> Server:
    """The server, or a skipped test that says what was tried."""
    try:
        return make()
    except ServerUnavailable as error:
        pytest.skip(f"NOT RUN: {error.reason}")


def client_for(port: int, *, token: str | None = None, **options: Any) -> Any:
    """A client of boto3, without retries unless told otherwise."""
    settings: dict[str, Any] = {
        "retries": {"total_max_attempts": 1},
        "s3": {"addressing_style": "path"},
        **options,
    }
    session = boto3.session.Session(**KEYS, aws_session_token=token, region_name="us-east-1")
    return session.client("s3", endpoint_url=f"http://{HOST}:{port}", config=Config(**settings))


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for a condition of another process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def no_thread_works() -> bool:
    """Whether no driver has threads any more."""
    return not [one for one in threading.enumerate() if one.name.startswith("outlast-s3")]


class Request(NamedTuple):
    """A request on its way through the proxy."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def without(self, *names: str, path: str | None = None) -> "Request":
        """The same without some headers, signed anew."""
        kept = {k: v for k, v in self.headers.items() if k not in (*names, "authorization")}
        url = f"http://{self.headers['host']}{path or self.path}"
        signed = AWSRequest(self.method, url, headers=kept, data=self.body)
        S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1").add_auth(signed)
        headers = {k.lower(): str(v) for k, v in signed.headers.items()}
        return Request(self.method, path or self.path, headers, self.body)


Forward = Callable[[Request], Awaitable[bytes]]
Rule = Callable[[Request, Forward], Awaitable[bytes | None]]
"""Answers a request; ``None``: the connection is cut instead."""


class HttpProxy:
    """Forwards requests to a server, one connection for each, and lets rules spoil some.

    Attributes:
        requests: Method and path of each.
        asked: The lengths of bodies of which clients asked whether they are wanted.
        refuse: Take no more connections; only while it is running.
    """

    refuse: Callable[[], None]

    def __init__(self, port: int) -> None:
        self.port = 0
        self.requests: list[str] = []
        self.asked: list[int] = []
        self.target = port
        self._rules: list[tuple[Callable[[Request], bool], Rule]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def always(self, matches: Callable[[Request], bool], rule: Rule) -> object:
        """Apply ``rule`` to all requests that match, until `stop` is called with the result."""
        self._rules.append((matches, rule))
        return self._rules[-1]

    def stop(self, applied: object) -> None:
        """Apply it no more."""
        self._rules = [one for one in self._rules if one is not applied]

    def once(self, matches: Callable[[Request], bool], rule: Rule, times: int = 1) -> None:
        """Apply ``rule`` to the next requests that match."""
        left = times

        def still(request: Request) -> bool:
            nonlocal left
            if not left or not matches(request):
                return False
            left -= 1
            return True

        self._rules.append((still, rule))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["HttpProxy"]:
        server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        self.refuse = server.close
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()
            while self._tasks:
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            request = await self._read(reader, writer)
            self.requests.append(f"{request.method} {request.path}")
            for matches, rule in self._rules:
                if matches(request):
                    answer = await rule(request, self._forward)
                    break
            else:
                answer = await self._forward(request)
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError):
            return
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in headers.items()}
        length = int(headers.get("content-length", 0))
        if headers.pop("expect", None):
            self.asked.append(length)
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return Request(method, path, headers, await reader.readexactly(length))

    async def _forward(self, request: Request) -> bytes:
        reader, writer = await asyncio.open_connection(HOST, self.target)
        try:
            headers = {**request.headers, "connection": "close"}
            lines = [f"{request.method} {request.path} HTTP/1.1"]
            lines += [f"{name}: {value}" for name, value in headers.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode() + request.body)
            await writer.drain()
            return await reader.read()
        finally:
            writer.close()


def error(status: int, code: str, text: str = "as the test wants it") -> bytes:
    """An answer of S3 that is an error."""
    body = f"<Error><Code>{code}</Code><Message>{text}</Message></Error>"
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nConnection: close"
    return f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def answering(status: int, code: str, *text: str) -> Rule:
    """A rule: nothing is forwarded."""

    async def rule(request: Request, forward: Forward) -> bytes | None:
        return error(status, code, *text)

    return rule


async def losing(request: Request, forward: Forward) -> bytes | None:
    """A rule: the server does it, nobody hears of it."""
    await forward(request)
    return None


async def dropping(request: Request, forward: Forward) -> bytes | None:
    """A rule: the request is lost on its way."""
    return None


class Holding:
    """A rule: the client is cut off, and the request arrives when it is released."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.released = asyncio.Event()
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def __call__(self, request: Request, forward: Forward) -> bytes | None:
        self.arrived.set()
        await self.released.wait()
        self.answered.set_result(await forward(request))
        return None


def is_head(method: str = "PUT", kind: str = "") -> Callable[[Request], bool]:
    """Requests for heads."""

    def matches(request: Request) -> bool:
        folders = [f"/{kind}/"] if kind else ["/task/", "/run/"]
        return request.method == method and any(folder in request.path for folder in folders)

    return matches


def is_piece(request: Request) -> bool:
    """A new piece."""
    return request.method == "PUT" and "/piece/" in request.path


@contextmanager
def in_a_hurry(driver: S3Driver, seconds: float) -> Generator[None]:
    """Calls that begin in here have so little time; opening the driver had more."""
    patience, driver._patience = driver._patience, seconds
    try:
        yield
    finally:
        driver._patience = patience


class Owner:
    """A claim as the layer above keeps it: it counts."""

    def __init__(self, stored: StoredFence | None) -> None:
        assert stored is not None
        self.epoch, self.claim_id = stored.epoch, stored.claim_id
        self.seq = stored.seq

    def fence(self) -> Fence:
        """Of the next mutation."""
        self.seq += 1
        return Fence(self.epoch, self.claim_id, self.seq, secrets.token_hex(8))


def claim_id(number: int) -> str:
    """As a claimer chooses one."""
    return f"{number:032x}"
