"""The public surface of `tensafe_api`: what it is, and that importing it stays cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tensafe_api

PUBLIC = [
    "API_VERSION",
    "Claim",
    "ConditionType",
    "EventReason",
    "ManifestError",
    "Phase",
    "Plan",
    "PrivacyLedger",
    "Problem",
    "Reason",
    "Status",
    "TenSafeTrainingJob",
    "dump_manifest",
    "load_manifest",
    "parse_job",
    "recompute_epsilon",
    "resolve_job",
]
HEAVY = {"dp_accounting", "numpy", "scipy", "torch", "yaml", "pydantic"}
ROOT = Path(__file__).resolve().parents[2]


def test_exported_members() -> None:
    """Adding or removing a public name is a decision: change `PUBLIC` together with it."""
    assert tensafe_api.__all__ == PUBLIC
    assert set(PUBLIC) <= set(dir(tensafe_api))


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(tensafe_api.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {
        alias.asname: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == tensafe_api._MODULE_OF


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported_and_is_documented(name: str) -> None:
    value = getattr(tensafe_api, name)
    assert name == "API_VERSION" or value.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tensafe_api' has no attribute 'nothing'"):
        _ = tensafe_api.nothing


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import sys, tensafe_api; print(*sorted({HEAVY!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""


@pytest.mark.parametrize("package", ["crds/tensafe_api", "operator/tensafe_operator", "trainer_image/tensorguard"])
def test_every_package_carries_its_types(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
