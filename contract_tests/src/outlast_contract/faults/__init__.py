"""Fault injection: a proxy that aims, the faults, and the network that a check's clients use."""

from outlast_contract.faults.kinds import BROKEN, BlackHole, Delay, Hold, Slow, Truncate
from outlast_contract.faults.proxy import Exchange, Fault, Proxy, Script, Shot

__all__ = [
    "BROKEN",
    "BlackHole",
    "Delay",
    "Exchange",
    "Fault",
    "Hold",
    "Proxy",
    "Script",
    "Shot",
    "Slow",
    "Truncate",
]
