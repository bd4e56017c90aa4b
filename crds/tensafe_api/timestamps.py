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
