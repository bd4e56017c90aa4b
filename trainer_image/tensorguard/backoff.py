"""How long calls to an unavailable service are retried: the ledger's API server and the checkpoint storage."""

from __future__ import annotations

from collections.abc import Iterator

RETRY_SECONDS = 240.0
"""How long one call is retried. It is less than the time that the other ranks wait for rank 0."""
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 5.0


def retry_delays() -> Iterator[float]:
    """The seconds to wait before each retry, doubling up to a limit, without end."""
    wait = _FIRST_WAIT
    while True:
        yield wait
        wait = min(2 * wait, _LONGEST_WAIT)
