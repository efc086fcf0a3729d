"""The agent that the documentation shows is killed in mid-stream, and goes on."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outlast
from outlast.cli._chat_server import ChatServer, Reply, ScriptedCall

ROOT = Path(__file__).resolve().parent.parent
SEARCH = Reply(
    "Let me look at the sky over Rome.", (ScriptedCall("c1", "get_weather", '{"city": "Rome"}'),)
)
ANSWER = Reply("Yes: it rains from noon on, so take one with you.")


def write_program(folder: Path) -> Path:
    page = (ROOT / "docs/how-to/run-an-agent.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"<!-- tested: agent -->\n```python\n(.*?)```", page, re.DOTALL)
    program = folder / "agent.py"
    program.write_text(code, encoding="utf-8")
    return program


def start(program: Path, server: ChatServer) -> subprocess.Popen[str]:
    environment = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": server.url, "NO_PROXY": "127.0.0.1"}
    return subprocess.Popen(
        [sys.executable, program.name],
        cwd=program.parent,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def saved_text(folder: Path, run_id: str) -> str:
    """Wait until the run's checkpoint holds text; the text."""
    async with asyncio.timeout(40), outlast.open_backend(f"sqlite:///{folder}/agent.db") as backend:
        while True:
            found = await backend.checkpoints.get(run_id)
            if found is not None and found.text:
                return found.text
            await asyncio.sleep(0.01)


async def conversation(folder: Path) -> list[outlast.ApiMessage]:
    async with outlast.open_backend(f"sqlite:///{folder}/agent.db") as backend:
        assert [found.run_id async for found in backend.checkpoints.iter_checkpoints()] == []
        return await backend.persistence.load_api_messages("weather-in-rome")


@pytest.mark.slow
def test_the_agent_of_the_how_to_is_killed_and_goes_on(tmp_path: Path) -> None:
    """Killed within the text of each turn, the third process ends with the whole conversation."""
    program = write_program(tmp_path)
    resumed = ""
    with ChatServer([SEARCH, ANSWER]) as server:
        for number, reply in enumerate((SEARCH, ANSWER), 1):
            server.hold(reply, after=3)
            with start(program, server) as process:
                text = asyncio.run(saved_text(tmp_path, f"weather-in-rome-run-{number}"))
                process.send_signal(signal.SIGKILL)
                shown, _ = process.communicate(timeout=50)
            assert resumed in shown
            resumed = f"[resumed] {text}"
            server.release()
        with start(program, server) as process:
            shown, errors = process.communicate(timeout=50)
        assert (process.returncode, errors) == (0, "")
        assert resumed in shown
    question, search, result, answer = asyncio.run(conversation(tmp_path))
    assert question.content == "Do I need an umbrella in Rome today?"
    assert [block["type"] for block in search.content] == ["text", "tool_call"]
    assert search.content[0]["text"] == SEARCH.text
    assert result.content[0]["content"]["sky"] == "rain from noon on"
    assert answer.content == [{"type": "text", "text": ANSWER.text}]
