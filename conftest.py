"""For the tests of all distributions together."""

import gc
import signal

import pytest


def pytest_configure() -> None:
    """Let processes that tests interrupt be interrupted, also if pytest is a shell's background
    job: that ignores SIGINT, and its children would inherit it.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare the garbage collector what lasts as long as the run: modules and thousands of tests.

    Checks of leaks collect often, and would look through all of that each time.
    """
    gc.collect()
    gc.freeze()
