"""The page of a statement: valid HTML that needs nothing else, and into which no statement can put markup."""

from __future__ import annotations

import copy
import html
import re
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorguard.statements.page import render_page
from tensorguard.statements.report import Report, build_report

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=//evil.example/x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</style><style>*{display:none}",
    "</title></head><body>",
    "</svg><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "<!-- --><![CDATA[ ]]>",
    "&lt;b&gt;&amp;&#60;",
    "a\x00b\x1b[31mc\x7f\x9b\ufffe\U0001ffff\ud800",
    "\u202egpj.exe\u2066",
    "line\nanother\r\nand\u2028more",
    "x" * 5_000,
)


def parse(page: str) -> Element:
    """The page as a tree. Raises html5lib's ParseError if it is not valid HTML."""
    tree: Element = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    return tree


def shape(page: str) -> list[tuple[str, tuple[str, ...]]]:
    """Every element with the names of its attributes, in order."""
    return [(str(each.tag), tuple(sorted(map(str, each.attrib)))) for each in parse(page).iter()]


def text_of(page: str) -> str:
    return " ".join("".join(parse(page).itertext()).split())


def texts(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every text of a statement that is free, without those that have a form."""
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    for key, inner in pairs:
        if isinstance(inner, dict | list):
            yield from texts(inner)
        elif (isinstance(inner, str) and key in FREE) or isinstance(value, list):
            yield value, key


FREE = {
    *("name", "uid", "unitColumn", "unitDefinition", "adjacencyDefinition", "released", "covers", "assumed", "run"),
    *("library", "adapter", "dataset", "ledgerHead", "code", "ray", "image", "weights", "uri", "lineage", "evaluation"),
    *("privateMetrics", "budget"),
}


@pytest.fixture(scope="module")
def report(full: dict[str, Any]) -> Report:
    return build_report(full)


def with_texts(report: Report, text: str) -> Report:
    """The same report of a statement whose every free text is `text`. No ε is computed again, which takes seconds."""
    raw = copy.deepcopy(dict(report.raw))
    for container, key in list(texts(raw)):
        container[key] = text
    return build_report_without_checks(raw, report)


def build_report_without_checks(raw: dict[str, Any], like: Report) -> Report:
    from tensafe_api.statement.document import parse_statement
    from tensorguard.statements import report as module

    document = parse_statement(raw)
    parts = like.parts.model_copy(
        update={
            "sentence": module.claim_sentence(document),
            "meaning": module.meaning_sentences(document),
            "figures": module._figures(raw, document),
            "facts": module._facts(raw),
            "verify": module._verify(document),
        }
    )
    return Report(raw, document, parts)


@pytest.mark.slow
def test_page_is_valid_html(statement: dict[str, Any]) -> None:
    parse(render_page(build_report(statement)))


@pytest.mark.slow
def test_page_refers_to_nothing_outside(statement: dict[str, Any]) -> None:
    page = render_page(build_report(statement))
    loading = {"src", "href", "srcset", "action", "data", "poster", "style", "background", "cite", "formaction", "ping"}
    for element in parse(page).iter():
        assert element.tag not in {"script", "link", "iframe", "object", "embed", "img", "image", "use", "base", "form"}
        for name in element.attrib:
            assert str(name).rsplit("}", 1)[-1].rsplit(":", 1)[-1] not in loading and not str(name).startswith("on")
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    for forbidden in ("url(", "@import", "@font-face", "image-set", "src("):
        assert forbidden not in style
    assert "//" not in re.sub(r">[^<]*<", "><", page), "no address outside of texts"
    assert "default-src 'none'" in page


@pytest.mark.slow
def test_page_shows_the_figures_of_the_statement_with_their_units(statement: dict[str, Any]) -> None:
    report = build_report(statement)
    page = render_page(report)
    rows = {
        cells[0]: cells[1:]
        for row in parse(page).iter("tr")
        if len(cells := ["".join(cell.itertext()) for cell in row]) == 3
    }
    for group in report.parts.figures:
        for figure in group.figures:
            assert rows[figure.label] == [figure.value, figure.unit]
    assert rows["ε claimed"] == [statement["claim"]["epsilon"], "nats"]
    assert rows["δ"] == [statement["claim"]["delta"], "probability"]


@pytest.mark.slow
def test_page_shows_every_sentence_of_the_statement(statement: dict[str, Any]) -> None:
    report = build_report(statement)
    shown = text_of(render_page(report))
    for sentence in (
        *(report.parts.sentence, *report.parts.meaning, *report.parts.checked),
        *(statement["assumed"] + statement["notCovered"] + statement["remarks"]),
        *(each.command for each in report.parts.verify),
        *(fact.value for fact in report.parts.facts),
        report.parts.statement_digest,
    ):
        assert " ".join(sentence.split()) in shown


def test_picture_ends_at_the_claim(statement: dict[str, Any]) -> None:
    page = render_page(build_report(statement))
    claim = statement["claim"]
    assert f"● {claim['epsilon']} claimed, of {claim['steps']} steps" in text_of(page)
    (line,) = re.findall(r'<polyline class="line" points="([^"]+)"', page)
    (dot,) = re.findall(r'<circle class="dot" cx="([^"]+)" cy="([^"]+)"', page)
    last = tuple(map(float, line.split()[-1].split(",")))
    assert last == tuple(map(float, dot))
    heights = [float(point.split(",")[1]) for point in line.split()]
    assert heights == sorted(heights, reverse=True), "ε never falls"


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_no_text_of_a_statement_becomes_markup(text: str, report: Report) -> None:
    changed = with_texts(report, text)
    assert changed.raw["job"]["name"] == changed.raw["model"]["name"] == changed.raw["assumed"][0] == text
    page = render_page(changed)
    page.encode()
    assert shape(page) == shape(render_page(report))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.sampled_from("<>&\"'/=!-[]{}%#ab \x00\x0c\u202e\ufffe") | st.characters(), max_size=40))
def test_shape_of_the_page_does_not_depend_on_texts(text: str, report: Report) -> None:
    assert shape(render_page(with_texts(report, text))) == shape(render_page(report))


def test_hostile_text_is_shown_as_it_is(report: Report) -> None:
    page = render_page(with_texts(report, HOSTILE[0]))
    assert html.escape(HOSTILE[0]) in page and HOSTILE[0] not in page
    assert HOSTILE[0] in text_of(page)
