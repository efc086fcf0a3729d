"""What errors of the SDKs and of their transport mean, and how long a server asks to wait."""

import subprocess
import sys
import time
from email.utils import formatdate
from typing import Any

import anthropic
import openai
import pytest

from outlast.providers._errors import to_model_error
from outlast.providers._http import is_retryable_status, retry_after
from outlast.runtime import PermanentModelError, RetryableModelError

# The SDK has changed its transport, not its shape.
httpx: Any = sys.modules.get("httpx2") or sys.modules["httpx"]

REQUEST = httpx.Request("POST", "http://127.0.0.1/v1/chat/completions")


def status_error(status: int, headers: dict[str, str] | None = None) -> openai.APIStatusError:
    response = httpx.Response(status, headers=headers or {}, request=REQUEST)
    return openai.APIStatusError("scripted", response=response, body={"message": "scripted"})


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529, 599])
def test_overload_and_server_trouble_are_retryable(status: int) -> None:
    """With the server's hint."""
    error = to_model_error(status_error(status, {"Retry-After": "7"}))
    assert isinstance(error, RetryableModelError)
    assert error.retry_after == 7.0
    assert f"HTTP {status}: scripted" in str(error)
    assert is_retryable_status(status)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422, 451])
def test_other_answers_are_permanent(status: int) -> None:
    """The same request would fail again."""
    assert isinstance(to_model_error(status_error(status)), PermanentModelError)
    assert not is_retryable_status(status)


@pytest.mark.parametrize(
    "error",
    [
        openai.APIConnectionError(request=REQUEST),
        openai.APITimeoutError(request=REQUEST),
        openai.APIError("in the stream", REQUEST, body={"type": "server_error"}),
        openai.APIError("in the stream", REQUEST, body=None),
        httpx.RemoteProtocolError("cut"),
        httpx.ReadTimeout("slow"),
        httpx.StreamClosed(),
        ConnectionResetError(),
        TimeoutError(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "half a character"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_trouble_of_the_network_is_retryable(error: Exception) -> None:
    """Also where it reaches the reader past the SDK."""
    assert isinstance(to_model_error(error), RetryableModelError)


@pytest.mark.parametrize(
    "error",
    [
        openai.OpenAIError("no key"),
        openai.APIError("in the stream", REQUEST, body={"type": "invalid_request_error"}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_blames_the_request_is_permanent(error: Exception) -> None:
    """Whatever its words are."""
    assert isinstance(to_model_error(error), PermanentModelError)


def anthropic_error(status: int, kind: str, **details: str) -> anthropic.APIStatusError:
    """As Anthropic's SDK makes it; within a stream, the answer had begun with 200."""
    error = {"type": kind, "message": "scripted", "details": details}
    response = httpx.Response(status, request=REQUEST)
    body = {"type": "error", "error": error}
    return anthropic.APIStatusError("raw", response=response, body=body)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (anthropic_error(529, "overloaded_error"), RetryableModelError),
        (anthropic_error(429, "rate_limit_error"), RetryableModelError),
        (anthropic_error(500, "api_error"), RetryableModelError),
        (
            anthropic_error(429, "rate_limit_error", error_code="ramp_limit_exceeded"),
            RetryableModelError,
        ),
        (
            anthropic_error(429, "rate_limit_error", error_code="enforced_spend_limit_reached"),
            PermanentModelError,
        ),
        (anthropic_error(400, "invalid_request_error"), PermanentModelError),
        (anthropic_error(413, "request_too_large"), PermanentModelError),
        (anthropic_error(200, "overloaded_error"), RetryableModelError),
        (anthropic_error(200, "invalid_request_error"), PermanentModelError),
        (anthropic.APIConnectionError(request=REQUEST), RetryableModelError),
        (anthropic.APITimeoutError(request=REQUEST), RetryableModelError),
        (anthropic.AnthropicError("no key"), PermanentModelError),
        (httpx.RemoteProtocolError("cut"), RetryableModelError),
    ],
    ids=lambda value: str(value) if isinstance(value, type) else type(value).__name__,
)
def test_errors_of_anthropics_sdk_are_told_by_type(
    error: Exception, expected: type[Exception]
) -> None:
    """Those of an answer by its status, those in a stream by the type that they name."""
    found = to_model_error(error, "anthropic")
    assert isinstance(found, expected)
    if isinstance(error, anthropic.APIStatusError):
        assert str(found).endswith(": scripted")


@pytest.mark.parametrize(
    ("status", "header", "expected"),
    [
        (400, "true", RetryableModelError),
        (503, "false", PermanentModelError),
        (429, "false", PermanentModelError),
        (429, "maybe", RetryableModelError),
    ],
)
def test_a_server_that_says_whether_to_retry_is_believed(
    status: int, header: str, expected: type[Exception]
) -> None:
    """As the SDKs do."""
    error = to_model_error(status_error(status, {"x-should-retry": header}))
    assert isinstance(error, expected)


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_hard_limit_reached"])
def test_spent_money_is_not_waited_for(code: str) -> None:
    """It is sent as a rate limit."""
    response = httpx.Response(429, request=REQUEST)
    error = openai.RateLimitError("x", response=response, body={"message": "m", "code": code})
    assert isinstance(to_model_error(error), PermanentModelError)


def test_an_error_of_the_program_is_no_model_error() -> None:
    """It is raised as it is."""
    assert to_model_error(KeyError("x")) is None


def test_a_key_that_a_server_echoes_is_struck_out() -> None:
    """No message shows it."""
    response = httpx.Response(401, request=REQUEST)
    echo = openai.AuthenticationError("x", response=response, body={"message": "bad key sk-12345"})
    error = to_model_error(echo, secrets=["sk-12345"])
    assert isinstance(error, PermanentModelError)
    assert "sk-12345" not in str(error)
    assert "bad key ***" in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "1e999"}, float("inf")),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"Retry-After": "4"}, 4.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 -0000"}, 0.0),
        ({"retry-after": "Thu, 99 Foo 2090 00:00:00 GMT"}, None),
    ],
    ids=str,
)
def test_the_hint_of_a_server_is_read(headers: dict[str, str], seconds: float | None) -> None:
    """Milliseconds go before seconds; what makes no sense is ignored."""
    assert retry_after(httpx.Headers(headers)) == seconds


def test_a_date_is_counted_from_now() -> None:
    """As HTTP writes it."""
    hint = retry_after({"retry-after": formatdate(time.time() + 100, usegmt=True)})
    assert hint is not None
    assert 97 < hint <= 100


def test_a_date_without_a_zone_is_of_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the program runs."""
    date = formatdate(time.time() + 100).replace("+0000", "-0000")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        hint = retry_after({"retry-after": date})
    finally:
        monkeypatch.undo()
        time.tzset()
    assert date.endswith("-0000")
    assert hint is not None
    assert 97 < hint <= 100


def test_importing_the_adapters_imports_no_sdk() -> None:
    """Nor does the runtime."""
    script = (
        "import sys, outlast.providers.anthropic_messages, outlast.providers.openai_chat;"
        "import outlast.providers.openai_responses, outlast.runtime;"
        "loaded = {name.partition('.')[0] for name in sys.modules};"
        "print(sorted(loaded & {'openai', 'httpx', 'httpx2', 'anthropic', 'pydantic', 'anyio'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
