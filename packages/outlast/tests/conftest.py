"""Makes the helper modules of this folder importable from its tests and their child processes."""

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# The same examples in every run, which take the time that they take: a process may be stopped for a
# while at any moment.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")
