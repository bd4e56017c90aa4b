"""Renders a report as one HTML page that needs nothing else: no script, no font, no picture, no network.

In: a `Report`. Out: HTML. Text of a statement reaches the page through `clean` and jinja2's escaping alone, and a
content security policy in the page forbids all that it does not contain.
"""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tensafe_api.sanitize import clean
from tensorguard.statements import curve
from tensorguard.statements.report import Report
from tensorguard.statements.sentences import unit_words

_TEMPLATE = "page.html.j2"


def render_page(report: Report) -> str:
    """The report as a self-contained HTML page, in UTF-8 when it is written."""
    template = page_environment("tensorguard.statements").get_template(_TEMPLATE)
    return template.render(
        report=report.parts,
        statement=report.document,
        noun=unit_words(report.document)[0],
        picture=curve.draw(report),
        box=curve,
    )


def page_environment(package: str) -> Environment:
    """Jinja's environment for the pages whose templates are in a package: it escapes and cleans what they print."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )


def _finalize(value: Any) -> Any:
    """What an expression of the template prints, before it is escaped."""
    return value if isinstance(value, Markup | int | float) else clean(value)
