"""Sphinx configuration."""

import re
from importlib import metadata
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

project = "outlast"
author = "The outlast developers"
copyright = "2026, The outlast developers"  # noqa: A001 - Sphinx's name
version = release = metadata.version("outlast")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "py:obj"  # `Name` in a docstring is a reference
add_module_names = False
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autoclass_content = "both"
napoleon_attr_annotations = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

nitpicky = True
# Other projects' pages are not looked up, so that the build needs no network.
nitpick_ignore_regex = [
    (r"py:.*", r"(abc|asyncio|collections|contextvars|datetime)\..*"),
    (r"py:.*", r"(os|pathlib|random|types|typing)\..*"),
    (r"py:.*", r"(msgspec|sqlalchemy)\..*"),
    (r"py:.*", r"Async(Anthropic|OpenAI)"),
    (r"py:.*", r"(Any|Awaitable|AsyncIterator|Callable|ClassVar|Literal|Mapping|Sequence|Self)"),
    (r"py:.*", r"(bool|bytes|dict|float|frozenset|int|list|object|set|str|tuple)"),
    (r"py:.*", r"(datetime|timedelta)"),
    (r"py:.*", r".*T$"),  # type variables
]

html_theme = "furo"
html_title = "outlast"
html_show_sourcelink = False


def resolve_by_name(
    app: Sphinx, env: BuildEnvironment, node: Any, content: nodes.Element
) -> nodes.Element | None:
    """Let a docstring name what another module defines or exports, if only one has that name."""
    if node.get("refdomain") != "py":
        return None
    objects = env.domains.python_domain.objects
    name = node["reftarget"].rpartition(".")[2]
    found = [
        full for full, entry in objects.items() if full.endswith(f".{name}") and not entry.aliased
    ]
    if len(found) != 1:
        return None
    return env.domains.python_domain.resolve_xref(
        env, node["refdoc"], app.builder, "obj", found[0], node, content
    )


def show_empty_defaults(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    annotation: str | None,
) -> tuple[str | None, str | None]:
    """Write the empty defaults of records as they are in the source."""
    if signature is not None:
        signature = re.sub(r"(dict\[[^=]*?\])\s*=\s*<factory>", r"\1 = {}", signature)
        signature = re.sub(r"(list\[[^=]*?\])\s*=\s*<factory>", r"\1 = []", signature)
    return signature, annotation


def keep_colons(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Keep napoleon from taking what a property says before a colon for its type."""
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]


def setup(app: Sphinx) -> None:
    """Register what is defined here."""
    app.connect("missing-reference", resolve_by_name)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)
    app.connect("autodoc-process-signature", show_empty_defaults)
