"""The options of the benchmarks: each has a help text, and the usage names the command that runs the module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(
    path for path in (ROOT / "benchmarks").rglob("*.py") if 'if __name__ == "__main__":' in path.read_text()
)


def calls(path: Path, name: str) -> list[ast.Call]:
    """The calls of a function or method with this name."""
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return [call for call in found if (getattr(call.func, "attr", None) or getattr(call.func, "id", None)) == name]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_option_has_help_and_the_usage_names_the_module(path: Path) -> None:
    without = [
        ast.unparse(call.args[0])
        for call in calls(path, "add_argument")
        if not any(keyword.arg == "help" for keyword in call.keywords)
    ]
    assert not without
    module = str(path.relative_to(ROOT / "benchmarks").with_suffix("")).removesuffix("/__main__").replace("/", ".")
    assert not calls(path, "ArgumentParser")
    assert [ast.literal_eval(call.args[0]) for call in calls(path, "option_parser")] == [module]
