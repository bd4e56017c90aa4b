"""What only trusted eyes may see: figures that are exact functions of private data (`observability.privateMetrics:
Internal`).

Each worker writes its own, to a file in the run's folder that only its owner can read; nothing of it reaches the
terminal, the status, the event log or the statement, which says only that somebody could look. With `Hidden`, the
default, nothing is computed or kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tensorguard.privacy.clipping import GridClipper

NAME = "private-metrics-rank{rank}.jsonl"


class PrivateMetrics:
    """One rank's private figures, a JSON object a line."""

    def __init__(self, run_directory: Path, rank: int) -> None:
        self._file = os.open(run_directory / NAME.format(rank=rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def record_step(self, step: int, clipper: GridClipper) -> None:
        """This worker's share of a step: how many units joined, how many were clipped, and their mean norm before."""
        norms = clipper.take_norms()
        units = len(norms)
        self._write(
            {
                "step": step,
                "units": units,
                "clippedFraction": round(sum(norm > clipper.clip for norm in norms) / units, 4) if units else None,
                "meanNorm": round(sum(norms) / units, 6) if units else None,
            }
        )

    def record_evaluation(self, step: int, loss: float, metrics: Mapping[str, float]) -> None:
        """What a private evaluation set gave."""
        measured = {f"evaluation{name[:1].upper()}{name[1:]}": value for name, value in metrics.items()}
        self._write({"step": step, "evaluationLoss": loss, "evaluationAccuracy": None, **measured})

    def close(self) -> None:
        os.close(self._file)

    def _write(self, figures: dict[str, float | int | None]) -> None:
        os.write(self._file, (json.dumps(figures) + "\n").encode())
