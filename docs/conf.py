"""The documentation site: `make docs` builds it into build/docs, with no network and every warning an error.

Sphinx with MyST and furo rather than mkdocs-material. The source folder is the repository itself, so that pages, the
first page and what was measured (results/reference) are read where they lie, and links between them work here as on a
code host; mkdocs wants one folder of pages. Sphinx writes the reference from what is imported, as custom_fp's lazy
names need, and checks links and anchors in the same build. Notebooks come with their outputs and are shown by myst-nb:
it reads their text by the same MyST, and checks its links; nbsphinx needs pandoc, which pip does not bring.
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
extensions = ["myst_nb", "sphinx.ext.autodoc", "plain_docstrings", "repository_files", "experiments"]

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
# Tables of results/reference have no title, or start at any level; docs/experiments.md links them.
suppress_warnings = ["myst.header", "toc.not_included"]
