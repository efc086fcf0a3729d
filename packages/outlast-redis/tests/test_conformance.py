"""Redis, Valkey and Redis Cluster keep the contract, with every kind of client.

A single server runs everything. What a cluster does differently is the way to the server, which the
tier *contract* goes all along, with less repetition and data; its races, and lent clients, are a
matter of long runs.
"""

import dataclasses

import pytest
from redis_support import ClusterHarness, DecodingHarness, RedisHarness, ValkeyHarness

from outlast_contract import Settings, contract_suite

LESS = dataclasses.replace(Settings.from_environment(), rounds=3, kills=2, listed=300, heavy=False)

TestRedis = contract_suite(RedisHarness)
TestValkey = contract_suite(ValkeyHarness, tiers=["contract", "race"], settings=LESS)
TestCluster = contract_suite(ClusterHarness, tiers=["contract"], settings=LESS)
TestDecodingClient = pytest.mark.long(
    contract_suite(
        DecodingHarness,
        tiers=["contract"],
        xfail={
            "test_e3_unknown_options_are_refused": "a keyword that a class lacks is a TypeError",
        },
    )
)
TestAllOfValkey = pytest.mark.long(contract_suite(ValkeyHarness))
TestClusterRaces = pytest.mark.long(contract_suite(ClusterHarness, tiers=["race"]))
TestDecodingClientRaces = pytest.mark.long(contract_suite(DecodingHarness, tiers=["race"]))
TestClusterFaults = pytest.mark.long(contract_suite(ClusterHarness, tiers=["faults"]))
TestDecodingClientFaults = pytest.mark.long(contract_suite(DecodingHarness, tiers=["faults"]))
