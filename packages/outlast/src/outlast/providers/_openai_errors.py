"""The errors of the OpenAI SDK, told apart by type."""

import json
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from outlast.model_api import ModelError, PermanentModelError, RetryableModelError
from outlast.providers._fields import field
from outlast.providers._http import is_retryable_status, retry_after

_PERMANENT_TYPES = frozenset(
    {"authentication_error", "invalid_request_error", "not_found_error", "permission_error"}
)
"""Of an error that arrives inside a stream; all others are the server's own trouble."""


def to_model_error(error: Exception, *, secret: object = None) -> ModelError | None:
    """What ``error`` means for the turn; ``None`` if it does not come from the API or the network.

    Args:
        error: Raised by the SDK, or beneath it.
        secret: The client's key; it is struck out should a server echo it.
    """
    found = _from_sdk(error) or _from_transport(error)
    if found is None:
        return None
    kind, text, hint = found
    if isinstance(secret, str) and secret:
        text = text.replace(secret, "***")
    return RetryableModelError(text, retry_after=hint) if kind else PermanentModelError(text)


def error_in_stream(body: object) -> ModelError:
    """What an error object means that takes the place of a chunk."""
    return _model_error(_is_retryable_body(body), f"the model failed in mid-stream: {_say(body)}")


def _model_error(is_retryable: bool, text: str) -> ModelError:  # noqa: FBT001 - told by position
    return RetryableModelError(text) if is_retryable else PermanentModelError(text)


_Verdict = tuple[bool, str, float | None]
"""Whether it may succeed later; what happened; the server's hint."""


def _from_sdk(error: Exception) -> _Verdict | None:
    sdk: Any = sys.modules.get("openai")
    if sdk is None or not isinstance(error, sdk.OpenAIError):
        return None
    if isinstance(error, sdk.APIStatusError):
        status: int = field(error, "status_code")
        hint = retry_after(field(error, "response").headers)
        return (
            is_retryable_status(status),
            f"HTTP {status}: {_say(field(error, 'body') or error)}",
            hint,
        )
    if isinstance(error, sdk.APITimeoutError):
        return True, "the model did not answer in time", None
    if isinstance(error, sdk.APIConnectionError):
        return True, f"the connection failed: {_root(error)}", None
    if isinstance(error, sdk.APIResponseValidationError):
        return True, f"the answer is not what the API promises: {_say(error)}", None
    if isinstance(error, sdk.APIError):
        body = field(error, "body")
        return (
            _is_retryable_body(body),
            f"the model failed in mid-stream: {_say(error)}",
            None,
        )
    return False, str(error), None


def _from_transport(error: Exception) -> _Verdict | None:
    """Errors that reach a reader of the stream past the SDK."""
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return True, f"the stream cannot be decoded: {error}", None
    if isinstance(error, (ConnectionError, TimeoutError, *_transport_errors())):
        return True, f"the connection failed: {_name(error)}", None
    return None


def _transport_errors() -> Iterator[type[Exception]]:
    for name in ("httpx", "httpx2"):
        module: ModuleType | None = sys.modules.get(name)
        if module is not None:
            yield module.TransportError
            yield module.StreamError


def _is_retryable_body(body: object) -> bool:
    code = field(body, "code")
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    if isinstance(code, int):
        return is_retryable_status(code) or not 400 <= code < 500
    return field(body, "type") not in _PERMANENT_TYPES


def _say(body: object) -> str:
    message = field(body, "message")
    return message if isinstance(message, str) and message else str(body)


def _root(error: BaseException) -> str:
    return _name(error.__cause__) if error.__cause__ is not None else str(error)


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


__all__ = ["error_in_stream", "to_model_error"]
