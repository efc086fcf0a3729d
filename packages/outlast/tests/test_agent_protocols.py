"""Agents over each provider's real client, against a server that insists on the protocol's rules.

A conversation that a provider would refuse fails the task, so a completed one was accepted in
every turn.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from operator import attrgetter
from typing import Any

import pytest
from agent_kit import Gate, reached
from wire_kit import PROTOCOLS, Protocol

from outlast import ApiMessage, Backend, MemoryBackend, TaskState, TaskStatus
from outlast.cli._model_server import Fault, ModelServer, Reply, ScriptedCall
from outlast.runtime import Agent, RetryPolicy, check_history, tool

BOTH = Reply(
    "Let me look.",
    (ScriptedCall("c1", "find", '{"word": "rain"}'), ScriptedCall("c2", "find", '{"word": "sun"}')),
    reasoning="Hm.",
)
ONE = Reply("", (ScriptedCall("c3", "find", '{"word": "wind"}'),), reasoning="And.")
LAST = Reply("It rains.", reasoning="So.")
SCRIPT = [BOTH, ONE, LAST, Reply("You are welcome.")]
Serve = Callable[..., ModelServer]


@pytest.fixture(params=PROTOCOLS, ids=attrgetter("name"))
def protocol(request: pytest.FixtureRequest) -> Protocol:
    found: Protocol = request.param
    return found


@pytest.fixture
def serve(protocol: Protocol) -> Iterator[Serve]:
    with contextlib.ExitStack() as stack:
        yield lambda script=SCRIPT, **options: stack.enter_context(
            ModelServer(protocol.dialect(), script, **options)
        )


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with MemoryBackend() as opened:
        yield opened


@tool
async def find(word: str) -> dict[str, str]:
    """Find something out."""
    return {"word": word}


def make(protocol: Protocol, backend: Backend, client: Any, *tools: Any, **options: Any) -> Agent:
    return Agent(
        backend.persistence,
        protocol.adapter(client),
        tools=tools or (find,),
        system="Be brief.",
        stream_checkpoint=backend.checkpoints,
        retry=RetryPolicy(base_delay=0),
        **options,
    )


async def complete(task: Any) -> None:
    """Wait for the end of a task, which must be a good one."""
    state = await task.wait()
    assert state.status is TaskStatus.COMPLETED, state.error
    assert check_history(task.api_messages) == []


async def test_an_agent_talks_as_the_protocol_asks(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """Two calls in a turn, a turn of nothing but a call, and a second question."""
    server = serve()
    async with protocol.at(server) as client:
        agent = make(protocol, backend, client)
        async with await agent.create_task("Weather?", task_id="t") as task:
            await task.start()
            await complete(task)
            assert task.result == LAST.text
            await task.send_message("Thank you.")
            await complete(task)
            assert task.result == "You are welcome."
    assert server.wait_for(lambda: [s.outcome for s in server.served] == ["finished"] * 4)


@pytest.mark.parametrize("after", [1, 4, 9])
async def test_a_cut_stream_goes_on(
    protocol: Protocol, serve: Serve, backend: Backend, after: int
) -> None:
    """In each turn once."""
    server = serve(faults=[Fault("cut", after=after), None, Fault("reset", after=after)])
    async with protocol.at(server) as client:
        agent = make(protocol, backend, client)
        async with await agent.create_task("Weather?", task_id="t") as task:
            await task.start()
            await complete(task)
            assert task.result == LAST.text


@pytest.mark.parametrize("how", ["abort", "roll back", "die"])
async def test_the_conversation_goes_on_after_an_interrupted_tool(
    protocol: Protocol, serve: Serve, backend: Backend, how: str
) -> None:
    """Cancelled in its first tool, the history can be continued and extended."""
    gate = Gate()

    @tool(name="find")
    async def hang(word: str) -> str:
        if not gate.opened.is_set():
            await gate()
        return word

    server = serve()
    async with protocol.at(server) as client:
        agent = make(protocol, backend, client, hang)
        task = await agent.create_task("Weather?", task_id="t")
        await task.start()
        await reached(gate.reached)
        if how == "abort":
            await task.abort()
        elif how == "roll back":
            await task.pause(rollback=True)
        await task.aclose()
        gate.opened.set()
        async with await agent.load_task("t") as task:
            if how == "abort":
                await task.send_message("Go on.")
            else:
                await task.start()
            await complete(task)
            assert task.result == LAST.text
    assert server.wait_for(lambda: {s.outcome for s in server.served} == {"finished"})


async def test_a_history_that_was_left_broken_is_accepted(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """Calls without results, results without calls, and a message in between."""
    tasks = backend.persistence
    call = {"type": "tool_call", "id": "c1", "name": "find", "arguments": {}}
    other = {"type": "tool_call", "id": "c2", "name": "find", "arguments": {}}
    answer = {"type": "tool_result", "call_id": "c2", "content": {"a": 1}, "is_error": False}
    stray = {"type": "tool_result", "call_id": "c9", "content": "x", "is_error": True}
    await tasks.save_task_state("t", TaskState(id="t", status=TaskStatus.RUNNING))
    await tasks.save_api_messages(
        "t",
        [
            ApiMessage(id="1", role="user", content="Weather?"),
            ApiMessage(id="2", role="tool", content=[stray]),
            ApiMessage(id="3", role="assistant", content=[call, other]),
            ApiMessage(id="4", role="user", content="Well?"),
            ApiMessage(id="5", role="tool", content=[answer]),
        ],
    )
    server = serve([BOTH, LAST])
    async with (
        protocol.at(server) as client,
        await make(protocol, backend, client).load_task("t") as task,
    ):
        assert len(task.repairs) == 3
        await task.start()
        await complete(task)
    assert server.wait_for(lambda: {s.outcome for s in server.served} == {"finished"})


async def test_a_refused_request_fails_the_task(
    protocol: Protocol, serve: Serve, backend: Backend
) -> None:
    """With the provider's reason; new input starts it again."""
    body = {"message": "too long", "type": "invalid_request_error", "code": None}
    server = serve(faults=[Fault("status", status=400, body=body)])
    async with protocol.at(server) as client:
        agent = make(protocol, backend, client)
        async with await agent.create_task("Weather?", task_id="t") as task:
            await task.start()
            state = await task.wait()
            assert state.status is TaskStatus.FAILED
            assert state.error is not None
            assert state.error["type"] == "PermanentModelError"
            assert "too long" in state.error["message"]
            await task.send_message("Shorter.")
            await complete(task)
