"""Checks that the mutations fit the source: their texts occur once, and their tests exist. `make mutants` runs them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]


def names_in(path: Path) -> set[str]:
    """The tests of a file, as in pytest's node ids: `test_a`, `TestB::test_c`."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_mutation_fits_the_source(mutation: Mutation) -> None:
    assert mutation.tests
    for edit in mutation.edits:
        assert edit.new != edit.old
        assert (ROOT / edit.file).read_text().count(edit.old) == 1, (
            f"{edit.file} no longer has this exactly once: {edit.old}"
        )
    for test in mutation.tests:
        file, _, name = test.partition("::")
        assert name in names_in(ROOT / file), test


def test_names_of_mutations_are_unique() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names)


def imported_folders(path: Path) -> set[str]:
    """The folders at the project's root that a file imports from."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return {root for module in modules if (ROOT / (root := module.partition(".")[0])).is_dir()}


def test_copied_tree_has_every_folder_that_the_tests_import() -> None:
    source = ast.parse(Path(__file__).with_name("run.py").read_text())
    (parts,) = (
        ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "PARTS"
    )
    files = {ROOT / test.partition("::")[0] for mutation in MUTATIONS for test in mutation.tests}
    files |= {parent / "conftest.py" for file in files for parent in file.parents if parent.is_relative_to(ROOT)}
    for file in files:
        if file.exists():
            assert imported_folders(file) <= set(parts), file
