"""The kinds of servers."""

from collections.abc import Mapping
from typing import Final

from outlast_contract.servers._recipe import Recipe
from outlast_contract.servers.mariadb import MariadbRecipe
from outlast_contract.servers.mongodb import (
    MongodbRecipe,
    MongodbReplicasRecipe,
    MongodbStandaloneRecipe,
)
from outlast_contract.servers.postgres import PostgresRecipe
from outlast_contract.servers.redis import RedisClusterRecipe, RedisRecipe, ValkeyRecipe
from outlast_contract.servers.s3 import SeaweedfsRecipe

RECIPES: Final[Mapping[str, type[Recipe]]] = {
    recipe.kind: recipe
    for recipe in (
        RedisRecipe,
        ValkeyRecipe,
        PostgresRecipe,
        MariadbRecipe,
        MongodbRecipe,
        SeaweedfsRecipe,
        RedisClusterRecipe,
        MongodbReplicasRecipe,
        MongodbStandaloneRecipe,
    )
}

__all__ = ["RECIPES"]
