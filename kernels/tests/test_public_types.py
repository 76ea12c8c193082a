"""The stub file for type checkers lists exactly the public names of the package."""

import ast
from pathlib import Path

import custom_fp


def test_the_stub_lists_the_public_names():
    stub = ast.parse(Path(custom_fp.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    stated = {name.asname: node.module for node in imports for name in node.names}
    assert stated == {name: f"custom_fp.{module}" for name, module in custom_fp._MODULES.items()}
