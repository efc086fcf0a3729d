"""Whole agents on every adapter: the real SDK clients, a server that cuts, tools in between."""

import random
from collections.abc import AsyncIterator
from operator import attrgetter
from typing import Any

import pytest
from wire_kit import PROTOCOLS, Protocol

from outlast import Backend, MemoryBackend, TaskStatus
from outlast.cli._model_server import Fault, ModelServer, Reply, ScriptedCall
from outlast.runtime import Agent, RetryPolicy

SCRIPT = [
    Reply("Ich sehe nach. ", (ScriptedCall("c1", "look", '{"q": "ü"}'),), reasoning="Hm.", piece=4),
    Reply(
        "", (ScriptedCall("c2", "look", '{"q": ""}'), ScriptedCall("c3", "fail")), reasoning="So."
    ),
    Reply("Fertig. \U0001f327", reasoning="Ja.", piece=3),
]


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with MemoryBackend() as opened:
        yield opened


async def look(q: str) -> dict[str, str]:
    """Looks something up."""
    return {"found": q}


async def fail() -> None:
    """Never works."""
    raise RuntimeError("broken")


def said(messages: list[Any]) -> list[list[dict[str, Any]]]:
    """The conversation, apart from what goes back to the provider."""
    return [
        [block for block in message.content if block["type"] != "provider"]
        if isinstance(message.content, list)
        else [{"type": "text", "text": message.content}]
        for message in messages
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=attrgetter("name"))
async def test_an_agent_comes_to_the_same_end_however_its_streams_are_cut(
    protocol: Protocol, backend: Backend
) -> None:
    """Every request on the way obeys the provider's rules, and the conversation is the one that
    runs uncut, but for calls that a cut has dropped and the model has not made again.
    """
    rng = random.Random(f"agent of {protocol.name}")
    conversations: list[Any] = []
    for run in range(6):
        cuts = [Fault("cut", after=rng.randrange(1, 14)) for _ in range(4)] if run else []
        with ModelServer(protocol.dialect(), SCRIPT, faults=cuts) as server:
            async with protocol.at(server) as client:
                agent = Agent(
                    backend.persistence,
                    protocol.adapter(client),
                    tools=[look, fail],
                    system="Sei kurz.",
                    stream_checkpoint=backend.checkpoints,
                    retry=RetryPolicy(base_delay=0.0),
                )
                async with await agent.create_task("Los!", task_id=f"t{run}") as task:
                    await task.start()
                    state = await task.wait()
                    conversation = said(task.api_messages)
        assert state.status is TaskStatus.COMPLETED, state.error
        assert not [served for served in server.served if served.outcome == "refused"]
        assert conversation[-1] == [{"type": "text", "text": SCRIPT[-1].text}]
        conversations.append(conversation)
    whole = conversations[0]
    assert len(whole) == 7
    for conversation in conversations[1:]:
        dropped = [turn for turn in whole if turn not in conversation]
        assert all(turn[0]["type"] in ("tool_call", "tool_result") for turn in dropped)
