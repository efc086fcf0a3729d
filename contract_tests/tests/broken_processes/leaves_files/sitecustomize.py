"""Makes the file backend write each append to a temporary file first, and leave it there."""

import tempfile
from typing import Any

from outlast.backends.file import FileDriver

_append = FileDriver.append


async def _append_twice(self: FileDriver, *arguments: Any, **options: Any) -> Any:
    _ = tempfile.mkstemp()
    return await _append(self, *arguments, **options)


FileDriver.append = _append_twice  # type: ignore[method-assign]
