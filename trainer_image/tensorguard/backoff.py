"""How long a service that is away is waited for, and how often it is asked: the ledger's API server, the storage of
checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator

RETRY_SECONDS = 240.0
"""How long one call waits for a service: less than the other ranks wait for rank 0."""
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 5.0


def retry_delays() -> Iterator[float]:
    """How long to wait before each further try, in seconds, without end."""
    wait = _FIRST_WAIT
    while True:
        yield wait
        wait = min(2 * wait, _LONGEST_WAIT)
