"""The commands and manifests of the README run as shown."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tensafe_api.manifest.text import load_manifest
from tensafe_api.resolve import resolve_job
from tensorguard.cli.main import main

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_manifest_of_the_readme_is_valid() -> None:
    (manifest,) = blocks("yaml")
    job, plan = resolve_job(load_manifest(manifest))
    assert plan.steps == 60
    assert job.spec.dataset.unit.kind == "User"


@pytest.mark.slow
@pytest.mark.parametrize(
    "line", [line for block in blocks("sh") for line in block.splitlines() if line.startswith("tensafe account")]
)
def test_figures_of_the_readme_are_correct(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line, comments=True)[1:]) == 0
    shown = capsys.readouterr().out
    assert "epsilon" in shown or "ε" in shown


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#h][^)]*)\)", README.read_text()))
def test_links_of_the_readme_exist(link: str) -> None:
    page, _, section = link.partition("#")
    assert (README.parent / page).exists()
    if section:
        headings = re.findall(r"^#+ (.+)$", (README.parent / page).read_text(), re.MULTILINE)
        assert section in [heading.lower().replace(" ", "-") for heading in headings]


def test_make_verbs_of_the_readme_exist() -> None:
    makefile = (README.parent / "Makefile").read_text()
    for verb in re.findall(r"^make ([a-z0-9-]+)", README.read_text(), re.MULTILINE):
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE), verb
