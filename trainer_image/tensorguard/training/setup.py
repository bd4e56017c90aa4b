"""What one rank's step is made of: built once at the start of an incarnation, and checked before anything is spent.

Whatever can be wrong with a model, a shard or a place to write shows here, on public dummy input, before the ledger is
claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from torch import nn

from tensafe_api import accounting
from tensafe_api.reasons import Reason
from tensafe_api.resolve import Plan, resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.values import parse_decimal
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.data.batches import buckets
from tensorguard.data.shard import Shard
from tensorguard.models.load import checkpoint_activations, load_model
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.losses import record_loss
from tensorguard.models.self_test import SelfTest, dummy_batches, self_test, settle_threads
from tensorguard.models.source import ModelSource, resolve_model
from tensorguard.models.tasks import task_of
from tensorguard.models.tokenizer import load_tokenizer
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.config import WorkerConfig, counted_records_remark
from tensorguard.training.private_metrics import PrivateMetrics
from tensorguard.training.schedule import learning_rate_schedule
from tensorguard.training.unit_gradients import ShardGradients

MOST_VOUCHED_EPSILON = 30.0
"""Up to here a job whose noise sampler cannot be paid for is refused; beyond, ε claims nothing worth refusing."""


@dataclass
class StepComponents:
    """One rank's parts. `dimension` is d, the number of trained numbers."""

    job: TenSafeTrainingJob
    plan: Plan
    source: ModelSource
    model: PeftModel
    parameters: Sequence[nn.Parameter]
    gradients: PerExampleGradients
    units: ShardGradients
    clipper: GridClipper
    sampler: PoissonSampler
    noise: DiscreteGaussian
    noise_stream: SecretStream
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    store: CheckpointStore
    evaluation: Shard | None
    private: PrivateMetrics | None
    pad_id: int
    identity: dict[str, str]
    remarks: tuple[str, ...]

    @property
    def dimension(self) -> int:
        return self.gradients.dimension


def set_up(config: WorkerConfig, rank: int, device: torch.device) -> StepComponents:
    """Load, attach, check. Raises what the parts raise; `run_on_all_ranks` makes a sentence of it on every rank."""
    job = config.parse_job()
    _, plan = resolve_job(job)
    spec, mechanism = job.spec, plan.mechanism
    source = resolve_model(spec.model.name, spec.model.revision)
    tokenizer = load_tokenizer(
        source, chat_template=spec.model.chat_template, trust_remote_code=spec.model.trust_remote_code
    )
    model = load_lora_model(job, source, tokenizer.pad_token_id, device)
    named = trainable_parameters(model)
    loss_scale = parse_decimal(spec.training.loss_scale) if spec.training.loss_scale else 1.0
    gradients = PerExampleGradients(model, named, record_loss(task_of(spec)), loss_scale)
    _check_length(job, model)
    _check_vocabulary(job, model, max(tokenizer.get_vocab().values()))
    report = settle_threads(lambda: _self_test(job, model, gradients, device))

    private = PrivateMetrics(config.directory, rank) if spec.observability.private_metrics == "Internal" else None
    noise = DiscreteGaussian(mechanism.share_sigma)
    vouched = _vouch_for_noise(plan, noise, gradients.dimension)
    stream = SecretStream()
    shard = Shard.open(Path(config.shards[rank]))
    parameters = [parameter for _, parameter in named]
    rate = parse_decimal(spec.training.learning_rate)
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=parse_decimal(spec.training.weight_decay))
    return StepComponents(
        job=job,
        plan=plan,
        source=source,
        model=model,
        parameters=parameters,
        gradients=gradients,
        units=ShardGradients(
            shard,
            model,
            gradients,
            stream.derive("seeds"),
            micro_batch_size=spec.training.micro_batch_size,
            max_length=spec.training.max_length,
            pad_id=tokenizer.pad_token_id,
            device=device,
        ),
        clipper=GridClipper(
            gradients.dimension, mechanism.grid, float(mechanism.clip), device, keep_norms=private is not None
        ),
        sampler=PoissonSampler(len(shard), mechanism.sample_rate, stream.derive("sampling")),
        noise=noise,
        noise_stream=stream.derive("noise"),
        optimizer=optimizer,
        learning_rate=learning_rate_schedule(rate, spec.training.schedule, plan.steps, plan.warmup_steps),
        store=CheckpointStore.for_job(job, config.mounts),
        evaluation=Shard.open(Path(config.evaluation)) if config.evaluation else None,
        private=private,
        pad_id=tokenizer.pad_token_id,
        identity={"name": source.name, "weights": source.identity()},
        remarks=(
            *self_test_remarks(report, mechanism.expected_batch_size),
            *vouched,
            *counted_records_remark(job.metadata.annotations),
        ),
    )


def load_lora_model(job: TenSafeTrainingJob, source: ModelSource, pad_id: int, device: torch.device) -> PeftModel:
    """The job's base model with its LoRA factors, in training mode: the same on every rank and in every attempt."""
    spec = job.spec
    base = load_model(
        source,
        task_of(spec),
        init_seed=spec.lora.init_seed,
        pad_token_id=pad_id,
        precision=precision_of(job, device),
        device=device,
        trust_remote_code=spec.model.trust_remote_code,
    )
    lora = spec.lora
    model = attach_lora(
        base,
        rank=lora.rank,
        alpha=lora.alpha or 2 * lora.rank,
        dropout=parse_decimal(lora.dropout),
        init_seed=lora.init_seed,
        target_modules=lora.target_modules or None,
        layers=lora.layers,
        modules_to_save=lora.modules_to_save,
    )
    if spec.training.gradient_checkpointing:
        checkpoint_activations(base.model)
    return model


def precision_of(job: TenSafeTrainingJob, device: torch.device) -> str:
    """The base weights' precision: what the manifest says, else bf16 on a GPU and fp32 on a CPU."""
    return job.spec.training.precision or ("bf16" if device.type == "cuda" else "fp32")


def self_test_remarks(report: SelfTest, expected_batch: int) -> tuple[str, ...]:
    """What the statement must say of the self-test.

    Where rows move with their slot by a relative e, a unit that joins may move the clipped gradient of everybody behind
    it by 2e of the clip norm: over an expected batch of B, up to 2eB beside its own 1.
    """
    if report.bit_equal:
        return ()
    return (
        "On this machine a record's gradient was not bit-equal in every slot of a micro-batch: it moved by a relative "
        f"{report.neighbour_error:.1e}, a kernel's rounding. Over an expected batch of {expected_batch} that could add "
        f"{2 * report.neighbour_error * expected_batch:.1e} to a sensitivity of 1, which the claim does not cover.",
    )


def _self_test(
    job: TenSafeTrainingJob, model: PeftModel, gradients: PerExampleGradients, device: torch.device
) -> SelfTest:
    """The self-test on public micro-batches of every shape that the run can have: its worst figures."""
    training = job.spec.training
    reports = [
        self_test(
            model,
            gradients,
            dummy_batches(
                task_of(job.spec),
                rows=training.micro_batch_size,
                length=length,
                vocabulary=model.config.get_text_config().vocab_size,
                device=device,
            ),
        )
        for length in buckets(training.max_length)
    ]
    return SelfTest(
        sum_error=max(report.sum_error for report in reports),
        neighbour_error=max(report.neighbour_error for report in reports),
    )


def _check_length(job: TenSafeTrainingJob, model: PeftModel) -> None:
    """Refuse records longer than the model has positions for."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and job.spec.training.max_length > positions:
        raise AttemptFailed(
            Reason.INVALID_MANIFEST,
            f"spec.training.maxLength: {job.spec.training.max_length} is more than the {positions} positions of "
            f"{job.spec.model.name}; lower it",
        )


def _check_vocabulary(job: TenSafeTrainingJob, model: PeftModel, largest: int) -> None:
    """Refuse a tokenizer with tokens that the model does not know: a record with one would fail, and tell of itself."""
    rows = model.get_input_embeddings().weight.shape[0]
    if largest >= rows:
        raise AttemptFailed(
            Reason.MODEL_UNSUPPORTED,
            f"spec.model.name: the tokenizer of {job.spec.model.name} has tokens up to number {largest}, and its model "
            f"embeds {rows} of them; give it a tokenizer that fits",
        )


def _vouch_for_noise(plan: Plan, noise: DiscreteGaussian, dimension: int) -> tuple[str, ...]:
    """See to it that the noise sampler's distance from the discrete Gaussian, over all draws, is paid for by its share
    of δ: a total variation of τ costs (1 + e^ε)·τ. Beyond ε = 30, where e^ε alone outgrows it, the statement says so.

    Raises:
        AttemptFailed: where δ is too small for a sensible ε.
    """
    draws = dimension * plan.max_steps * plan.mechanism.workers
    epsilon = min(plan.target_epsilon, plan.epsilon(plan.max_steps))
    cost = math.log(draws) + math.log(noise.total_variation) + float(np.logaddexp(0.0, epsilon))
    if cost <= math.log(float(plan.delta) * accounting.SAMPLER_SHARE_OF_DELTA):
        return ()
    if epsilon <= MOST_VOUCHED_EPSILON:
        raise AttemptFailed(
            Reason.INVALID_MANIFEST,
            f"spec.privacy.targetDelta: {plan.delta} is too small for {draws} draws of noise at a distance of "
            f"{noise.total_variation:.1e} each; raise it, or lower spec.lora.rank",
        )
    return (
        f"At an ε of {epsilon:.0f} the noise sampler's distance from the discrete Gaussian adds e^{cost:.0f} to δ: "
        "nothing is hidden at such an ε.",
    )
