"""Redis, Valkey and Redis Cluster keep the contract, with every kind of client."""

from redis_support import ClusterHarness, DecodingHarness, RedisHarness, ValkeyHarness

from outlast_contract import contract_suite

TestRedis = contract_suite(RedisHarness)
TestValkey = contract_suite(ValkeyHarness)
TestCluster = contract_suite(ClusterHarness)
TestDecodingClient = contract_suite(
    DecodingHarness,
    xfail={
        "test_e3_unknown_options_are_refused": "a keyword that a class lacks is a TypeError",
    },
)
