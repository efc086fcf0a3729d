"""Makes the file backend drop appends that there is no room for, without a word."""

from typing import Any

from outlast.backends.file import FileDriver
from outlast.errors import UnavailableError

_append = FileDriver.append


async def _append_if_possible(self: FileDriver, *arguments: Any, **options: Any) -> Any:
    try:
        return await _append(self, *arguments, **options)
    except UnavailableError:
        return []


FileDriver.append = _append_if_possible  # type: ignore[method-assign]
