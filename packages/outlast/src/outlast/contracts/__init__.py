"""The two contracts, and their one implementation above any driver."""

from outlast.contracts.backend import Backend, DriverBackend, SweepReport
from outlast.contracts.checkpoints import StreamCheckpointStore
from outlast.contracts.claim import Claim, new_claim_id
from outlast.contracts.persistence import PersistenceManager
from outlast.contracts.turns import Ticket, Turns

__all__ = [
    "Backend",
    "Claim",
    "DriverBackend",
    "PersistenceManager",
    "StreamCheckpointStore",
    "SweepReport",
    "Ticket",
    "Turns",
    "new_claim_id",
]
