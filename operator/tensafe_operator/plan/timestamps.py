"""Times as Kubernetes writes them, and as seconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: str | None) -> float | None:
    """Seconds since the epoch; None where there is no time, or none that can be read."""
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() if text else None
    except ValueError:
        return None


def format_time(seconds: float) -> str:
    """As RFC 3339, whole seconds, in UTC."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
