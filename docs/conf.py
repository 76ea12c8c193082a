"""Settings of the documentation site. `make docs` builds it in build/docs, without a network, and warnings are errors.

The site is built by Sphinx with MyST and the theme furo. The source folder is the whole repository, so links between
the README, docs/ and results/reference work on the site as on a code host, which mkdocs does not allow. myst-nb shows
notebooks with their stored outputs and checks their links. It needs no pandoc, unlike nbsphinx.
"""

import sys
from pathlib import Path

import cpdrun

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "docs" / "extensions"))

project = "cpdrun"
author = "the maintainers of cpdrun"
release = version = cpdrun.__version__
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "docs/notebooks/*.ipynb",
    "kernels/README.md",
    "cpdrun/starter/project/README.md",
    "results/reference/**.md",
]
# .*: .git, .venv, caches
exclude_patterns = [".*", "build", "dist", "results/[!r]*"]
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "plain_docstrings",
    "repository_files",
    "experiments",
    "recipes",
]

nb_execution_mode = "off"  # `make notebooks` executes them
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
highlight_language = "none"
html_theme = "furo"
html_title = f"cpdrun {release}"
html_copy_source = html_show_sourcelink = False
html_show_sphinx = html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["tables.css", "notebooks.css"]
html_js_files = ["reachable.js"]
autodoc_typehints = "none"
python_use_unqualified_type_names = True
# Tables in results/reference have no title, or begin with a heading of any level. docs/experiments.md links to them.
suppress_warnings = ["myst.header", "toc.not_included"]
