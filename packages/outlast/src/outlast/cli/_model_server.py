"""A local server that speaks a model provider's streaming protocol from a script.

For demonstrations and tests: it answers on the loopback interface alone, always the same to the
same conversation, goes on behind an assistant prefix as a model would, and misbehaves on request.
What it speaks is told by a `Dialect`.
"""

import contextlib
import itertools
import json
import os
import select
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Protocol, Self, cast

Json = dict[str, Any]
FaultKind = Literal["cut", "eof", "error", "reset", "stall", "status"]


@dataclass(frozen=True)
class ScriptedCall:
    """A tool call of a reply.

    Attributes:
        id: Of the call.
        name: The tool.
        arguments: The raw text; it need not be valid.
    """

    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True)
class Reply:
    """One scripted answer of the model.

    Attributes:
        text: What it says.
        tool_calls: What it calls afterwards.
        finish_reason: In the provider's words; ``None``: what it says to such an answer.
        reasoning: What it thinks before.
        piece: UTF-16 code units in one delta.
    """

    text: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None
    reasoning: str = ""
    piece: int = 8


def pieces(text: str, size: int) -> Iterator[str]:
    """Cut text as an API in UTF-16 would, through surrogate pairs, too."""
    units = text.encode("utf-16-le")
    for start in range(0, len(units), 2 * size):
        yield units[start : start + 2 * size].decode("utf-16-le", "surrogatepass")


@dataclass(frozen=True)
class Fault:
    """How one request goes wrong.

    Attributes:
        kind: ``cut``: the connection is closed in mid-answer; ``reset``: aborted; ``eof``: the
            answer ends as if it were complete; ``stall``: nothing more comes; ``error``: an error
            object takes the place of the next event; ``status``: the answer is an HTTP error.
        after: Events sent before.
        after_bytes: Instead: bytes of the event stream sent before; for ``cut``, ``eof`` and
            ``reset``.
        status: Of the answer.
        headers: Of the answer, such as ``retry-after``.
        body: The error object.
    """

    kind: FaultKind
    after: int = 0
    after_bytes: int | None = None
    status: int = 503
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: Json = field(
        default_factory=lambda: {"message": "scripted fault", "type": "server_error", "code": None}
    )


@dataclass
class Served:
    """What became of one request.

    Attributes:
        path: What was asked for, with its query.
        body: The request.
        prefix: The part of the reply that the request contained.
        sent: Events sent.
        outcome: How it ended; ``disconnected``: the client went away.
    """

    path: str
    body: Json
    prefix: str = ""
    sent: int = 0
    outcome: Literal["pending", "finished", "fault", "disconnected", "refused"] = "pending"


Script = Sequence[Reply] | Callable[[list[Json]], Reply]
Event = tuple[str | None, Json | str]
"""An event of a stream: its name, if the protocol gives it one, and its data."""


@dataclass(frozen=True)
class Question:
    """What a request asks for.

    Attributes:
        messages: The conversation, without a prefix.
        spoken: How many turns of the assistant it holds.
        prefix: What the assistant has said already of the turn that is asked for.
        skipped: Events of the answer that are not sent again.
    """

    messages: list[Json]
    spoken: int
    prefix: str = ""
    skipped: int = 0


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """A request that is answered by an HTTP error.

    Args:
        message: What is wrong.
        status: Of the answer.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class Dialect(Protocol):
    """A provider's protocol."""

    def read(self, method: str, path: str, body: Json) -> Question:
        """Understand a request.

        Raises:
            Refusal: It breaks the protocol's rules.
        """
        ...

    def events(self, reply: Reply, question: Question, body: Json) -> Iterator[Event]:
        """The events of a whole answer, from behind the prefix on."""
        ...

    def error(self, body: Json, *, in_stream: bool) -> Event:
        """An error: the body of an answer, or the event that takes the place of the next one."""
        ...


class ModelServer:
    """Serves in a thread of its own, from ``with`` to the end of the block.

    Args:
        dialect: What it speaks.
        script: The replies in the order of a conversation's assistant messages (the last one serves
            all further), or a function from the request's messages, without a prefix, to a reply.
        faults: One for each request in order; ``None`` and the end of the list mean none.
        pace: Seconds between events.
        chunk_bytes: Bytes sent at a time; ``None``: whole events.
        ascii_only: Whether JSON escapes all that is not ASCII, as some servers do.
        port: 0 takes a free one.
    """

    def __init__(
        self,
        dialect: Dialect,
        script: Script,
        *,
        faults: Iterable[Fault | None] = (),
        pace: float = 0.0,
        chunk_bytes: int | None = None,
        ascii_only: bool = True,
        port: int = 0,
    ) -> None:
        self.dialect = dialect
        self._script = script
        self.faults: deque[Fault | None] = deque(faults)
        self.pace = pace
        self.chunk_bytes = chunk_bytes
        self.ascii_only = ascii_only
        self.served: list[Served] = []
        self.connections = 0
        self.closing = threading.Event()
        self._held: tuple[Reply, int] | None = None
        self._released = threading.Event()
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="outlast-model-server"
        )

    @property
    def url(self) -> str:
        """The ``base_url`` for a client."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving, and close every connection."""
        self.closing.set()
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 10.0) -> bool:
        """Wait in this thread until ``condition`` holds; it is asked again whenever something was
        served.
        """
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def hold(self, reply: Reply, *, after: int) -> None:
        """Let every answer with ``reply`` wait behind ``after`` events, until `release`."""
        self._released.clear()
        self._held = (reply, after)

    def release(self) -> None:
        """Let held answers go on, and hold none any more."""
        self._held = None
        self._released.set()

    def holds(self, reply: Reply, sent: int) -> threading.Event | None:
        """For the server's threads: what an answer has to wait for behind ``sent`` events."""
        return self._released if self._held == (reply, sent) else None

    def note(self) -> None:
        """Let those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def reply_to(self, question: Question) -> Reply:
        """The reply to a conversation."""
        if callable(self._script):
            return self._script(question.messages)
        return self._script[min(question.spoken, len(self._script) - 1)]


class _Server(ThreadingHTTPServer):
    """Knows its connections, so that closing it closes them."""

    daemon_threads = False
    allow_reuse_address = True
    owner: ModelServer

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
            self.owner.connections += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Wake every thread that waits for its client."""
        with self._lock:
            for connection in self._open:
                _shut(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # A client that went away is no error.
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        self._do()

    def do_GET(self) -> None:
        self._do()

    def _do(self) -> None:
        owner = cast("_Server", self.server).owner
        size = int(self.headers.get("content-length", 0))
        served = Served(self.path, json.loads(self.rfile.read(size)) if size else {})
        owner.served.append(served)
        try:
            self._serve(owner, served)
        except OSError:
            served.outcome = "disconnected"
            self.close_connection = True
        finally:
            owner.note()

    def _serve(self, owner: ModelServer, served: Served) -> None:
        fault = owner.faults.popleft() if owner.faults else None
        if fault is not None and fault.kind == "status":
            _, error = owner.dialect.error(fault.body, in_stream=False)
            self._answer(fault.status, cast("Json", error), fault.headers)
            served.outcome = "fault"
            return
        try:
            question = owner.dialect.read(self.command, self.path, served.body)
            served.prefix = question.prefix
            reply = owner.reply_to(question)
            if not reply.text.startswith(question.prefix):
                raise Refusal("the prefix is not the begin of the reply")
        except Refusal as refusal:
            served.outcome = "refused"
            body = {"message": str(refusal), "type": "invalid_request_error", "code": None}
            _, error = owner.dialect.error(body, in_stream=False)
            self._answer(refusal.status, cast("Json", error), {})
            return
        self._stream(owner, served, reply, question, fault)

    def _answer(self, status: int, body: Json, headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(
        self,
        owner: ModelServer,
        served: Served,
        reply: Reply,
        question: Question,
        fault: Fault | None,
    ) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        sent_bytes = 0
        events = owner.dialect.events(reply, question, served.body)
        for item in itertools.islice(events, question.skipped, None):
            event = sse(item, ascii_only=owner.ascii_only)
            if fault is not None and fault.after_bytes is None and served.sent == fault.after:
                self._fail(owner, served, fault)
                return
            if fault is not None and fault.after_bytes is not None:
                left = fault.after_bytes - sent_bytes
                if len(event) > left:
                    self._send(event[:left], owner.chunk_bytes)
                    self._fail(owner, served, fault)
                    return
            released = owner.holds(reply, served.sent)
            if released is not None and not self._wait_for_client(owner, released):
                served.outcome = "disconnected"
                self.close_connection = True
                return
            self._send(event, owner.chunk_bytes)
            sent_bytes += len(event)
            served.sent += 1
            owner.note()
            if owner.pace and owner.closing.wait(owner.pace):
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")
        served.outcome = "finished"

    def _send(self, data: bytes, size: int | None) -> None:
        size = size or len(data) or 1
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def _fail(self, owner: ModelServer, served: Served, fault: Fault) -> None:
        served.outcome = "fault"
        owner.note()
        if fault.kind == "error":
            error = owner.dialect.error(fault.body, in_stream=True)
            self._send(sse(error, ascii_only=owner.ascii_only), owner.chunk_bytes)
        if fault.kind in ("error", "eof"):
            self.wfile.write(b"0\r\n\r\n")
            return
        self.close_connection = True
        if fault.kind == "stall":
            self._wait_for_client(owner)
            served.outcome = "disconnected"
        elif fault.kind == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(self.connection.detach())
        else:
            _shut(self.connection)

    def _wait_for_client(self, owner: ModelServer, released: threading.Event | None = None) -> bool:
        """Return false when the client has hung up or the server closes, true on ``released``."""
        while not owner.closing.is_set():
            if released is not None and released.is_set():
                return True
            readable, _, _ = select.select([self.connection], [], [], 0.02)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                return False
        return False


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # The client may have been faster.
        connection.shutdown(socket.SHUT_RDWR)


def sse(event: Event, *, ascii_only: bool = True) -> bytes:
    """An event as it is sent."""
    name, value = event
    if isinstance(value, str):
        text = value.encode()
    else:
        try:
            text = json.dumps(value, ensure_ascii=ascii_only).encode()
        except UnicodeEncodeError:  # Half a surrogate pair exists in escaped form only.
            text = json.dumps(value).encode()
    head = b"" if name is None else b"event: %b\n" % name.encode()
    return b"%bdata: %b\n\n" % (head, text)


__all__ = [
    "Dialect",
    "Event",
    "Fault",
    "ModelServer",
    "Question",
    "Refusal",
    "Reply",
    "ScriptedCall",
    "Served",
    "pieces",
    "sse",
]
