"""What may be sent to a tracker: the one list of keys, and the functions that fill them.

In come public log records, the plan and the completed job; out come `Point`s (figures of one step) and the run's
configuration. A `Point` with a key outside `KEYS` cannot be made. So a figure that is added to a log record or to a
manifest reaches no tracker until a person adds it here.

Everything here is public: a function of the manifest, the schedule, the ledger and public evaluations. Training loss,
gradient norms and batch sizes are not available in this module, also if the job keeps them for its owner
(`observability.privateMetrics: Internal`). Neither are addresses of data, names of columns, environment variables and
labels, which a manifest contains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensafe_api.accounting import composition
from tensafe_api.manifest.text import dump_manifest
from tensafe_api.resolve import Claim, Plan, learning_rate
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.tasks import METRICS
from tensorguard.training.run_log import Evaluated
from tensorguard.training.schedule import learning_rate_schedule

KEYS: Mapping[str, str] = {
    "global_step": "steps of the plan that are done; falls when steps run again after a crash",
    "epoch": "passes over `unit.atLeast` units",
    "learning_rate": "learning rate of the last step, from the schedule",
    "dp_epsilon_spent": "ε of `dp_steps_charged` steps, rounded up",
    "dp_steps_charged": "steps that the ledger has charged, including those that ran again",
    "dp_epsilon": "the ε to sign off: of `dp_steps_claimed` steps, rounded up",
    "dp_steps_claimed": "the planned steps that the budget allows, or the charged ones if these are more",
    "eval_loss": "mean loss on the public evaluation set",
    **{f"eval_{name}": f"{each.title} on the public evaluation set" for name, each in METRICS.items()},
}
"""Every key of a figure, in the form of Hugging Face's logs, with its meaning."""

CONFIG_FIELDS = (
    "metadata.name",
    "metadata.uid",
    "spec.model.name",
    "spec.model.revision",
    "spec.model.task",
    "spec.model.numLabels",
    "spec.model.quantization",
    "spec.lora.rank",
    "spec.lora.alpha",
    "spec.lora.dropout",
    "spec.lora.targetModules",
    "spec.dataset.unit.kind",
    "spec.dataset.unit.atLeast",
    "spec.dataset.unit.maxExamplesPerUnit",
    "spec.evaluation.everySteps",
    "spec.evaluation.visibility",
    "spec.training.steps",
    "spec.training.expectedBatchSize",
    "spec.training.microBatchSize",
    "spec.training.learningRate",
    "spec.training.schedule",
    "spec.training.warmupRatio",
    "spec.training.weightDecay",
    "spec.training.maxLength",
    "spec.training.precision",
    "spec.training.gradientCheckpointing",
    "spec.privacy.targetEpsilon",
    "spec.privacy.targetDelta",
    "spec.privacy.maxGradNorm",
    "spec.privacy.noiseMultiplier",
    "spec.privacy.accountant",
    "spec.privacy.reserveSteps",
    "spec.privacy.onBudgetExhausted",
    "spec.aggregation.verify",
    "spec.checkpoint.everySteps",
    "spec.cluster.workers",
    "spec.observability.privateMetrics",
)
"""The fields of the completed manifest that are sent. All others are not."""

TIME_GRAIN_SECONDS = 30
"""Times are rounded up to a multiple of this. The exact duration of a step reveals something about how many units
joined it, and the privacy claim does not cover it."""

PLD_FIGURES = 20
"""A PLD ε takes about half a second, so at most this number of them is computed over a planned run."""


@dataclass(frozen=True)
class Point:
    """Figures of one step.

    Attributes:
        number: position among the points of its run; it increases.
        step: the position on a tracker's axis: steps taken so far, where a step that ran again counts again. It never
            falls.
        time: seconds since the epoch, rounded up to a multiple of TIME_GRAIN_SECONDS.
        figures: by key.

    Raises:
        ValueError: a key is not in `KEYS`.
    """

    number: int
    step: int
    time: float
    figures: Mapping[str, float]

    def __post_init__(self) -> None:
        if unknown := self.figures.keys() - KEYS.keys():
            raise ValueError(f"{', '.join(sorted(unknown))}: not a key that may be sent to a tracker")


def grouped(key: str) -> str:
    """A key as Hugging Face's callbacks for W&B and TensorBoard write it, such as `eval/loss` and `train/epoch`."""
    group, _, name = key.partition("_")
    return f"{group}/{name}" if group in ("eval", "dp") else f"train/{key}"


def public_time(seconds: float) -> float:
    """A time that shows no duration of a step."""
    return float(math.ceil(seconds / TIME_GRAIN_SECONDS) * TIME_GRAIN_SECONDS)


def public_config(job: TenSafeTrainingJob, plan: Plan) -> dict[str, str | int | float | bool]:
    """The configuration of a run, by the names of the manifest's fields without `spec.`.

    Args:
        job: with all defaults filled in.
    """
    manifest = json.loads(dump_manifest(job, "json"))
    config = {}
    for path in CONFIG_FIELDS:
        value: Any = manifest
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        if value not in (None, ""):
            config[path.removeprefix("spec.")] = value
    # The path of a model on this machine is not sent, only its last part.
    config["model.name"] = Path(job.spec.model.name).name if job.spec.model.name[0] in "/.~" else job.spec.model.name
    mechanism = plan.mechanism
    return config | {
        "privacy.adjacency": mechanism.adjacency,
        "privacy.sampleRate": mechanism.sample_rate,
        "stepsPerEpoch": plan.steps_per_epoch,
    }


def progress_figures(job: TenSafeTrainingJob, plan: Plan) -> Callable[[int], dict[str, float]]:
    """A function from the number of steps done to the figures that follow from the plan alone."""
    training = job.spec.training
    peak = float(learning_rate(job.spec))
    rate = learning_rate_schedule(peak, training.schedule, plan.steps, plan.warmup_steps)
    units = job.spec.dataset.unit.at_least

    def figures(step: int) -> dict[str, float]:
        return {
            "global_step": step,
            "epoch": step * plan.mechanism.expected_batch_size / units,
            "learning_rate": rate(max(0, step - 1)),
        }

    return figures


def privacy_figures(claim: Claim, charged: int) -> dict[str, float]:
    """The ε of `charged` steps and the ε to sign off, each with its number of steps. Both are rounded up."""
    claimed = claim.claimed_steps(charged)
    return {
        "dp_epsilon_spent": _rounded_up(claim.epsilon(charged)),
        "dp_steps_charged": charged,
        "dp_epsilon": _rounded_up(claim.epsilon(claimed)),
        "dp_steps_claimed": claimed,
    }


def evaluation_figures(record: Evaluated) -> dict[str, float]:
    """An evaluation on the public set; figures that are not finite are left out."""
    measured = {"eval_loss": record.loss, **{f"eval_{name}": value for name, value in record.metrics.items()}}
    return {key: value for key, value in measured.items() if key in KEYS and math.isfinite(value)}


def _rounded_up(epsilon: float) -> float:
    return float(composition.format_epsilon(epsilon))
