"""The protocols of model providers as a local server speaks them, rules included."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any
from urllib.parse import parse_qs, urlsplit

from protocol_rules import check_chat, check_messages, check_responses, fingerprint

from outlast.cli._chat_server import ChatDialect
from outlast.cli._model_server import Event, Json, Question, Refusal, Reply, pieces
from outlast.providers.openai_chat import CONTINUE_INSTRUCTION


class StrictChatDialect(ChatDialect):
    """Chat Completions with its rules."""

    def read(self, method: str, path: str, body: Json) -> Question:
        question = super().read(method, path, body)
        check_chat(body)
        return question


def _said(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@dataclass(frozen=True)
class ResponsesQuestion(Question):
    """The question, and the response that answers it."""

    response_id: str = ""


class ResponsesDialect:
    """OpenAI Responses, with background responses that can be gone back to.

    Attributes:
        expired: Background responses that are not kept any more.
    """

    def __init__(self) -> None:
        self._sealed: dict[str, str] = {}
        self._background: dict[str, ResponsesQuestion] = {}
        self._number = count(1)
        self.expired: set[str] = set()

    def read(self, method: str, path: str, body: Json) -> Question:
        if method == "GET":
            return self._take_up(path)
        if not path.endswith("/responses"):
            raise Refusal("unknown path", 404)
        check_responses(body, self._sealed)
        items: list[Json] = body["input"]
        prefix = ""
        if items[-1].get("content") == CONTINUE_INSTRUCTION:
            prefix = _said(items[-2]["content"])
            items = items[:-2]
        spoken = sum(is_output for is_output, _ in groupby(items, _is_output))
        response_id = f"resp_{next(self._number)}"
        question = ResponsesQuestion(items, spoken, prefix, response_id=response_id)
        if body.get("background"):
            self._background[response_id] = question
        return question

    def accept(self, secret: str, reasoning: str, body: Json) -> None:
        """Know reasoning that was given out in answer to ``body`` elsewhere."""
        self._sealed[secret] = reasoning

    def _take_up(self, path: str) -> Question:
        parts = urlsplit(path)
        found = self._background.get(parts.path.rpartition("/")[2])
        if found is None or found.response_id in self.expired:
            raise Refusal("no such response", 404)
        query = parse_qs(parts.query)
        if query.get("stream") != ["true"]:
            raise Refusal("only streams here")
        seen = int(query["starting_after"][0]) + 1
        return ResponsesQuestion(
            found.messages, found.spoken, found.prefix, seen, response_id=found.response_id
        )

    def events(self, reply: Reply, question: Question, body: Json) -> Iterator[Event]:
        number = count()
        assert isinstance(question, ResponsesQuestion)
        for kind, fields in self._stream(reply, question):
            yield kind, {"type": kind, "sequence_number": next(number), **fields}

    def _stream(self, reply: Reply, question: ResponsesQuestion) -> Iterator[tuple[str, Json]]:
        head = {"id": question.response_id, "object": "response", "error": None, "output": []}
        yield "response.created", {"response": {**head, "status": "in_progress"}}
        yield "response.in_progress", {"response": {**head, "status": "in_progress"}}
        place = count()
        if reply.reasoning:
            yield from self._reason(reply, next(place))
        if rest := reply.text[len(question.prefix) :]:
            yield from _speak(rest, reply.piece, next(place))
        for call in reply.tool_calls:
            index = next(place)
            item = {"type": "function_call", "id": f"fc_{index}", "call_id": call.id}
            item = {**item, "name": call.name, "arguments": "", "status": "in_progress"}
            at = {"output_index": index, "item_id": item["id"]}
            yield "response.output_item.added", {"output_index": index, "item": item}
            for piece in pieces(call.arguments, reply.piece):
                yield "response.function_call_arguments.delta", {**at, "delta": piece}
            whole = {"arguments": call.arguments}
            yield "response.function_call_arguments.done", {**at, **whole}
            item = {**item, **whole, "status": "completed"}
            yield "response.output_item.done", {"output_index": index, "item": item}
        reason = reply.finish_reason
        end = "incomplete" if reason else "completed"
        details = {"incomplete_details": {"reason": reason} if reason else None}
        yield f"response.{end}", {"response": {**head, **details, "status": end}}

    def _reason(self, reply: Reply, index: int) -> Iterator[tuple[str, Json]]:
        secret = f"sealed-{len(self._sealed)}"
        self.accept(secret, reply.reasoning, {})
        item: Json = {"type": "reasoning", "id": f"rs_{index}", "summary": []}
        part = {"output_index": index, "item_id": item["id"], "summary_index": 0}
        partial = {**item, "encrypted_content": secret[:3]}
        yield "response.output_item.added", {"output_index": index, "item": partial}
        for piece in pieces(reply.reasoning, reply.piece):
            yield "response.reasoning_summary_text.delta", {**part, "delta": piece}
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        whole = {**item, "summary": summary, "encrypted_content": secret, "status": "completed"}
        yield "response.output_item.done", {"output_index": index, "item": whole}

    def error(self, body: Json, *, in_stream: bool) -> Event:
        if not in_stream:
            return None, {"error": body}
        code = body.get("code") or body.get("type")
        event = {"type": "error", "code": code, "message": body["message"], "param": None}
        return "error", {**event, "sequence_number": 99}


def _is_output(item: Json) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("function_call", "reasoning")


def _speak(text: str, size: int, index: int) -> Iterator[tuple[str, Json]]:
    item: Json = {"type": "message", "id": f"msg_{index}", "role": "assistant", "content": []}
    at = {"output_index": index, "item_id": item["id"], "content_index": 0}
    part: Json = {"type": "output_text", "text": "", "annotations": []}
    started = {**item, "status": "in_progress"}
    yield "response.output_item.added", {"output_index": index, "item": started}
    yield "response.content_part.added", {**at, "part": part}
    for piece in pieces(text, size):
        yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**at, "text": text, "logprobs": []}
    part = {**part, "text": text}
    yield "response.content_part.done", {**at, "part": part}
    item = {**item, "content": [part], "status": "completed"}
    yield "response.output_item.done", {"output_index": index, "item": item}


class MessagesDialect:
    """Anthropic Messages, with thinking that is bound to what came before it."""

    def __init__(self) -> None:
        self._signed: dict[str, tuple[str, str]] = {}

    def read(self, method: str, path: str, body: Json) -> Question:
        if method != "POST" or not path.endswith("/v1/messages"):
            raise Refusal("unknown path", 404)
        check_messages(body, self._signed)
        turns: list[Json] = body["messages"]
        prefix = ""
        if turns[-1]["content"][-1].get("text") == CONTINUE_INSTRUCTION:
            prefix = _said(turns[-2]["content"])
            turns = turns[:-2]
        elif turns[-1]["role"] == "assistant":
            prefix = _said(turns[-1]["content"])
            turns = turns[:-1]
        spoken = sum(turn["role"] == "assistant" for turn in turns)
        return Question(turns, spoken, prefix)

    def events(self, reply: Reply, question: Question, body: Json) -> Iterator[Event]:
        for data in self._stream(reply, question, body):
            yield data["type"], data

    def _stream(self, reply: Reply, question: Question, body: Json) -> Iterator[Json]:
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
        message = {**message, "model": body["model"], "stop_reason": None, "usage": usage}
        yield {"type": "message_start", "message": message}
        place = count()
        thinks = (body.get("thinking") or {}).get("type") in ("enabled", "adaptive")
        if reply.reasoning and thinks:
            yield from self._think(reply, body, next(place))
        yield {"type": "ping"}
        if rest := reply.text[len(question.prefix) :]:
            deltas = [{"type": "text_delta", "text": p} for p in pieces(rest, reply.piece)]
            yield from _block(next(place), {"type": "text", "text": ""}, deltas)
        for call in reply.tool_calls:
            parts = ["", *pieces(call.arguments, reply.piece)]
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in parts]
            use = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield from _block(next(place), use, deltas)
        reason = reply.finish_reason or ("tool_use" if reply.tool_calls else "end_turn")
        delta = {"stop_reason": reason, "stop_sequence": None}
        yield {"type": "message_delta", "delta": delta, "usage": usage}
        yield {"type": "message_stop"}

    def accept(self, secret: str, reasoning: str, body: Json) -> None:
        """Know thinking that was given out in answer to ``body`` elsewhere."""
        self._signed[secret] = (reasoning, fingerprint(body, len(body["messages"])))

    def _think(self, reply: Reply, body: Json, index: int) -> Iterator[Json]:
        signature = f"signature-{len(self._signed)}=="
        self.accept(signature, reply.reasoning, body)
        parts = pieces(reply.reasoning, reply.piece)
        deltas: list[Json] = [{"type": "thinking_delta", "thinking": part} for part in parts]
        deltas.append({"type": "signature_delta", "signature": signature})
        yield from _block(index, {"type": "thinking", "thinking": "", "signature": ""}, deltas)

    def error(self, body: Json, *, in_stream: bool) -> Event:
        kind = "overloaded_error" if body["type"] == "server_error" else body["type"]
        error: Json = {"type": kind, "message": body["message"]}
        if body.get("code") == "insufficient_quota":
            error["details"] = {"error_code": "enforced_spend_limit_reached"}
        return "error", {"type": "error", "error": error}


def _block(index: int, content: Json, deltas: list[Json]) -> Iterator[Json]:
    yield {"type": "content_block_start", "index": index, "content_block": content}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def bytes_of_request(request: Any) -> Json:
    """The JSON body of an HTTP request; empty, if it has none."""
    return json.loads(request.content) if request.content else {}
