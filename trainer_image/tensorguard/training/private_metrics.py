"""Writes figures that are exact functions of private data (`observability.privateMetrics: Internal`).

Each worker writes its own figures to a file in the run's private folder, which is never published. None of them reaches
the terminal, the status, the run log or the statement; the statement only records that they were kept. With
`Hidden`, the default, no such figure is computed or kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tensorguard.privacy.clipping import GridClipper

FILE_NAME = "private-metrics-rank{rank}.jsonl"


class PrivateMetrics:
    """The private figures of one rank, one JSON object per line."""

    def __init__(self, private_directory: Path, rank: int) -> None:
        path = private_directory / FILE_NAME.format(rank=rank)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def record_step(self, step: int, clipper: GridClipper) -> None:
        """Record one step of this worker: how many units joined, the share that was clipped, and their mean norm.

        The norm is the L2 norm before clipping.
        """
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
        """Record an evaluation on a private set."""
        measured = {f"evaluation{name[:1].upper()}{name[1:]}": value for name, value in metrics.items()}
        self._write({"step": step, "evaluationLoss": loss, "evaluationAccuracy": None, **measured})

    def close(self) -> None:
        os.close(self._file)

    def _write(self, figures: dict[str, float | int | None]) -> None:
        os.write(self._file, (json.dumps(figures) + "\n").encode())
