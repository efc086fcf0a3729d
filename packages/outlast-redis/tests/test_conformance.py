"""Redis, Valkey and Redis Cluster keep the contract, with every kind of client.

Of a check that is there for many cases the short classes take some: four for Redis, two for what
differs from it by the way to the server alone. All cases, lent clients, and the races and faults of
a cluster are a matter of long runs.
"""

import dataclasses

import pytest
from redis_support import ClusterHarness, DecodingHarness, RedisHarness, ValkeyHarness

from outlast_contract import Settings, contract_suite

LESS = dataclasses.replace(Settings.from_environment(), rounds=3, kills=2, listed=300, heavy=False)
TestRedis = contract_suite(RedisHarness, cases=4, lacks=["http", "secret"])
TestValkey = contract_suite(
    ValkeyHarness, tiers=["contract", "race"], settings=LESS, cases=2, lacks=["secret"]
)
TestCluster = contract_suite(
    ClusterHarness, tiers=["contract"], settings=LESS, cases=2, lacks=["secret"]
)

KNOWN = {
    "test_e3_unknown_options_are_refused": "a keyword that a class lacks is a TypeError",
}

if Settings.from_environment().thorough:  # Thousands of tests, which take long to collect, too.
    TestAllOfRedis = pytest.mark.long(contract_suite(RedisHarness))
    TestDecodingClient = pytest.mark.long(
        contract_suite(
            DecodingHarness,
            tiers=["contract"],
            xfail=KNOWN,
        )
    )
    TestAllOfValkey = pytest.mark.long(contract_suite(ValkeyHarness))
    TestAllOfCluster = pytest.mark.long(contract_suite(ClusterHarness, tiers=["contract"]))
    TestClusterRaces = pytest.mark.long(contract_suite(ClusterHarness, tiers=["race"]))
    TestDecodingClientRaces = pytest.mark.long(contract_suite(DecodingHarness, tiers=["race"]))
    TestClusterFaults = pytest.mark.long(contract_suite(ClusterHarness, tiers=["faults"]))
    TestDecodingClientFaults = pytest.mark.long(contract_suite(DecodingHarness, tiers=["faults"]))
