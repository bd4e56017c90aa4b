"""`tensafe statement`: the privacy statement of a published checkpoint, for people.

In: the folder of a checkpoint. Out: the statement as text, as one HTML page, or as JSON with a schema. Nothing is
shown of a statement whose figures do not follow from its own mechanism. Signature and weights are not
checked: the output names the commands that do.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tensorguard.cli.arguments import Subparsers
from tensorguard.cli.exit_codes import FAILED, SUCCEEDED, CommandError

if TYPE_CHECKING:
    from tensorguard.statements.report import Report

_EPILOG = """\
examples:
  tensafe statement runs/first/checkpoints/final                          the claim, and the whole statement
  tensafe statement runs/first/checkpoints/final --format html -o statement.html
                                                                          one page for a browser or a printer
  tensafe statement s3://clinic/models/triage/final --format json | jq -r .sentence
                                                                          the claim in one sentence

The page needs no network, follows the theme of the browser, and prints on two pages of A4. The JSON is the statement
and all that the page shows; its schema is docs/reference/statement-report.schema.json. Every ε is computed again before
anything is shown. The signature and the weights are not checked: the output ends with the commands that do.

A URI is read by fsspec with the credentials of this machine, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL.

Exit codes: 0 written; 1 the statement was changed, or its figures do not follow from its mechanism; 2 there is no
statement, it cannot be read, or the output cannot be written.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "statement",
        help="show the privacy statement of a published checkpoint as text, HTML or JSON",
        description="Show the privacy statement of a published checkpoint.",
        epilog=_EPILOG,
    )
    parser.add_argument("checkpoint", metavar="DIR|URI", help="the folder of the checkpoint")
    parser.add_argument(
        "--format",
        dest="form",
        choices=("text", "html", "json"),
        default="text",
        help="text (default, Markdown), html, or json",
    )
    parser.add_argument(
        "-o", dest="output", metavar="FILE", type=Path, help="write to this file instead of standard output"
    )
    parser.set_defaults(handler=_statement)


def _statement(arguments: argparse.Namespace) -> int:
    from tensafe_api.statement.document import StatementError

    try:
        import jinja2  # noqa: F401

        from tensorguard.statements.published import StatementUnreadableError, read_statement
        from tensorguard.statements.report import build_report
    except ImportError as error:
        raise CommandError(
            f"tensafe statement: the package {error.name} is missing: pip install 'tensafe[statement]'"
        ) from error
    try:
        raw, checked = read_statement(arguments.checkpoint)
        report = build_report(raw, checked)
    except StatementUnreadableError as error:
        raise CommandError(f"tensafe statement: {error}") from error
    except StatementError as error:
        raise CommandError(
            f"tensafe statement: the statement in {arguments.checkpoint} cannot be trusted: {_clean(error)}. "
            "Do not use the adapter, and ask its publisher",
            FAILED,
        ) from error
    text = render(report, arguments.form)
    if arguments.output is None:
        if arguments.form == "html" and sys.stdout.isatty():
            raise CommandError("tensafe statement: a page is not for a terminal: add -o statement.html, or use a pipe")
        print(text, end="")
        return SUCCEEDED
    try:
        arguments.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(
            f"tensafe statement: {arguments.output} cannot be written: {error.strerror}: pass -o a file in "
            "a folder that exists"
        ) from error
    print(f"written to {arguments.output}", file=sys.stderr)
    return SUCCEEDED


def render(report: Report, form: str) -> str:
    """A report as `text`, `html` or `json`."""
    if form == "html":
        from tensorguard.statements.page import render_page

        return render_page(report)
    if form == "json":
        return json.dumps(report.as_json(), indent=2, ensure_ascii=True) + "\n"
    return _as_text(report)


def _as_text(report: Report) -> str:
    from tensafe_api.sanitize import clean_document
    from tensafe_api.statement.contents import render_markdown

    parts, page = report.parts, render_markdown(clean_document(report.raw))
    lines = [parts.sentence, "", *parts.meaning, "", *page.splitlines(), "", "## How to verify", ""]
    lines += [f"- {sentence}" for sentence in parts.checked]
    lines += [line for each in parts.verify for line in (f"- {each.purpose}:", f"    {each.command}")]
    return "\n".join(_clean(line) for line in lines) + "\n"


def _clean(text: object) -> str:
    from tensafe_api.sanitize import clean

    return clean(text)
