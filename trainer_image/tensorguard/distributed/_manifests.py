"""From the Python configuration to the manifest that all other parts read.

In: a `TenSafeTrainingConfig`, and the data set's column names and length. Out: a `TenSafeTrainingJob`, checked by the
same rules as one from a file. A number becomes the shortest decimal string that gives the same float again, so that the
privacy claim is computed from exactly the number that the user wrote.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

from tensafe_api.manifest.text import ManifestError, parse_job
from tensafe_api.resources.job import API_VERSION, KIND, TenSafeTrainingJob
from tensafe_api.resources.ledger import COUNTED_ANNOTATION
from tensafe_api.tasks import TASKS, tasks_for
from tensorguard.distributed._config import ACCOUNTANTS, PRECISIONS, TenSafeTrainingConfig, require_float, require_int
from tensorguard.distributed._datasets import check_kind, columns_of, length_of, uri_of
from tensorguard.distributed._errors import ConfigurationError, with_python_names
from tensorguard.training.config import COUNTED_RECORDS_REMARK

TRAIN_URI = "memory://train_dataset"
EVAL_URI = "memory://eval_dataset"
FP16_LOSS_SCALE = "1024"
DEFAULT_MICRO_BATCHES = 8
_MAX_NAME = 40


def build_job(
    config: TenSafeTrainingConfig, train_dataset: Any, *, evaluates: bool, eval_uri: str | None = None
) -> TenSafeTrainingJob:
    """The job for `config` and `train_dataset`.

    Args:
        evaluates: whether there is an evaluation set.
        eval_uri: its URI, if it is not in memory.

    Raises:
        ConfigurationError: with one line for each fault.
    """
    check_kind(train_dataset, "train_dataset")
    columns = {role: str(name) for role, name in (config.columns or columns_of(train_dataset, config.task)).items()}
    task = config.task or next(iter([*tasks_for(columns.keys() - {"user"}), *TASKS]))
    at_least, annotations = _units(config, train_dataset, by_user="user" in columns)
    unit: dict[str, Any] = {"kind": "Example", "atLeast": at_least}
    if (user := columns.pop("user", None)) is not None:
        unit |= {"kind": "User", "column": user}
    unit["missing"] = config.unit_missing
    evaluation = {"uri": eval_uri or EVAL_URI, "visibility": "Public"} if evaluates else None
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job_name(config), "annotations": annotations},
        "spec": {
            "model": {
                "name": str(config.model_name),
                "task": task,
                "numLabels": _int(config, "num_labels"),
                "labelNames": list(config.label_names or ()),
            },
            "lora": _lora(config),
            "dataset": {
                "uri": uri_of(train_dataset) or TRAIN_URI,
                "columns": columns,
                "unusable": config.unusable,
                "nullValues": list(config.null_values),
                "unit": unit,
            },
            "evaluation": evaluation,
            "training": _training(config),
            "privacy": _privacy(config),
            "aggregation": {"verify": "Standard" if config.aggregation.verify_aggregation else "Disabled"},
            "checkpoint": {
                "uri": checkpoint_uri(config),
                "everySteps": _int(config, "checkpoint_frequency"),
                **_encryption(config),
            },
            "observability": {
                "privateMetrics": config.private_metrics,
                "auditLog": "Enabled" if config.enable_audit_logging else None,
            },
            "cluster": {
                "workers": _int(config, "num_workers"),
                "worker": {"cpus": f"{config.cpus_per_worker:.12g}", "gpus": config.gpus_per_worker},
            },
        },
    }
    try:
        return parse_job(manifest)
    except ManifestError as error:
        raise ConfigurationError(with_python_names(str(error))) from None


def job_name(config: TenSafeTrainingConfig) -> str:
    """The job's name: the last part of the model's name, as a valid Kubernetes name."""
    word = re.sub(r"[^a-z0-9]+", "-", Path(config.model_name).name.lower())
    return re.sub(r"^[^a-z]+", "", word)[:_MAX_NAME].strip("-") or "job"


def checkpoint_uri(config: TenSafeTrainingConfig) -> str:
    """The URI of checkpoints: a URI unchanged, a path as an absolute path."""
    return as_uri(config.checkpoint_dir)


def as_uri(folder: str | Path) -> str:
    """A URI unchanged, a path as an absolute path."""
    place = str(folder)
    if place.startswith("file://"):
        place = place.removeprefix("file://")
    return place if "://" in place else str(Path(place).expanduser().absolute())


def run_folder(config: TenSafeTrainingConfig) -> Path:
    """The folder of the run's ledger and log records."""
    if config.output_dir is not None:
        return Path(config.output_dir).expanduser().absolute()
    uri = checkpoint_uri(config)
    if "://" in uri:
        return (Path("tensafe-runs") / job_name(config)).absolute()
    return Path(uri) / "run"


def _units(config: TenSafeTrainingConfig, train_dataset: Any, *, by_user: bool) -> tuple[int, dict[str, str]]:
    """The public lower bound of the number of units, and the annotation that reports if it was counted."""
    if config.unit_at_least is not None:
        return require_int("unit_at_least", config.unit_at_least), {}
    if by_user:
        raise ConfigurationError(
            "unit_at_least: missing, and users are not counted: write a public lower bound of their number"
        )
    count = length_of(train_dataset)
    if count == 0:
        raise ConfigurationError("train_dataset: it is empty: pass at least one record")
    warnings.warn(COUNTED_RECORDS_REMARK.format(count=count), stacklevel=4)
    return count, {COUNTED_ANNOTATION: str(count)}


def _encryption(config: TenSafeTrainingConfig) -> dict[str, Any]:
    if not config.encryption_recipients:
        return {}
    return {"encryption": {"recipients": list(config.encryption_recipients)}}


def _lora(config: TenSafeTrainingConfig) -> dict[str, Any]:
    targets = config.lora_target_modules if config.target_modules is None else config.target_modules
    return {
        "layers": [] if config.train_head_only else None,
        "rank": _int(config, "lora_rank"),
        "alpha": _int(config, "lora_alpha"),
        "dropout": _decimal("lora_dropout", config.lora_dropout),
        "targetModules": [targets] if isinstance(targets, str) else list(targets or ()),
    }


def _training(config: TenSafeTrainingConfig) -> dict[str, Any]:
    rows = require_int("per_device_batch_size", config.per_device_batch_size)
    precision = PRECISIONS[config.mixed_precision]
    return {
        "epochs": _decimal("num_epochs", config.num_epochs),
        "expectedBatchSize": None if config.train_head_only else rows * _micro_batches(config),
        "microBatchSize": rows,
        "learningRate": _decimal("learning_rate", config.learning_rate),
        "weightDecay": _decimal("weight_decay", config.weight_decay),
        "warmupRatio": _decimal("warmup_ratio", config.warmup_ratio),
        "maxLength": _int(config, "max_seq_length"),
        "precision": precision,
        "lossScale": FP16_LOSS_SCALE if precision == "fp16" else None,
        "gradientCheckpointing": config.gradient_checkpointing,
    }


def _micro_batches(config: TenSafeTrainingConfig) -> int:
    """The micro-batches of all workers in a step."""
    own = DEFAULT_MICRO_BATCHES if config.gradient_accumulation_steps is None else config.gradient_accumulation_steps
    if require_int("gradient_accumulation_steps", own) < 1:
        raise ConfigurationError(f"gradient_accumulation_steps: must be at least 1, not {own}")
    return own * require_int("num_workers", config.num_workers)


def _privacy(config: TenSafeTrainingConfig) -> dict[str, Any]:
    dp = config.dp_config
    return {
        "targetEpsilon": _decimal("dp_config.target_epsilon", dp.target_epsilon),
        "targetDelta": _decimal("dp_config.target_delta", dp.target_delta),
        "maxGradNorm": _decimal("dp_config.max_grad_norm", dp.max_grad_norm),
        "noiseMultiplier": _decimal("dp_config.noise_multiplier", dp.noise_multiplier),
        "accountant": None if dp.accountant_type is None else ACCOUNTANTS[dp.accountant_type],
        "onBudgetExhausted": "Stop" if dp.stop_on_budget_exceeded else "Fail",
    }


def _int(config: TenSafeTrainingConfig, name: str) -> int | None:
    value = getattr(config, name)
    return None if value is None else require_int(name, value)


def _decimal(name: str, value: float | None) -> str | None:
    """The shortest decimal string that gives the same float again."""
    return None if value is None else repr(require_float(name, value))
