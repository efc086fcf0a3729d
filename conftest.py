"""For the tests of all distributions together."""

import gc

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare the garbage collector what lasts as long as the run: modules and thousands of tests.

    Checks of leaks collect often, and would look through all of that each time.
    """
    gc.collect()
    gc.freeze()
