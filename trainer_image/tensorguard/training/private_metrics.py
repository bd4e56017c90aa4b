"""Keeps figures that are exact functions of private data (`observability.privateMetrics: Internal`).

In come the losses and norms of one worker's step. Out goes one JSON object per line, in a file of the run's private
folder, which is never published. In a cluster that folder belongs to the worker's pod, and is lost with it.
`PrivateMetricsReader` combines the files of all workers for callbacks of the Python API that ask for them.

No such figure reaches the terminal, the status, the run log, the log of a pod or the statement. The statement only
records that they were kept. With `Hidden`, the default, none of them is kept.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorguard.disk_full import names_file
from tensorguard.privacy.clipping import GridClipper
from tensorguard.training.config import PRIVATE_METRICS
from tensorguard.training.run_log import AppendedLines


class PrivateMetrics:
    """The private figures of one rank, one JSON object per line."""

    def __init__(self, private_directory: Path, rank: int) -> None:
        self._path = private_directory / PRIVATE_METRICS.format(rank=rank)
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def record_step(self, step: int, clipper: GridClipper, losses: Sequence[float]) -> None:
        """Record one step of this worker.

        Its figures are the numbers of units and of their records, the mean loss of the records, the share of the units
        that was clipped, and their mean L2 norm before clipping.
        """
        norms = clipper.take_norms()
        self._write(
            {
                "step": step,
                "units": len(norms),
                "records": len(losses),
                "trainingLoss": _mean(losses),
                "clippedFraction": _mean([float(norm > clipper.clip) for norm in norms]),
                "meanNorm": _mean(norms),
            }
        )

    def record_evaluation(self, step: int, loss: float, metrics: Mapping[str, float]) -> None:
        """Record an evaluation on a private set."""
        measured = {f"evaluation{name[:1].upper()}{name[1:]}": value for name, value in metrics.items()}
        self._write({"step": step, "evaluationLoss": loss, "evaluationAccuracy": None, **measured})

    def close(self) -> None:
        os.close(self._file)

    def _write(self, figures: dict[str, float | int | None]) -> None:
        with names_file(self._path):
            os.write(self._file, (json.dumps(figures) + "\n").encode())


class PrivateMetricsReader:
    """Combines the figures that the workers of one run append from now on.

    Args:
        private_directory: the run's private folder, with the files of all workers.
        workers: their number.
    """

    def __init__(self, private_directory: Path, workers: int) -> None:
        paths = (private_directory / PRIVATE_METRICS.format(rank=rank) for rank in range(workers))
        self._files = [AppendedLines(path, from_end=True) for path in paths]
        self._steps: list[dict[int, dict[str, float | None]]] = [{} for _ in self._files]

    def at(self, step: int) -> dict[str, float]:
        """The figures of `step` over all workers. Ask for steps in their order.

        `units` and `records` are sums. `loss` is the mean over the records; the others are means over the units. A mean
        of nothing is NaN, and so is every figure where the line of a worker is missing.
        """
        for file, steps in zip(self._files, self._steps):
            for line in file.read():
                figures = _parse(line)
                if "units" in figures:  # not an evaluation
                    steps[figures["step"]] = figures
        self._steps = [{each: steps[each] for each in steps if each >= step} for steps in self._steps]
        lines = [steps.get(step, {}) for steps in self._steps]
        return {
            "units": _total(lines, "units"),
            "records": _total(lines, "records"),
            "loss": _weighted_mean(lines, "trainingLoss", "records"),
            "clipped_fraction": _weighted_mean(lines, "clippedFraction", "units"),
            "mean_norm": _weighted_mean(lines, "meanNorm", "units"),
        }


def _mean(values: Sequence[float]) -> float | None:
    """The mean with six digits after the point; None for no values, and where it is not finite."""
    mean = sum(values) / len(values) if values else math.nan
    return round(mean, 6) if math.isfinite(mean) else None


def _parse(line: bytes) -> dict[str, Any]:
    """The figures in one line; none for a line that was cut by a kill before a restarted worker appended to it."""
    try:
        figures: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return figures


def _total(lines: Sequence[Mapping[str, float | None]], name: str) -> float:
    return sum(_number(line, name) for line in lines)


def _weighted_mean(lines: Sequence[Mapping[str, float | None]], name: str, weight: str) -> float:
    """The mean of `name` over the workers, each with its own `weight`."""
    total = _total(lines, weight)
    if not total > 0:
        return math.nan
    return sum(_number(line, name) * _number(line, weight) for line in lines if line.get(weight) != 0) / total


def _number(line: Mapping[str, float | None], name: str) -> float:
    value = line.get(name)
    return math.nan if value is None else value
