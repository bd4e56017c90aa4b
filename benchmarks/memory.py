"""Current and peak memory of this process, as Linux reports them.

``resource.getrusage`` is not usable: its peak survives ``exec``, so a child starts with the peak of its parent.
``VmHWM`` belongs to the process' own memory and can be reset.
"""

from __future__ import annotations

from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"


def _field(name: str) -> float:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"{STATUS} has no {name}: memory can be measured on Linux only.")


def resident_mib() -> float:
    """Resident memory now, in MiB."""
    return _field("VmRSS")


def peak_mib() -> float:
    """Peak of resident memory since the start, or since ``reset_peak``, in MiB."""
    return _field("VmHWM")


def reset_peak() -> None:
    """Reset the peak to the resident memory of now."""
    CLEAR_REFS.write_text(RESET_PEAK)
