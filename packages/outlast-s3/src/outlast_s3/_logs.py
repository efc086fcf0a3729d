"""What botocore logs of our requests, without what must not be shown (E4)."""

import logging
import re
from typing import Final

from outlast_s3._lines import is_used_here

_LOGGERS: Final = ("botocore.auth", "botocore.endpoint", "botocore.parsers")
"""They quote what is signed, what is sent and what is answered. The key is in none of it, but the
token of a session is a header; AWS quotes it in refusals, and gives keys and tokens in answers."""

_SECRET: Final = re.compile(
    r"""(x-amz-security-token['"]?: ?b?['"]?|<(?:Token-\d+|SessionToken|SecretAccessKey)>)"""
    r"""[^\s'"\\<,]+""",
    re.IGNORECASE,
)


def _without_secrets(record: logging.LogRecord) -> bool:
    if is_used_here():
        text = record.getMessage()
        shown = _SECRET.sub(r"\1***", text)
        if shown != text:
            record.msg, record.args = shown, None
    return True


def hide_secrets() -> None:
    """Let the loggers of botocore leave secrets out, in requests of ours only."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_without_secrets)  # Once, however often it is called.


__all__ = ["hide_secrets"]
