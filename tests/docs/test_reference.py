"""The reference page is what the schema says now, and says everything that the schema does."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tensafe_api.crd import JOBS, open_api_schema

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_current(generate: ModuleType) -> None:
    assert generate.PAGE.read_text(encoding="utf-8") == generate.text(), "run `make docs`"


def test_check_notices_a_stale_page(generate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(generate, "PAGE", tmp_path / "page.md")
    assert generate.main(["--check"]) == 1
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    generate.PAGE.write_text(generate.text() + "more", encoding="utf-8")
    assert generate.main(["--check"]) == 1


def test_every_field_of_the_spec_is_a_row(generate: ModuleType) -> None:
    rows = re.findall(r"^\| `(\w+)` \|", generate.text(), re.MULTILINE)

    def names(schema: dict) -> list[str]:
        inner = generate.fields_of(schema)
        return list(inner) + [deep for field in inner.values() for deep in names(field)]

    properties = open_api_schema(JOBS)["properties"]
    expected = names(properties["spec"]) + names(properties["status"])
    assert sorted(rows) == sorted(expected)


def test_links_of_the_pages_lead_somewhere() -> None:
    pages = [*DOCS.rglob("*.md"), *DOCS.parent.glob("*.md"), *(DOCS.parent / "benchmarks").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
