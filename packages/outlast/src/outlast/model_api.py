"""What a model and the runtime say to each other: requests, stream events, errors, content blocks.

Providers translate between these types and a vendor's API; the runtime knows only these.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Protocol, TypedDict

import msgspec

from outlast.errors import OutlastError
from outlast.models import ApiMessage


class ModelError(OutlastError):
    """A model call failed; nothing was committed."""


class RetryableModelError(ModelError):
    """The same call may succeed later: overload, rate limit, a dropped or cut stream.

    Args:
        message: What happened.
        retry_after: Seconds that the provider asks to wait, if it said so.
    """

    def __init__(
        self, message: str = "the model call failed", *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PermanentModelError(ModelError):
    """The same call will fail again: a bad request, a wrong key, an unknown model."""


class TextBlock(TypedDict):
    """Text of a message."""

    type: Literal["text"]
    text: str


class ToolCallBlock(TypedDict):
    """A tool call that the model made; ``arguments`` is a JSON object."""

    type: Literal["tool_call"]
    id: str
    name: str
    arguments: dict[str, Any]


class ToolResultBlock(TypedDict):
    """What a tool call gave; ``content`` is any JSON value."""

    type: Literal["tool_result"]
    call_id: str
    content: Any
    is_error: bool


class ProviderBlock(TypedDict):
    """What one provider alone understands: its model's reasoning, signed or encrypted. It goes back
    to that provider unchanged, and is left out for every other one.
    """

    type: Literal["provider"]
    provider: str
    data: dict[str, Any]


Block = TextBlock | ToolCallBlock | ToolResultBlock | ProviderBlock
"""The neutral blocks of which the runtime makes the content of messages."""


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of text, to be appended to what came before."""

    text: str


class ToolCallDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of a tool call.

    Attributes:
        index: Which call of this model call it belongs to; deltas of several calls may alternate.
        id: The provider's id of the call; may be empty in all deltas of a call but its first.
        name: The tool; may be empty like ``id``.
        arguments: The next piece of the arguments' JSON text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class ProviderData(msgspec.Struct, frozen=True, gc=False):
    """A part of the turn that goes back to the provider as it came, and is shown to nobody.

    It is stored, as a `ProviderBlock` in its place, if the turn runs uncut: what one call has
    thought holds for exactly what it was asked.

    Attributes:
        provider: Who understands it, such as ``anthropic.messages``.
        data: JSON.
    """

    provider: str
    data: dict[str, Any]


class StreamEnd(msgspec.Struct, frozen=True, gc=False):
    """The provider's mark that the model has finished; a stream without it was cut.

    Attributes:
        reason: In the provider's words, such as ``stop``, ``tool_calls`` or ``length``.
    """

    reason: str = "stop"


ModelEvent = TextDelta | ToolCallDelta | ProviderData | StreamEnd
"""What a model's stream consists of."""


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as the model is told of it.

    Attributes:
        name: What the model calls it.
        description: What it does, for the model.
        parameters: JSON schema of its arguments.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )


class ModelRequest(msgspec.Struct, frozen=True):
    """One question to a model, in neutral terms.

    Attributes:
        messages: The conversation so far, as it is stored; a system prompt is a message of role
            ``system``.
        tools: What the model may call.
        params: Further parameters in the provider's own names, such as ``temperature``.
    """

    messages: Sequence[ApiMessage]
    tools: Sequence[ToolSpec] = ()
    params: dict[str, Any] = {}


class Model(Protocol):
    """What `outlast.runtime.run_turn` asks of a model. A provider implements it for one API."""

    @property
    def name(self) -> str:
        """The model's name, as checkpoints keep it."""
        ...

    def stream(self, request: ModelRequest, *, prefix: str = "") -> AsyncIterator[ModelEvent]:
        """Call the model once, and yield what it says.

        The call begins with the first step of the iterator. An implementation does not retry, and
        releases its connection when the iterator is closed or cancelled.

        Args:
            request: The question.
            prefix: What the model has said in this turn already, if a former call was cut. It goes
                into the request alone; only what follows it is yielded.

        Raises:
            RetryableModelError: While iterating; what was yielded before stays valid.
            PermanentModelError: While iterating.
            InvalidDataError: The request cannot be put into the provider's terms.
        """
        ...


__all__ = [
    "Block",
    "Model",
    "ModelError",
    "ModelEvent",
    "ModelRequest",
    "PermanentModelError",
    "ProviderBlock",
    "ProviderData",
    "RetryableModelError",
    "StreamEnd",
    "TextBlock",
    "TextDelta",
    "ToolCallBlock",
    "ToolCallDelta",
    "ToolResultBlock",
    "ToolSpec",
]
