"""The exceptions of `fit`, with messages that name the fields of the Python configuration.

The runner's messages name fields of the manifest, but a caller from Python never wrote a manifest.
`with_python_names` replaces the manifest's names by those of the configuration.
"""

from __future__ import annotations

import re

from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.runners.worker_group import RayTimeoutError

__all__ = ["ConfigurationError", "PrivacyBudgetExceeded", "RayTimeoutError", "TrainingFailed", "with_python_names"]

_FIELDS = {
    "model.name": "model_name",
    "model.task": "task",
    "model.numLabels": "num_labels",
    "model.labelNames": "label_names",
    "lora.layers": "train_head_only",
    "lora.rank": "lora_rank",
    "lora.alpha": "lora_alpha",
    "lora.dropout": "lora_dropout",
    "lora.targetModules": "lora_target_modules",
    "dataset.columns": "columns",
    "dataset.unusable": "unusable",
    "dataset.nullValues": "null_values",
    "dataset.unit.missing": "unit_missing",
    "dataset.unit.atLeast": "unit_at_least",
    "unit.atLeast": "unit_at_least",
    "dataset.unit.column": "columns['user']",
    "training.epochs": "num_epochs",
    "training.steps": "num_epochs",
    "training.expectedBatchSize": "per_device_batch_size x gradient_accumulation_steps x num_workers",
    "training.microBatchSize": "per_device_batch_size",
    "training.learningRate": "learning_rate",
    "training.weightDecay": "weight_decay",
    "training.warmupRatio": "warmup_ratio",
    "training.maxLength": "max_seq_length",
    "training.precision": "mixed_precision",
    "training.gradientCheckpointing": "gradient_checkpointing",
    "privacy.targetEpsilon": "dp_config.target_epsilon",
    "privacy.targetDelta": "dp_config.target_delta",
    "privacy.maxGradNorm": "dp_config.max_grad_norm",
    "privacy.noiseMultiplier": "dp_config.noise_multiplier",
    "checkpoint.uri": "checkpoint_dir",
    "checkpoint.everySteps": "checkpoint_frequency",
    "observability.auditLog": "enable_audit_logging",
    "observability.privateMetrics": "private_metrics",
    "cluster.workers": "num_workers",
    "cluster.worker.cpus": "resources_per_worker['CPU']",
    "cluster.worker": "resources_per_worker",
    "worker.gpus": "resources_per_worker['GPU']",
    "cluster.worker.gpus": "resources_per_worker['GPU']",
    "checkpoint.encryption.recipients": "encryption_recipients",
    "checkpoint.encryption": "encryption_recipients",
}
_MANIFEST_NAME = re.compile(
    r"\b(?:spec\.)?(" + "|".join(map(re.escape, sorted(_FIELDS, key=len, reverse=True))) + r")\b(?!\.\w)"
)
_OTHERS = {
    "set spec.evaluation.visibility to Private": "leave eval_dataset out",
    "spec.dataset.uri": "train_dataset",
    "spec.evaluation.uri": "eval_dataset",
    "spec.dataset": "train_dataset",
    "spec.evaluation": "eval_dataset",
    "pass --audit-log, or write Enabled": "set it to True",
    "pass --signing-key KEY": "set signing_key",
    "--signing-key": "signing_key",
    "pass --identity FILE": "set identity",
    "--identity": "identity",
    "--resume": "resume_from_checkpoint",
    "--output-dir": "output_dir",
}
_OTHER_NAME = re.compile("(" + "|".join(map(re.escape, _OTHERS)) + r")(?![\w.])")


class ConfigurationError(ValueError):
    """Training cannot start with this configuration: one line for each fault, with the field and the fix.

    Nothing was spent.
    """


class TrainingFailed(RuntimeError):
    """The training failed; the message gives the reason. `job` is the job with its status: what was spent so far."""

    def __init__(self, message: str, job: TenSafeTrainingJob) -> None:
        super().__init__(message)
        self.job = job


class PrivacyBudgetExceeded(TrainingFailed):
    """The next step would have passed `target_epsilon`, and `stop_on_budget_exceeded` is False. It did not run."""


def with_python_names(sentence: str) -> str:
    """Replace the field names of the manifest and the options of the command line by those of the configuration."""
    named = _MANIFEST_NAME.sub(lambda found: _FIELDS[found[1]], sentence)
    return _OTHER_NAME.sub(lambda found: _OTHERS[found[1]], named)
