"""Keeps standard output for results: what libraries and their processes print goes to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def only_results_on_stdout() -> Iterator[None]:
    """Redirect to standard error what libraries, and the processes that they start, print within this block."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
