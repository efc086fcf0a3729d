"""The adapters of providers in a typed program; checked by mypy and pyright, never run."""

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from outlast.providers import AnthropicMessages, OpenAIChatCompletions, OpenAIResponses
from outlast.runtime import Model


def models(openai: AsyncOpenAI, anthropic: AsyncAnthropic) -> list[Model]:
    """Each is a model."""
    return [
        OpenAIChatCompletions(openai, "a", temperature=0),
        OpenAIResponses(openai, "b", background=True),
        AnthropicMessages(anthropic, "c", prefill=False, max_tokens=100),
    ]
