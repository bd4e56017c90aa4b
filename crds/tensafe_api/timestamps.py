"""Times as Kubernetes writes them (RFC 3339, UTC, whole seconds), and as seconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str | None) -> float | None:
    """Seconds since the epoch; None where `text` is absent, empty, not a time, or not in the years 1 to 9999 of UTC,
    which `format_time` can write.
    """
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(UTC).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def format_time(seconds: float) -> str:
    """`seconds` since the epoch as RFC 3339 in UTC; fractions of a second are cut off."""
    # Not strftime: some platforms write the years before 1000 with fewer than four digits.
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")


def active_seconds(
    start: str | None, end: str | None, queued_since: str | None, queued_seconds: float | None, now: float
) -> float | None:
    """How long an attempt has run, without its time in a queue; None if it has not started.

    Args:
        end: when it ended; None: it runs still.
        queued_since: since when it is in a queue; None: it is in none.
        queued_seconds: how long it was in a queue before.
        now: seconds since the epoch.
    """
    started, ended, since = parse_time(start), parse_time(end) or now, parse_time(queued_since)
    if started is None:
        return None
    queued = (queued_seconds or 0) + (ended - since if since is not None else 0)
    return max(0.0, ended - started - queued)
