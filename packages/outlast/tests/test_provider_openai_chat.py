"""The Chat Completions adapter with the real client, against a local server that misbehaves."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from stream_kit import rendered

from outlast import ApiMessage, Backend, MemoryBackend
from outlast.cli._chat_server import ChatServer, Fault, Reply, ScriptedCall, deltas
from outlast.providers import OpenAIChatCompletions
from outlast.runtime import (
    ModelRequest,
    RetryPolicy,
    RunContext,
    StreamEvent,
    Turn,
    run_turn,
)

KEY = "sk-local-0123456789"
QUESTION = ModelRequest([ApiMessage(id="u1", role="user", content="Wie wird das Wetter?")])
REPLY = Reply(
    "Es regnet \U0001f327\ufe0f in Århus.", (ScriptedCall("c1", "find", '{"q": "ü"}'),), piece=3
)
CONTENT = [
    {"type": "text", "text": REPLY.text},
    {"type": "tool_call", "id": "c1", "name": "find", "arguments": {"q": "ü"}},
]
EVENTS = len([*deltas(REPLY)]) + 1  # the last one says why it stops

Serve = Callable[..., ChatServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:
        yield lambda script=(REPLY,), **options: stack.enter_context(ChatServer(script, **options))


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with MemoryBackend() as opened:
        yield opened


@contextlib.asynccontextmanager
async def client_of(server: ChatServer, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY, **options) as client:
        yield client


async def run(
    backend: Backend, client: openai.AsyncOpenAI, message_id: str = "m1", **policy: Any
) -> tuple[Turn, list[StreamEvent]]:
    context = RunContext(
        backend.persistence,
        task_id="t",
        run_id="r",
        message_id=message_id,
        claim=await backend.persistence.claim_task("t"),
        retry=RetryPolicy(**{"base_delay": 0.0, **policy}),
    ).with_stream_checkpoint(backend.checkpoints)
    turn = run_turn(context, OpenAIChatCompletions(client, "local"), QUESTION)
    async with turn:
        return turn, [event async for event in turn]


async def test_an_answer_is_committed_as_it_was_streamed(serve: Serve, backend: Backend) -> None:
    """Text, then the tool call; the request carried no prefix."""
    server = serve()
    async with client_of(server) as client:
        turn, events = await run(backend, client)
    assert turn.message is not None
    assert turn.message.content == CONTENT == rendered(events)
    assert turn.finish_reason == "tool_calls"
    (served,) = server.served
    assert server.wait_for(lambda: served.outcome == "finished")
    assert served.body == {
        "model": "local",
        "messages": [{"role": "user", "content": "Wie wird das Wetter?"}],
        "stream": True,
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cut", "eof"])
async def test_a_stream_that_breaks_inside_an_event_goes_on(
    serve: Serve, backend: Backend, kind: Any
) -> None:
    """Half an event, half a character: nothing of it is ever part of the message."""
    reply = Reply("Ä\U0001f327", (ScriptedCall("c1", "f", '{"q": "ü"}'),), piece=9)
    server = serve([reply], ascii_only=False)
    content = [{"type": "text", "text": reply.text}, {**CONTENT[1], "name": "f"}]
    async with client_of(server) as client:
        after = 0
        while True:
            server.faults.append(Fault(kind, after_bytes=after))
            turn, _ = await run(backend, client, f"m{after}")
            assert turn.message is not None
            assert turn.message.content == content
            if server.served[-1].outcome == "finished" and not turn.recoveries:
                break
            after += 13
    assert after > 700


async def test_the_server_runs_as_a_process_of_its_own(backend: Backend, tmp_path: Path) -> None:
    """Its replies come from a file, its first line says where it is."""
    replies = tmp_path / "replies.json"
    calls = [{"id": "c1", "name": "find", "arguments": '{"q": "ü"}'}]
    replies.write_text(json.dumps([{"text": REPLY.text, "tool_calls": calls}]), encoding="utf-8")
    command = [sys.executable, "-m", "outlast.cli._chat_server", str(replies)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            turn, _ = await run(backend, client)
    finally:
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
    assert turn.message is not None
    assert turn.message.content == CONTENT


async def test_a_conversation_with_results_is_understood(serve: Serve, backend: Backend) -> None:
    """The second turn sees the first one's call and its result, in the API's form."""
    server = serve([REPLY, Reply("Ja.")])
    async with client_of(server) as client:
        first, _ = await run(backend, client)
        assert first.message is not None
        result = {"type": "tool_result", "call_id": "c1", "content": {"mm": 3}, "is_error": False}
        history = [
            *QUESTION.messages,
            first.message,
            ApiMessage(id="r1", role="tool", content=[result]),
        ]
        context = RunContext(backend.persistence, task_id="t2", run_id="r2", message_id="m2")
        model = OpenAIChatCompletions(client, "local", temperature=0)
        async with run_turn(context, model, ModelRequest(history)) as turn:
            async for _ in turn:
                pass
    assert turn.message is not None
    assert turn.message.content == [{"type": "text", "text": "Ja."}]
    body = server.served[-1].body
    assert body["temperature"] == 0
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool"]
    assert body["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"q":"ü"}'
    assert body["messages"][2] == {"role": "tool", "tool_call_id": "c1", "content": '{"mm":3}'}
