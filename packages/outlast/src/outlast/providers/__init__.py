"""Adapters for the streaming APIs of model providers. Importing them imports no SDK.

Each takes the SDK's asyncio client, which it uses as it is and never closes, and implements
`outlast.model_api.Model`: a request goes out in the provider's terms, the provider's events come
back in neutral ones, and a turn that was cut is continued by the provider's own rules.

**Errors** are told apart by type, status and code, never by their words. Dropped connections,
timeouts, streams that cannot be decoded, HTTP 408, 409, 429 and 5xx (529 among them), and errors
inside a stream are `outlast.runtime.RetryableModelError`, with the wait that the server asks for
(``retry-after-ms``, ``retry-after`` in seconds or as a date; the runtime follows it up to 60
seconds). Other answers, errors inside a stream that blame the request, and a 429 that says that
the money is spent are `outlast.runtime.PermanentModelError`. A server's ``x-should-retry`` goes
before all of this, but for errors inside a stream. The SDK's own retries are off for these calls:
the runtime repeats them, from where they stopped.
"""

from outlast.providers.anthropic_messages import AnthropicMessages, MessagesDecoder
from outlast.providers.openai_chat import ChatCompletionsDecoder, OpenAIChatCompletions
from outlast.providers.openai_responses import OpenAIResponses, ResponsesDecoder

__all__ = [
    "AnthropicMessages",
    "ChatCompletionsDecoder",
    "MessagesDecoder",
    "OpenAIChatCompletions",
    "OpenAIResponses",
    "ResponsesDecoder",
]
