"""Sphinx configuration."""

from importlib import metadata

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
autoclass_content = "class"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

nitpicky = True
# Other projects' pages are not looked up, so that the build needs no network.
nitpick_ignore_regex = [
    (r"py:.*", r"(abc|asyncio|collections|datetime|msgspec|pathlib|types|typing)\..*"),
    (r"py:.*", r"(Any|Awaitable|AsyncIterator|Callable|ClassVar|Literal|Mapping|Sequence|Self)"),
    (r"py:.*", r"(bool|bytes|dict|float|frozenset|int|list|object|set|str|tuple)"),
    (r"py:.*", r"(datetime|timedelta)"),
    (r"py:.*", r".*T$"),  # type variables
]

html_theme = "furo"
html_title = "outlast"
html_show_sourcelink = False
