"""The kinds of servers."""

from collections.abc import Mapping
from typing import Final

from outlast_contract.servers._recipe import Recipe
from outlast_contract.servers.redis import RedisClusterRecipe, RedisRecipe, ValkeyRecipe

RECIPES: Final[Mapping[str, type[Recipe]]] = {
    recipe.kind: recipe for recipe in (RedisRecipe, ValkeyRecipe, RedisClusterRecipe)
}

__all__ = ["RECIPES"]
