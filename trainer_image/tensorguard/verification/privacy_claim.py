"""Checks the privacy claim of a checkpoint: every figure of its statement must follow from the rest of it."""

from __future__ import annotations

from typing import Any

from tensafe_api.statement.contents import STATEMENT_FILE
from tensafe_api.statement.document import StatementError, parse_statement
from tensafe_api.statement.figures import check_figures
from tensorguard.verification.errors import NotVerified


def check_claim(raw: Any) -> None:
    """Check a statement that was read as JSON and may be anything.

    Raises:
        NotVerified: names the part that differs.
    """
    try:
        document = parse_statement(raw)
    except StatementError as error:
        raise NotVerified(STATEMENT_FILE, f"is no privacy statement that this version can read ({error})") from error
    try:
        check_figures(raw, document)
    except StatementError as error:
        raise NotVerified(STATEMENT_FILE, f"contradicts itself: {error}") from error
