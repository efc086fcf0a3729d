"""What each provider refuses: its own rules for the conversation in a request."""

import json
import re
from collections.abc import Mapping
from typing import Any

from outlast.cli._model_server import Json, Refusal

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PREFILLED = ("claude-3", "claude-haiku-4-5", "claude-sonnet-4-5", "claude-opus-4-5")
_THINKING = ("thinking", "redacted_thinking")


def require(condition: object, complaint: str) -> None:
    """Refuse the request, unless ``condition`` holds."""
    if not condition:
        raise Refusal(complaint)


def check_chat(body: Json) -> None:
    """OpenAI Chat Completions."""
    require(body.get("messages"), "no messages")
    awaited: set[str] = set()
    for message in body["messages"]:
        role, content = message["role"], message.get("content")
        if role == "tool":
            call_id = message.get("tool_call_id")
            require(call_id in awaited, "a tool message must answer a call just before it")
            require(isinstance(content, str), "a tool message needs text")
            awaited.discard(call_id)
            continue
        require(not awaited, f"no tool message answers {sorted(awaited)}")
        require(role in ("system", "developer", "user", "assistant"), f"role {role!r}")
        calls = message.get("tool_calls", [])
        require(content is not None or calls, "neither content nor calls")
        require(not calls or role == "assistant", "calls of another role")
        for call in calls:
            require(_is_object(call["function"]["arguments"]), "arguments are no JSON object")
            require(call["id"] and call["id"] not in awaited, "call ids must be unique")
            awaited.add(call["id"])
    require(not awaited, f"no tool message answers {sorted(awaited)}")
    require(body["messages"][-1]["role"] != "assistant", "it would begin a new message")


def check_responses(body: Json, sealed: Mapping[str, str]) -> None:
    """OpenAI Responses.

    Args:
        body: The request.
        sealed: The encrypted forms of reasoning that the API has given out.
    """
    items: list[Json] = body["input"]
    require(items, "no input")
    called: dict[str, bool] = {}
    for place, item in enumerate(items):
        require("id" not in item, "items of another response are not kept")
        match item.get("type", "message"):
            case "message":
                _check_message(item)
            case "reasoning":
                require(item["encrypted_content"] in sealed, "this reasoning is not ours")
                require(isinstance(item["summary"], list), "reasoning needs a summary")
                follower = items[place + 1] if place + 1 < len(items) else {}
                is_output = follower.get("role") == "assistant"
                require(
                    is_output or follower.get("type") in ("function_call", "reasoning"),
                    "reasoning without its following item",
                )
            case "function_call":
                require(item["call_id"] not in called, "call ids must be unique")
                require(_is_object(item["arguments"]), "arguments are no JSON object")
                require(item["name"], "a call needs a name")
                called[item["call_id"]] = False
            case "function_call_output":
                require(called.get(item["call_id"]) is False, "an output without a call")
                require(isinstance(item["output"], str), "an output is text")
                called[item["call_id"]] = True
            case kind:
                raise Refusal(f"unknown item {kind!r}")
    require(all(called.values()), "no tool output found for a function call")
    require(items[-1].get("role") != "assistant", "it would begin a new message")
    for tool in body.get("tools", ()):
        require(tool["type"] == "function" and tool["name"] and "strict" in tool, "a tool")


def _check_message(item: Json) -> None:
    role, content = item["role"], item["content"]
    require(role in ("user", "assistant", "system", "developer"), f"role {role!r}")
    if not isinstance(content, str):
        text = "output_text" if role == "assistant" else "input_text"
        kinds = {text, "refusal"} if role == "assistant" else {text, "input_image", "input_file"}
        require(all(part["type"] in kinds for part in content), f"parts of role {role!r}")


def check_messages(body: Json, signed: Mapping[str, tuple[str, str]]) -> None:
    """Anthropic Messages.

    Args:
        body: The request.
        signed: By signature: the thinking that the API has given out, and the fingerprint of the
            conversation before it.
    """
    require(isinstance(body.get("max_tokens"), int), "max_tokens: field required")
    turns: list[Json] = body["messages"]
    require(turns and turns[0]["role"] == "user", "the first message must be the user's")
    used: set[str] = set()
    for place, turn in enumerate(turns):
        require(turn["role"] in ("user", "assistant"), f"role {turn['role']!r}")
        require(turn["content"], "all messages must have non-empty content")
        for block in turn["content"]:
            if block["type"] == "text":
                require(block["text"].strip(), "text must contain non-whitespace text")
            if block["type"] == "tool_use":
                require(_ID.fullmatch(block["id"]), "tool_use.id: pattern")
                require(block["id"] not in used, "tool_use ids must be unique")
                require(isinstance(block["input"], dict), "input must be an object")
                used.add(block["id"])
            if block["type"] == "tool_result" and block.get("is_error"):
                require(block["content"], "content cannot be empty if is_error")
        before = turns[place - 1]["content"] if place else []
        _check_results(turn, [block["id"] for block in before if block["type"] == "tool_use"])
        if turn["role"] == "assistant":
            _check_thinking(body, place, signed)
    _check_last(body, turns)


def _check_results(turn: Json, awaited: list[str]) -> None:
    kinds = [block["type"] for block in turn["content"]]
    results = [b["tool_use_id"] for b in turn["content"] if b["type"] == "tool_result"]
    require(
        sorted(results) == sorted(awaited),
        f"tool_use {awaited} was followed by tool_result {results}",
    )
    require(all(kind == "tool_result" for kind in kinds[: len(results)]), "tool results come first")


def _check_thinking(body: Json, place: int, signed: Mapping[str, tuple[str, str]]) -> None:
    content = body["messages"][place]["content"]
    require(content[-1]["type"] not in _THINKING, "the final block cannot be thinking")
    for block in content:
        if block["type"] == "thinking":
            known = signed.get(block["signature"])
            require(known is not None, "invalid signature in thinking block")
            assert known is not None
            require(block["thinking"] == known[0], "thinking blocks cannot be modified")
            require(block is content[0], "thinking blocks cannot be moved")
            require(fingerprint(body, place) == known[1], "what came before thinking was changed")


def _check_last(body: Json, turns: list[Json]) -> None:
    thinking = (body.get("thinking") or {}).get("type")
    last = turns[-1]
    if last["role"] == "assistant":
        require(body["model"].startswith(_PREFILLED), "this model does not support message prefill")
        require(thinking in (None, "disabled"), "no prefill while the model thinks")
        text = last["content"][-1].get("text", "")
        require(text == text.rstrip(), "content cannot end with trailing whitespace")
    elif thinking == "enabled" and last["content"][0]["type"] == "tool_result":
        require(
            turns[-2]["content"][0]["type"] in _THINKING,
            "a final assistant message must start with a thinking block",
        )


def fingerprint(body: Json, place: int) -> str:
    """Stands for the conversation up to the turn at ``place``."""
    before: list[Any] = [body.get("system"), body.get("tools"), body["messages"][:place]]
    return json.dumps(before, sort_keys=True)


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
