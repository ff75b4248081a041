"""Settings of the documentation site: ``make docs`` builds it into ``docs/_build/html`` without the network."""

from __future__ import annotations

import os
import re
import sys
import warnings
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import sklearn
from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

# Examples show the same figures on every machine: nothing that is drawn depends on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("error", module=r"(setsquare|studies)\..*")
sys.path.insert(0, str(Path(__file__).parents[1]))  # the study is not installed

project = "Setsquare"
author = "The Setsquare developers"
project_copyright = author
version = release = installed("setsquare")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py*"]
templates_path = ["_templates"]
# The gallery's settings hold a function, which Sphinx cannot remember; several classes have an attribute `columns`.
suppress_warnings = ["config.cache", "ref.python"]
nitpicky = True
# What other packages document; there is no network at build time to look them up.
nitpick_ignore_regex = [(r"py:.*", r"(torch|sklearn|numpy|pandas)\..*")]

myst_enable_extensions = ["colon_fence", "dollarmath", "attrs_block"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

autosummary_generate = True
autodoc_typehints = "none"  # numpydoc says the types in words
autodoc_default_options = {"member-order": "bysource"}
toc_object_entries_show_parents = "hide"  # "fit", so that it fits beside a page
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False
numpydoc_use_plots = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\w+\.py$",
    "ignore_pattern": r"__init__\.py",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "abort_on_example_error": True,
    "reset_modules": (
        "matplotlib",
        lambda _conf, _file: sklearn.set_config(enable_metadata_routing=False),
    ),
}

html_theme = "pydata_sphinx_theme"
html_title = "Setsquare"
html_static_path = ["_static"]
html_css_files = ["setsquare.css"]
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_show_sphinx = False
html_context = {"default_mode": "auto"}
# Pages without pages below them have nothing to navigate.
html_sidebars = {
    page: []
    for page in (
        "index",
        "start",
        "choose",
        "theory",
        "command_line",
        "comparison",
        "extend",
        "paper",
        "how_it_scales",
        "benchmarks",
        "measured",
        "compatibility",
    )
}
html_theme_options: dict[str, Any] = {
    "logo": {
        "text": "Setsquare",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
    },
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

# The list of versions, where the site is one of several (docs/versions.py writes the file that it reads).
if switcher := os.environ.get("SETSQUARE_DOCS_SWITCHER"):
    match = os.environ.get("SETSQUARE_DOCS_VERSION", "dev")
    html_theme_options["switcher"] = {
        "json_url": switcher,
        "version_match": match,
    }
    html_theme_options["check_switcher"] = (
        False  # at the first build it is not there yet
    )
    html_theme_options["navbar_end"] = ["version-switcher", "theme-switcher"]


def skip(
    _app: Any, _what: str, name: str, _object: Any, skipped: bool, _options: Any
) -> bool | None:
    """Leave out what scikit-learn adds to every estimator for its routing."""
    return (
        True if name.startswith("set_") and name.endswith("_request") else None
    )


def escape_shapes(
    _app: Any,
    _what: str,
    _name: str,
    _object: Any,
    _options: Any,
    lines: list[str],
) -> None:
    """Shapes such as ``(p, *units)`` and ``(n_components_, q)`` are no markup."""
    lines[:] = [
        re.sub(
            r"of shape \([^)]*\)",
            lambda m: re.sub(r"(\*|_)(?=\W|units)", r"\\\1", m[0]),
            s,
        )
        for s in lines
    ]


def resolve(app: Any, _env: Any, node: Any, content: Any) -> Any:
    """Find ``setsquare.glm.problem.Problem`` under its public name, ``setsquare.Problem``."""
    domain, target = app.env.get_domain("py"), node.get("reftarget", "")
    short = target.rsplit(".", 1)[-1]
    short = {"Document": "Report"}.get(
        short, short
    )  # the name under which it is public
    found = [
        name for name in domain.objects if name.rsplit(".", 1)[-1] == short
    ]
    if node.get("refdomain") != "py" or not found:
        return None
    best = max(
        found,
        key=lambda name: len(set(name.split(".")) & set(target.split("."))),
    )
    return domain.resolve_xref(
        app.env,
        node["refdoc"],
        app.builder,
        node["reftype"],
        best,
        node,
        content,
    )


def write_math(writer: Any, node: Any) -> None:
    """Write a formula as MathML, which browsers show without a script from the network."""
    block = node.tagname == "math_block"
    formula = tex2mathml(node.astext(), as_block=block)
    writer.body.append(
        f'<div class="formula">{formula}</div>' if block else formula
    )
    raise SkipNode


def setup(app: Any) -> None:
    """Connect the rules above."""
    app.connect("autodoc-skip-member", skip)
    app.connect(
        "autodoc-process-docstring", escape_shapes, priority=100
    )  # before numpydoc reads it
    app.connect("missing-reference", resolve)
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
