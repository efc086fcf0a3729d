"""Running a coroutine in a forked child of this process, for the checks about fork()."""

import asyncio
import os
import signal
import warnings
from collections.abc import Awaitable, Callable


async def in_forked_child(body: Callable[[], Awaitable[str]], *, within: float) -> str:
    """Run ``body`` in an event loop of a forked child and return its answer.

    The child is killed if it has not answered within so many seconds.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python warns of fork() in a process with threads; what then happens is the question here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _answer(body, reader, writer)
    os.close(writer)
    try:
        return await _wait(pid, reader, within)
    finally:
        os.close(reader)


def _answer(body: Callable[[], Awaitable[str]], reader: int, writer: int) -> None:
    try:
        os.close(reader)
        asyncio.events._set_running_loop(None)  # noqa: SLF001 - what a fresh process would have
        text = asyncio.new_event_loop().run_until_complete(body())
        os.write(writer, text.encode(errors="replace")[:4000])
    except BaseException as error:  # noqa: BLE001 - there is nobody to raise it to
        os.write(writer, f"{type(error).__name__}: {error}".encode(errors="replace")[:4000])
    finally:
        os._exit(0)  # no clean-up of the parent's things


async def _wait(pid: int, reader: int, within: float) -> str:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while True:
        ended, _ = os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - it does not wait
        if ended:
            return os.read(reader, 4096).decode(errors="replace")
        if loop.time() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)  # noqa: ASYNC222 - it is dead
            return f"no answer within {within:g} s"
        await asyncio.sleep(0.01)


__all__ = ["in_forked_child"]
