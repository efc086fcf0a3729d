"""The real SDK clients, with each adapter, against one server or one recording."""

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import anthropic
import openai
from protocol_kit import MessagesDialect, ResponsesDialect, StrictChatDialect, bytes_of_request

from outlast.cli._model_server import Dialect, Json, ModelServer, Refusal, Reply, sse
from outlast.model_api import Model
from outlast.providers import AnthropicMessages, OpenAIChatCompletions, OpenAIResponses

# The SDKs have changed their transport, not its shape.
httpx: Any = sys.modules.get("httpx2") or sys.modules["httpx"]

KEY = "sk-local-0123456789"
Client = Any


@dataclass(frozen=True)
class Protocol:
    """One adapter as the tests drive it.

    Attributes:
        name: Shown as the test's id.
        dialect: What the server speaks.
        model: The adapter, of a client and its parameters.
        finish_reason: Of an answer with tool calls.
        recording: The name of a recorded stream.
        params: Of the adapter.
    """

    name: str
    dialect: Callable[[], Dialect]
    model: Callable[..., Model]
    finish_reason: str
    recording: str
    params: Json = field(default_factory=dict)

    @property
    def is_anthropic(self) -> bool:
        return self.dialect is MessagesDialect

    def recorded(self) -> bytes:
        """The bytes of the recorded stream."""
        return (Path(__file__).parent / "streams" / f"{self.recording}.sse").read_bytes()

    def client(self, base_url: str, **options: Any) -> Client:
        """The real client of the protocol's SDK."""
        if self.is_anthropic:
            return anthropic.AsyncAnthropic(base_url=base_url, api_key=KEY, **options)
        return openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key=KEY, **options)

    def adapter(self, client: Client, **params: Any) -> Model:
        return self.model(client, **{**self.params, **params})

    @contextlib.asynccontextmanager
    async def at(self, server: ModelServer, **options: Any) -> AsyncIterator[Client]:
        async with self.client(server.url, **options) as client:
            yield client


def _claude(name: str) -> Callable[..., Model]:
    return lambda client, **params: AnthropicMessages(client, name, **params)


CHAT = Protocol(
    "chat",
    StrictChatDialect,
    lambda client, **params: OpenAIChatCompletions(client, "local", **params),
    "tool_calls",
    "chat",
)
RESPONSES = Protocol(
    "responses",
    ResponsesDialect,
    lambda client, **params: OpenAIResponses(client, "local", **params),
    "completed",
    "responses",
)
PREFILL = Protocol("prefill", MessagesDialect, _claude("claude-haiku-4-5"), "tool_use", "messages")
MESSAGES = Protocol("messages", MessagesDialect, _claude("claude-opus-5"), "tool_use", "messages")
ADAPTIVE = Protocol(
    "adaptive",
    MessagesDialect,
    _claude("claude-opus-5"),
    "tool_use",
    "thinking",
    {"thinking": {"type": "adaptive"}},
)
BUDGET = Protocol(
    "budget",
    MessagesDialect,
    _claude("claude-haiku-4-5"),
    "tool_use",
    "thinking",
    {"thinking": {"type": "enabled", "budget_tokens": 1024}},
)
PROTOCOLS = (CHAT, RESPONSES, PREFILL, MESSAGES, ADAPTIVE, BUDGET)


class Tape(httpx.AsyncBaseTransport):
    """Answers the first request with a recording that is cut, every further one by the dialect.

    Attributes:
        requests: The bodies that were asked, in order.
    """

    def __init__(self, first: bytes, script: Sequence[Reply]) -> None:
        self._first = first
        self._script = script

    def play(self, dialect: Dialect, cut: int, *, breaks: bool) -> None:
        """Begin anew.

        Args:
            dialect: Answers what follows.
            cut: Bytes of the recording that come.
            breaks: Whether the connection breaks then; else it ends.
        """
        self._dialect = dialect
        self._cut = cut
        self._breaks = breaks
        self.requests: list[Json] = []

    async def handle_async_request(self, request: Any) -> Any:
        await request.aread()
        body = bytes_of_request(request)
        self.requests.append(body)
        try:
            question = self._dialect.read(request.method, str(request.url), body)
        except Refusal as refusal:
            _, error = self._dialect.error(
                {"message": str(refusal), "type": "invalid_request_error"}, in_stream=False
            )
            return httpx.Response(refusal.status, json=error, request=request)
        if len(self.requests) == 1:
            if isinstance(self._dialect, MessagesDialect | ResponsesDialect):
                self._dialect.accept("recorded", "Rain?", body)
            pieces = self._begin()
        else:
            reply = self._script[min(question.spoken, len(self._script) - 1)]
            events = self._dialect.events(reply, question, body)
            whole = b"".join(sse(event) for event in islice(events, question.skipped, None))
            pieces = _whole(whole)
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, content=pieces, request=request)

    async def _begin(self) -> AsyncIterator[bytes]:
        yield self._first[: self._cut]
        if self._breaks:
            raise httpx.ReadError("cut")


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data
