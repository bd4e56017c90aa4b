"""The `metrics` of callbacks: public figures, computed from the log records of a run.

In come the completed job, its plan, and log records; out comes a dictionary of numbers, with the names that trackers
and results have as well. Every figure in it is public: it comes from the plan, the ledger's charges, or a public
evaluation. A callback may send all of it anywhere. Private figures never enter it;
`tensorguard.training.private_metrics` has them.
"""

from __future__ import annotations

import math
import warnings

from tensafe_api.accounting.composition import format_epsilon
from tensafe_api.resolve import Plan
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.trackers.figures import evaluation_figures, progress_figures
from tensorguard.training.run_log import Evaluated, LogRecord, Started, Stepped

_NO_LOSS = (
    "metrics['loss'] is NaN, because the training loss is an exact function of private data. metrics['eval_loss'] is "
    "the loss on the public eval_dataset. With private_metrics='Internal', private_metrics['loss'] is the training "
    "loss, for trusted readers"
)


class Metrics(dict[str, float]):
    """Public figures by name.

    `metrics["loss"]`, and an evaluation that is missing, are NaN with a warning that gives the reason: an exception
    would stop the training in the middle of its budget. Any other missing name raises a KeyError.
    """

    def __missing__(self, name: str) -> float:
        if name == "loss":
            warnings.warn(_NO_LOSS, stacklevel=2)
        elif name.startswith("eval_"):
            fix = f"known are {', '.join(self)}" if "eval_loss" in self else "pass an eval_dataset"
            warnings.warn(f"metrics[{name!r}] is NaN, because it is not measured so far: {fix}", stacklevel=2)
        else:
            raise KeyError(f"{name}: known are {', '.join(self)}")
        return math.nan


class MetricsOfRun:
    """The metrics of one call of `fit`, kept up to date with `update`."""

    def __init__(self, job: TenSafeTrainingJob, plan: Plan) -> None:
        self._plan = plan
        self._progress = progress_figures(job, plan)
        self._step = 0
        self._evaluation: dict[str, float] = {}

    def update(self, record: LogRecord) -> None:
        """Fold in the next log record."""
        match record:
            case Started() | Stepped():
                self._step = record.step
            case Evaluated():
                self._evaluation = {"eval_step": record.step, **evaluation_figures(record)}

    def metrics(self, steps_charged: int, epsilon_spent: float) -> Metrics:
        """The figures after the last record, with the number and the ε of all steps that the ledger has charged so far.

        ε is rounded up.
        """
        progress = self._progress(self._step)
        return Metrics(
            step=progress.pop("global_step"),
            total_steps=self._plan.steps,
            **progress,
            dp_epsilon_spent=float(format_epsilon(epsilon_spent)),
            dp_steps_charged=steps_charged,
            **self._evaluation,
        )
