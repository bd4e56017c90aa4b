"""The mutations are still of this source: their texts occur once, and their tests exist. `make mutants` runs them."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTATIONS = runpy.run_path(str(Path(__file__).with_name("mutations.py")))["MUTATIONS"]


def names_in(path: Path) -> set[str]:
    """The tests of a file as node ids have them: `test_a`, `TestB::test_c`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_is_of_this_source(mutation: Any) -> None:
    assert mutation.tests
    for edit in mutation.edits:
        assert edit.new != edit.old
        assert (ROOT / edit.file).read_text().count(edit.old) == 1, f"{edit.file} no longer has this once: {edit.old}"
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert name in names_in(ROOT / file), test


def test_names_are_names() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)
