"""The errors of the SDKs, told apart by type. The SDKs of OpenAI and Anthropic are built alike."""

import json
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Literal

from outlast.model_api import ModelError, PermanentModelError, RetryableModelError
from outlast.providers._fields import field
from outlast.providers._http import is_retryable_status, retry_after, should_retry

Sdk = Literal["anthropic", "openai"]

_SPENT = frozenset(
    {
        "billing_hard_limit_reached",
        "contract_spend_limit_reached",
        "enforced_spend_limit_reached",
        "insufficient_quota",
    }
)
"""Codes of a 429 that no wait helps against: the money is gone."""

_PERMANENT = _SPENT | frozenset(
    {
        # Of either API: the request itself is at fault.
        "authentication_error",
        "billing_error",
        "context_length_exceeded",
        "invalid_api_key",
        "invalid_request_error",
        "model_not_found",
        "not_found_error",
        "permission_error",
        "request_too_large",
        # Responses: why a response has failed.
        "bio_policy",
        "data_residency_mismatch",
        "empty_image_file",
        "failed_to_download_image",
        "image_content_policy_violation",
        "image_file_not_found",
        "image_file_too_large",
        "image_parse_error",
        "image_too_large",
        "image_too_small",
        "invalid_base64_image",
        "invalid_image",
        "invalid_image_format",
        "invalid_image_mode",
        "invalid_image_url",
        "invalid_prompt",
        "misalignment_policy_violation",
        "unsupported_image_media_type",
    }
)
"""Types and codes with which the same request fails again; all others may pass."""


def to_model_error(
    error: Exception, sdk: Sdk = "openai", *, secrets: Iterable[object] = ()
) -> ModelError | None:
    """What ``error`` means for the turn; ``None`` if it does not come from the API or the network.

    Args:
        error: Raised by the SDK, or beneath it.
        sdk: Whose.
        secrets: The client's keys; they are struck out should a server echo them.
    """
    found = _from_sdk(error, sdk) or _from_transport(error)
    if found is None:
        return None
    is_retryable, text, hint = found
    for secret in secrets:
        if isinstance(secret, str) and secret:
            text = text.replace(secret, "***")
    return (
        RetryableModelError(text, retry_after=hint) if is_retryable else PermanentModelError(text)
    )


def error_in_stream(body: object) -> ModelError:
    """What an error object means that takes the place of an event."""
    _, text, _ = _in_stream(body)
    return RetryableModelError(text) if _is_retryable_body(body) else PermanentModelError(text)


_Verdict = tuple[bool, str, float | None]
"""Whether it may succeed later; what happened; the server's hint."""


def _from_sdk(error: Exception, sdk: Sdk) -> _Verdict | None:
    module: Any = sys.modules.get(sdk)
    if module is None:
        return None
    if isinstance(error, module.APIStatusError):
        return _from_status(error)
    if isinstance(error, module.APITimeoutError):
        return True, "the model did not answer in time", None
    if isinstance(error, module.APIConnectionError):
        return True, f"the connection failed: {_root(error)}", None
    if isinstance(error, module.APIResponseValidationError):
        return True, f"the answer is not what the API promises: {_say(error)}", None
    if isinstance(error, module.APIError):
        return _in_stream(field(error, "body"), error)
    if isinstance(error, (module.OpenAIError if sdk == "openai" else module.AnthropicError)):
        return False, str(error), None
    return None


def _from_status(error: Exception) -> _Verdict:
    status: int = field(error, "status_code")
    body = _inner(field(error, "body"))
    if status < 400:  # Anthropic's SDK: an error event in a stream that had begun well.
        return _in_stream(body, error)
    headers = field(error, "response").headers
    verdict = should_retry(headers)
    if verdict is None:
        verdict = is_retryable_status(status) and _SPENT.isdisjoint(_names(body))
    return verdict, f"HTTP {status}: {_say(body or error)}", retry_after(headers)


def _in_stream(body: object, error: object = None) -> _Verdict:
    said = _say(error if body is None and error is not None else body)
    return _is_retryable_body(body), f"the model failed in mid-stream: {said}", None


def _inner(body: object) -> object:
    """The error object, which some servers wrap, and some SDKs leave wrapped."""
    inner = field(body, "error")
    return body if inner is None else inner


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
    body = _inner(body)
    code = field(body, "code")
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    if isinstance(code, int):
        return is_retryable_status(code) or not 400 <= code < 500
    return _PERMANENT.isdisjoint(_names(body))


def _names(body: object) -> list[str]:
    """What an error object says of its kind."""
    details = field(field(body, "details"), "error_code")
    found = (field(body, "type"), field(body, "code"), details)
    return [name for name in found if isinstance(name, str)]


def _say(body: object) -> str:
    message = field(_inner(body), "message")
    return message if isinstance(message, str) and message else str(body)


def _root(error: BaseException) -> str:
    return _name(error.__cause__) if error.__cause__ is not None else str(error)


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


__all__ = ["Sdk", "error_in_stream", "to_model_error"]
