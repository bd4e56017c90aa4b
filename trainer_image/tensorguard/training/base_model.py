"""Loads the base model of a job, and attaches its LoRA factors.

In: a job, and the files of its model. Out: a peft model, in training mode, which is the same on every rank and in every
attempt. Ranks that share a base get it without its weights if they can be read later (`models.deferred_model`).
"""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel

from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.models.deferred_model import DeferredModel, load_deferred
from tensorguard.models.load import BaseModel, checkpoint_activations, load_model
from tensorguard.models.lora import attach_lora_of
from tensorguard.models.source import ModelSource
from tensorguard.models.tasks import task_of


def load_lora_model(
    job: TenSafeTrainingJob, source: ModelSource, pad_id: int | None, device: torch.device
) -> PeftModel:
    """The job's base model with its LoRA factors, in training mode, on `device`.

    It is the same on every rank and in every attempt: its random numbers come from `spec.lora.initSeed`.
    """
    return _load_on(device, job, source, **_settings(job, pad_id, device))


def load_to_share(
    job: TenSafeTrainingJob, source: ModelSource, pad_id: int | None, device: torch.device
) -> tuple[PeftModel, DeferredModel | None]:
    """The same for ranks that share a base: without its weights if they can be read later, else on the CPU."""
    spec, settings = job.spec, _settings(job, pad_id, device)
    if not (spec.model.trust_remote_code or spec.model.quantization):
        deferred = load_deferred(source, task_of(spec), **settings)
        if deferred is not None:
            return _with_adapter(job, deferred.base), deferred
    return _load_on(torch.device("cpu"), job, source, **settings), None


def _settings(job: TenSafeTrainingJob, pad_id: int | None, device: torch.device) -> dict[str, Any]:
    precision = precision_of(job, device)
    return {"modules_to_save": job.spec.lora.modules_to_save, "precision": precision, "pad_token_id": pad_id}


def _load_on(device: torch.device, job: TenSafeTrainingJob, source: ModelSource, **settings: Any) -> PeftModel:
    spec = job.spec
    base = load_model(
        source,
        task_of(spec),
        init_seed=spec.lora.init_seed,
        device=device,
        trust_remote_code=spec.model.trust_remote_code,
        quantization=spec.model.quantization,
        **settings,
    )
    return _with_adapter(job, base)


def _with_adapter(job: TenSafeTrainingJob, base: BaseModel) -> PeftModel:
    model = attach_lora_of(job.spec.lora, base)
    if job.spec.training.gradient_checkpointing:
        checkpoint_activations(base.model)
    return model


def precision_of(job: TenSafeTrainingJob, device: torch.device) -> str:
    """The precision of the base weights: that of the manifest, else bf16 on a GPU and fp32 on a CPU."""
    return job.spec.training.precision or ("bf16" if device.type == "cuda" else "fp32")
