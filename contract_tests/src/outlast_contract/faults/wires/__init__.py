"""The protocols that the proxy understands, by name."""

from collections.abc import Callable, Mapping
from typing import Final

from outlast_contract.faults.wires.base import Address, Kind, Piece, Wire
from outlast_contract.faults.wires.http import HttpWire
from outlast_contract.faults.wires.mongodb import MongoWire
from outlast_contract.faults.wires.mysql import MysqlWire
from outlast_contract.faults.wires.postgres import PostgresWire
from outlast_contract.faults.wires.resp import RespWire
from outlast_contract.faults.wires.turns import TurnsWire

WIRES: Final[Mapping[str, Callable[[], Wire]]] = {
    "http": HttpWire,
    "mongodb": MongoWire,
    "mysql": MysqlWire,
    "postgresql": PostgresWire,
    "redis": RespWire,
    "turns": TurnsWire,
}

__all__ = ["WIRES", "Address", "Kind", "Piece", "Wire"]
