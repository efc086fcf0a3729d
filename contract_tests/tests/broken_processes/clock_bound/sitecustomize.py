"""Makes the file backend refuse appends that are older, by the clock, than what it has seen.

Python runs a module of this name when it starts, so child processes of the suite do, too.
"""

import os
import time
from pathlib import Path
from typing import Any

from outlast.backends.file import FileDriver
from outlast.errors import StaleWriteError

_newest = Path(os.environ["OUTLAST_TEST_NEWEST"])
_append = FileDriver.append


def _see(now: float) -> None:
    if _newest.exists() and now < float(_newest.read_text()):
        raise StaleWriteError("the clock is behind", 0)
    _newest.write_text(str(now))


async def _append_if_newer(self: FileDriver, *arguments: Any, **options: Any) -> Any:
    _see(time.time())
    return await _append(self, *arguments, **options)


FileDriver.append = _append_if_newer  # type: ignore[method-assign]
