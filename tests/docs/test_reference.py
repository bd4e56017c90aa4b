"""The reference pages are current and complete."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tensafe_api.fixes import Fix
from tensafe_api.reasons import ConditionType, EventReason, Phase, Reason
from tensafe_api.schema.crd import JOBS, LEDGERS, PROFILES, ResourceKind, open_api_schema

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_current(generate: ModuleType) -> None:
    for name, text in generate.pages().items():
        assert (generate.REFERENCE / name).read_text(encoding="utf-8") == text, "run `make docs`"


@pytest.mark.slow
def test_check_reports_a_stale_page(generate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "REFERENCE", tmp_path)
    assert generate.main(["--check"]) == 1
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    for name, text in generate.pages().items():
        (tmp_path / name).write_text(text + "more", encoding="utf-8")
        assert generate.main(["--check"]) == 1
        (tmp_path / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("kind", [JOBS, LEDGERS, PROFILES], ids=lambda kind: kind.plural)
def test_every_field_of_a_resource_is_a_row(generate: ModuleType, kind: ResourceKind) -> None:
    page = f"{kind.name.lower()}.md"
    rows = re.findall(r"^\| `(\w+)` \|", generate.pages()[page], re.MULTILINE)

    def names(schema: dict) -> list[str]:
        inner = generate.fields_of(schema)
        return list(inner) + [deep for field in inner.values() for deep in names(field)]

    properties = open_api_schema(kind)["properties"]
    expected = [name for block in ("spec", "status") for name in names(properties.get(block, {}))]
    assert sorted(rows) == sorted(expected)


def test_every_name_of_a_status_is_explained(generate: ModuleType) -> None:
    page = generate.pages()["conditions-and-reasons.md"]
    explained = re.findall(r"^(?:\| `(?=.* \| .*\w)|### `(?=.*\n\n\w))(\w+)`", page, re.MULTILINE)
    assert sorted(explained) == sorted(
        word.value for kind in (Phase, ConditionType, Reason, EventReason, Fix) for word in kind
    )


def test_links_of_all_pages_exist() -> None:
    pages = [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md"), *(DOCS.parent / "benchmarks").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
