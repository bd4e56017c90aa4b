"""The durations of a leader election. Settings hold them, and must be readable without a client of the API server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LeaseDurations:
    """Durations of a leader election, in seconds.

    `renew_deadline` must be below `lease`: a leader must stop writing before another process may lead. A renewal
    waits for `retry_period` and sends two requests, each of which may take as long. So `renew_deadline` must be above
    three of them, or one slow answer would end the leadership.

    Attributes:
        lease: another process may lead so long after the last renewal.
        renew_deadline: the leader stops so long after its last renewal.
        retry_period: between two attempts to renew or to acquire, and the longest duration of one request.
    """

    lease: int = 10
    renew_deadline: float = 7
    retry_period: float = 2


DEFAULT_DURATIONS = LeaseDurations()
