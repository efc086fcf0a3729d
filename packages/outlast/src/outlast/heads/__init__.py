"""Records as bounded heads and immutable pieces, for stores that can compare and swap one object.

A store implements `ObjectStore`; `HeadDriver` makes a `outlast.driver.Driver` of it.
"""

from outlast.heads.clock import StoreClock, moment
from outlast.heads.driver import HeadDriver, Operation
from outlast.heads.encoding import (
    HEAD_STAMP,
    decode_floor,
    decode_head,
    encode_floor,
    prefix_size,
)
from outlast.heads.layout import Floor, Head, Layout, Log, Ref, Register
from outlast.heads.shielding import Shield
from outlast.heads.store import (
    Candidate,
    Found,
    Listing,
    ObjectStore,
    Stored,
    gather_some,
    key_of,
)

__all__ = [
    "HEAD_STAMP",
    "Candidate",
    "Floor",
    "Found",
    "Head",
    "HeadDriver",
    "Layout",
    "Listing",
    "Log",
    "ObjectStore",
    "Operation",
    "Ref",
    "Register",
    "Shield",
    "StoreClock",
    "Stored",
    "decode_floor",
    "decode_head",
    "encode_floor",
    "gather_some",
    "key_of",
    "moment",
    "prefix_size",
]
