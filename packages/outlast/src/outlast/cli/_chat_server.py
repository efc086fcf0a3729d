"""A local server that speaks the Chat Completions streaming protocol from a script.

For demonstrations and tests: it answers on the loopback interface alone, always the same to the
same conversation, goes on behind an assistant prefix as a model would, and misbehaves on request.
"""

import argparse
import contextlib
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
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

from outlast.providers.openai_chat import CONTINUE_INSTRUCTION

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
        finish_reason: ``None``: ``tool_calls`` if there are any, else ``stop``.
        piece: UTF-16 code units in one delta.
    """

    text: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    finish_reason: str | None = None
    piece: int = 8

    def deltas(self, prefix: str = "") -> Iterator[Json]:
        """The deltas that follow ``prefix``, which is the begin of ``text``."""
        yield {"role": "assistant", "content": ""}
        for piece in _pieces(self.text[len(prefix) :], self.piece):
            yield {"content": piece}
        for index, call in enumerate(self.tool_calls):
            head = {"index": index, "id": call.id, "type": "function"}
            yield {"tool_calls": [{**head, "function": {"name": call.name, "arguments": ""}}]}
            for piece in _pieces(call.arguments, self.piece):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}

    @property
    def reason(self) -> str:
        """Why the model stops."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


def _pieces(text: str, size: int) -> Iterator[str]:
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
        body: The request.
        prefix: The part of the reply that the request contained.
        sent: Events sent.
        outcome: How it ended; ``disconnected``: the client went away.
    """

    body: Json
    prefix: str = ""
    sent: int = 0
    outcome: Literal["pending", "finished", "fault", "disconnected", "refused"] = "pending"


Script = Sequence[Reply] | Callable[[list[Json]], Reply]


class ChatServer:
    """Serves in a thread of its own, from ``with`` to the end of the block.

    Args:
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
        script: Script,
        *,
        faults: Iterable[Fault | None] = (),
        pace: float = 0.0,
        chunk_bytes: int | None = None,
        ascii_only: bool = True,
        port: int = 0,
    ) -> None:
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
        self._server.chat = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="outlast-chat-server"
        )

    @property
    def url(self) -> str:
        """The ``base_url`` for a client."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

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

    def reply_to(self, messages: list[Json]) -> tuple[Reply, str]:
        """The reply to a conversation, and the part of it that the conversation holds already."""
        prefix = ""
        if len(messages) > 1 and _is_prefix(messages[-2], messages[-1]):
            prefix = str(messages[-2].get("content") or "")
            messages = messages[:-2]
        if callable(self._script):
            return self._script(messages), prefix
        spoken = sum(message.get("role") == "assistant" for message in messages)
        return self._script[min(spoken, len(self._script) - 1)], prefix


def _is_prefix(message: Json, follower: Json) -> bool:
    return message.get("role") == "assistant" and follower.get("content") == CONTINUE_INSTRUCTION


class _Server(ThreadingHTTPServer):
    """Knows its connections, so that closing it closes them."""

    daemon_threads = False
    allow_reuse_address = True
    chat: ChatServer

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
            self.chat.connections += 1
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
        chat = cast("_Server", self.server).chat
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        served = Served(body)
        chat.served.append(served)
        try:
            self._serve(chat, served)
        except OSError:
            served.outcome = "disconnected"
            self.close_connection = True
        finally:
            chat.note()

    def _serve(self, chat: ChatServer, served: Served) -> None:
        fault = chat.faults.popleft() if chat.faults else None
        if not self.path.endswith("/chat/completions"):
            self._refuse(served, 404, "unknown path")
            return
        reply, served.prefix = chat.reply_to(cast("list[Json]", served.body["messages"]))
        if not reply.text.startswith(served.prefix):
            self._refuse(served, 400, "the prefix is not the begin of the reply")
        elif fault is not None and fault.kind == "status":
            self._answer(fault.status, {"error": fault.body}, fault.headers)
            served.outcome = "fault"
        else:
            self._stream(chat, served, reply, fault)

    def _refuse(self, served: Served, status: int, message: str) -> None:
        error = {"message": message, "type": "invalid_request_error", "code": None}
        self._answer(status, {"error": error}, {})
        served.outcome = "refused"

    def _answer(self, status: int, body: Json, headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, chat: ChatServer, served: Served, reply: Reply, fault: Fault | None) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        sent_bytes = 0
        for event in _events(reply, served, chat):
            if fault is not None and fault.after_bytes is None and served.sent == fault.after:
                self._fail(chat, served, fault)
                return
            if fault is not None and fault.after_bytes is not None:
                left = fault.after_bytes - sent_bytes
                if len(event) > left:
                    self._send(event[:left], chat.chunk_bytes)
                    self._fail(chat, served, fault)
                    return
            released = chat.holds(reply, served.sent)
            if released is not None and not self._wait_for_client(chat, released):
                served.outcome = "disconnected"
                self.close_connection = True
                return
            self._send(event, chat.chunk_bytes)
            sent_bytes += len(event)
            served.sent += 1
            chat.note()
            if chat.pace and chat.closing.wait(chat.pace):
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")
        served.outcome = "finished"

    def _send(self, data: bytes, size: int | None) -> None:
        size = size or len(data) or 1
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def _fail(self, chat: ChatServer, served: Served, fault: Fault) -> None:
        served.outcome = "fault"
        chat.note()
        if fault.kind == "error":
            self._send(_sse({"error": fault.body}, ascii_only=chat.ascii_only), chat.chunk_bytes)
        if fault.kind in ("error", "eof"):
            self.wfile.write(b"0\r\n\r\n")
            return
        self.close_connection = True
        if fault.kind == "stall":
            self._wait_for_client(chat)
            served.outcome = "disconnected"
        elif fault.kind == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            os.close(self.connection.detach())
        else:
            _shut(self.connection)

    def _wait_for_client(self, chat: ChatServer, released: threading.Event | None = None) -> bool:
        """Return false when the client has hung up or the server closes, true on ``released``."""
        while not chat.closing.is_set():
            if released is not None and released.is_set():
                return True
            readable, _, _ = select.select([self.connection], [], [], 0.02)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                return False
        return False


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # The client may have been faster.
        connection.shutdown(socket.SHUT_RDWR)


def _events(reply: Reply, served: Served, chat: ChatServer) -> Iterator[bytes]:
    """The event stream, one event at a time."""
    head: Json = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": served.body.get("model", "scripted"),
    }

    def chunk(delta: Json, reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return _sse({**head, "choices": [choice]}, ascii_only=chat.ascii_only)

    for delta in reply.deltas(served.prefix):
        yield chunk(delta, None)
    yield chunk({}, reply.reason)
    yield b"data: [DONE]\n\n"


def _sse(value: Json, *, ascii_only: bool) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:  # Half a surrogate pair exists in escaped form only.
        text = json.dumps(value).encode()
    return b"data: %b\n\n" % text


def main() -> None:
    """Serve replies from a JSON file until interrupted; the first line printed is the URL."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("replies", type=Path, help='list of {"text", "tool_calls"} objects')
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between events")
    arguments = parser.parse_args()
    replies = [
        Reply(
            text=item.get("text", ""),
            tool_calls=tuple(ScriptedCall(**call) for call in item.get("tool_calls", ())),
        )
        for item in json.loads(arguments.replies.read_text(encoding="utf-8"))
    ]
    with ChatServer(replies, port=arguments.port, pace=arguments.pace) as server:
        print(server.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()


__all__ = ["ChatServer", "Fault", "Reply", "ScriptedCall", "Served", "main"]
