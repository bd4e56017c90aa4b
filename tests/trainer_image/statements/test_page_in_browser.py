"""The page of a statement in a real browser: both themes, two printed pages, and no request to anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tensorguard.statements.page import render_page
from tensorguard.statements.report import build_report
from tests.support.programs.browser import NO_BROWSER, find_browser, print_page, requests_of, take_picture

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_browser() is None, reason=NO_BROWSER)]

GOLDEN = Path(__file__).parents[2] / "api/statement.json"
LIGHT, DARK = (0xFF, 0xFF, 0xFF), (0x12, 0x17, 0x1D)
LINE_LIGHT, LINE_DARK = (0x4C, 0x51, 0xBF), (0xA3, 0xAA, 0xFF)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("page"), json.loads(GOLDEN.read_text("utf-8")))


def written(folder: Path, statement: dict[str, Any], change: Callable[[str], str] = str) -> Path:
    path = folder / "page.html"
    path.write_text(change(render_page(build_report(statement))), encoding="utf-8")
    return path


def colours(picture: Path) -> dict[tuple[int, int, int], int]:
    """How many pixels each colour has."""
    image = Image.open(picture).convert("RGB")
    return {colour: count for count, colour in image.getcolors(image.width * image.height) or []}


@pytest.mark.parametrize(("dark", "paper", "line"), [(False, LIGHT, LINE_LIGHT), (True, DARK, LINE_DARK)])
def test_page_follows_the_theme_of_the_reader(dark: bool, paper: Any, line: Any, page: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    take_picture(page, picture, dark=dark)
    found = colours(picture)
    assert max(found, key=found.__getitem__) == paper
    assert found[paper] > 600_000, "most of the page is paper"
    assert found.get(line, 0) > 500, "the curve is drawn"
    assert (DARK if paper == LIGHT else LIGHT) not in found or found[DARK if paper == LIGHT else LIGHT] < 1_000


def test_page_fits_a_phone(page: Path, tmp_path: Path) -> None:
    """Nothing is wider than the window: the pixels of its right edge are paper."""
    picture = tmp_path / "page.png"
    take_picture(page, picture, width=500, height=3_000)
    image = Image.open(picture).convert("RGB")
    assert {image.getpixel((image.width - 3, row)) for row in range(0, image.height, 7)} == {LIGHT}


def test_page_prints_on_two_sheets(page: Path, tmp_path: Path) -> None:
    assert print_page(page, tmp_path / "page.pdf") == 2


def test_fullest_statement_prints_on_two_sheets(full: dict[str, Any], tmp_path: Path) -> None:
    assert print_page(written(tmp_path, full), tmp_path / "page.pdf") == 2


def test_page_asks_for_nothing(page: Path) -> None:
    assert requests_of(page) == []


def test_page_lets_nothing_be_asked_for(tmp_path: Path) -> None:
    """If markup came into the page after all, its policy would stop it. Without the policy, the browser asks."""
    picture = "http://127.0.0.1:9/spy.png"
    statement = json.loads(GOLDEN.read_text("utf-8"))

    def spy(text: str) -> str:
        return text.replace("<main>", f'<main><img src="{picture}" alt="">')

    def unguarded(text: str) -> str:
        return spy(text).replace("Content-Security-Policy", "x-nothing")

    assert requests_of(written(tmp_path, statement, unguarded)) == [picture]
    assert requests_of(written(tmp_path, statement, spy)) == []
