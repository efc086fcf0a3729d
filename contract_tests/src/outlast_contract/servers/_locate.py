"""What starts a server here: a program of this host, or a container."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from outlast_contract.servers._children import Child, Node
from outlast_contract.servers._containers import ContainerNode, answering_engine
from outlast_contract.servers._programs import Search
from outlast_contract.servers._recipe import Recipe

CONTAINERS: Final = "OUTLAST_TEST_CONTAINERS"
"""Set to ``1``, it prefers containers to programs of this host."""


def locate(recipe: Recipe, search: Search) -> Callable[[Path], Node] | None:
    """What makes a node of the server, of the file for its log; ``None`` if nothing can.

    The recipe knows its program afterwards.
    """
    if os.environ.get(CONTAINERS) != "1" and recipe.find(search):
        return Child
    if recipe.image is None:
        return None
    image, program = recipe.image
    # `OUTLAST_TEST_REDIS_URL` names a server, `OUTLAST_TEST_REDIS_IMAGE` what to make one of.
    image = os.environ.get(f"{recipe.variable.removesuffix('_URL')}_IMAGE", image)
    if not answering_engine(search):
        return None
    recipe.program = Path(program)
    return partial(ContainerNode, image)


__all__ = ["CONTAINERS", "locate"]
