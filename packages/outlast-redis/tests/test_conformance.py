"""Redis, Valkey and Redis Cluster keep the contract, with every kind of client.

What differs from Redis by the way to the server alone is held to a part of it in short runs. Lent
clients, and the races and faults of a cluster, are a matter of long ones.
"""

from redis_support import (
    ClusterHarness,
    DecodingHarness,
    PasswordHarness,
    RedisHarness,
    ValkeyHarness,
)

from outlast_contract import Settings, contract_suite

KNOWN = {
    "test_e3_unknown_options_are_refused": "a keyword that a class lacks is a TypeError",
}

# The other servers ask for no password.
TestPassword = contract_suite(PasswordHarness, only=["host", "secret"])
if Settings.from_environment().thorough:  # Thousands of tests, which take long to collect, too.
    TestRedis = contract_suite(RedisHarness)
    TestDecodingClient = contract_suite(DecodingHarness, xfail=KNOWN)
    TestValkey = contract_suite(ValkeyHarness)
    TestCluster = contract_suite(ClusterHarness)
else:
    LESS = Settings.from_environment().shortened()
    TestRedis = contract_suite(RedisHarness, lacks=["http", "secret"])
    TestValkey = contract_suite(
        ValkeyHarness, tiers=["contract", "race"], settings=LESS, cases=1, lacks=["secret"]
    )
    TestCluster = contract_suite(
        ClusterHarness, tiers=["contract"], settings=LESS, cases=1, lacks=["secret"]
    )
