"""How much memory this process has held at most, from Linux' own account of it.

``resource.getrusage`` will not do: its peak survives ``exec``, so a child starts with the peak of the process
that started it. ``VmHWM`` belongs to the process' own memory, and can be set back.
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
    raise LookupError(f"{STATUS} has no {name}: memory is measured on Linux only.")


def resident_mib() -> float:
    """What is held now, in MiB."""
    return _field("VmRSS")


def peak_mib() -> float:
    """The most that was held since the start, or since ``reset_peak``, in MiB."""
    return _field("VmHWM")


def reset_peak() -> None:
    """Lets the peak begin again at what is held now."""
    CLEAR_REFS.write_text(RESET_PEAK)
