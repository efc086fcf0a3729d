"""Adapters for the streaming APIs of model providers. Importing them imports no SDK."""

from outlast.providers.openai_chat import ChatCompletionsDecoder, OpenAIChatCompletions

__all__ = ["ChatCompletionsDecoder", "OpenAIChatCompletions"]
