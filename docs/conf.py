"""The Sphinx configuration of fedraw's site; `make docs` builds it."""

import sys
from importlib.util import find_spec
from pathlib import Path

import fedraw

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "fedraw"
author = "the fedraw contributors"
project_copyright = "the fedraw contributors, Apache-2.0"
release = version = fedraw.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "reference",
    "sequence",
]
exclude_patterns = ["_build"]

# Markdown. Headings up to level 4 get anchors as on GitHub.
myst_enable_extensions = ["attrs_inline", "deflist", "colon_fence"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]  # docs/_ext/sequence.py draws it

# Notebooks are executed by `make notebooks` and committed with their outputs.
nb_execution_mode = "off"
nb_merge_streams = True

# Docstrings are Google style, with single backticks around code.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_mock_imports = [] if find_spec("nvflare") else ["nvflare"]  # large, with pins of its own
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Record": "Record"}  # otherwise signatures list all kinds of records
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = f"fedraw {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
