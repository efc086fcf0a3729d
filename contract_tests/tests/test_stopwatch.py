"""A limit on time is a limit on what is measured, not on the machine."""

import os
import signal
import subprocess
import time

from outlast_contract.stopwatch import Stopwatch


def test_time_that_the_process_could_run_counts() -> None:
    """Whether it slept or worked."""
    with Stopwatch() as watch:
        time.sleep(0.2)
        assert watch.seconds + watch.late >= 0.2
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            pass
        assert watch.seconds + watch.late >= 0.4
        assert watch.seconds >= 0.1
    ended = watch.seconds
    time.sleep(0.1)
    assert watch.seconds == ended


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    """One that was stopped goes on where it was."""
    with Stopwatch() as watch:
        resume = f"sleep 1; kill -CONT {os.getpid()}"
        with subprocess.Popen(["sh", "-c", resume]):
            os.kill(os.getpid(), signal.SIGSTOP)
            assert watch.late > 0.8
        assert watch.seconds < 0.5
