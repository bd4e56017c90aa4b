"""Sets up and checks the components of one rank's steps, once per incarnation.

In comes a `WorkerConfig`; out come `StepComponents`. Every problem with a model, a shard or a checkpoint location shows
here, on public dummy input, before the ledger is acquired. So nothing is spent on a job that cannot run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from torch import nn

from tensafe_api import accounting
from tensafe_api.reasons import Reason
from tensafe_api.resolve import Plan, learning_rate, resolve_job
from tensafe_api.resources.job import Spec, TenSafeTrainingJob
from tensafe_api.resources.numeric import parse_decimal
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.data.recipe import Recipe
from tensorguard.data.rows import PixelRows, Rows, TokenRows
from tensorguard.data.shard import Shard
from tensorguard.models.adapter import load_adapter_state
from tensorguard.models.bit_equality import find_bit_equal_shape
from tensorguard.models.deferred_model import load_deferred
from tensorguard.models.load import checkpoint_activations, load_model
from tensorguard.models.lora import attach_lora_of, trainable_parameters
from tensorguard.models.losses import record_loss
from tensorguard.models.output_head import OutputHead, find_output_head
from tensorguard.models.self_test import SelfTest, dummy_batches, self_test
from tensorguard.models.sharded_base import SHARED_PASSES_REMARK, BaseSharding
from tensorguard.models.source import ModelSource, resolve_model
from tensorguard.models.tasks import Task, task_of
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.config import WorkerConfig, counted_records_remark
from tensorguard.training.initial_adapter import read_initial_adapter
from tensorguard.training.private_metrics import PrivateMetrics
from tensorguard.training.schedule import learning_rate_schedule
from tensorguard.training.unit_gradients import ShardGradients

MAX_CHECKED_EPSILON = 30.0
"""A job whose noise sampler is not precise enough for its δ is refused up to this ε; above it, such an ε gives no
protection that a refusal could keep."""


@dataclass
class StepComponents:
    """The components of one rank.

    Attributes:
        parameters: the trained parameters, in the order of the gradient's coordinates.
        evaluation: the tokenised evaluation set; None without one.
        form: makes the rows of micro-batches.
        output_head: computes the losses without the logits; None where that is not possible.
        records_at_once: the number of records in a micro-batch: `training.microBatchSize`, or less where the gradients
            of so many are not bit-equal on this machine.
        private_metrics: None unless the job keeps private metrics.
        sharding: the ranks that share one base model; None where each rank has a whole one.
        identity: name, digest and quantisation of the base model, for the statement.
        started_from: for the statement, the adapter of `lora.initFrom` with its digests; None without one.
        remarks: sentences that the statement must contain.
    """

    job: TenSafeTrainingJob
    plan: Plan
    source: ModelSource
    model: PeftModel
    parameters: Sequence[nn.Parameter]
    per_example_gradients: PerExampleGradients
    records_at_once: int
    unit_gradients: ShardGradients
    clipper: GridClipper
    sampler: PoissonSampler
    noise: DiscreteGaussian
    noise_stream: SecretStream
    optimizer: torch.optim.Optimizer
    learning_rate: Callable[[int], float]
    store: CheckpointStore
    evaluation: Shard | None
    private_metrics: PrivateMetrics | None
    form: Rows
    output_head: OutputHead | None
    sharding: BaseSharding | None
    identity: dict[str, str]
    started_from: dict[str, str] | None
    remarks: tuple[str, ...]

    @property
    def dimension(self) -> int:
        """d, the number of trained numbers."""
        return self.per_example_gradients.dimension


def set_up(config: WorkerConfig, rank: int, device: torch.device) -> StepComponents:
    """Load the model, attach LoRA, check both, and open the shard.

    Raises:
        Exception: whatever a component raises. Call this inside `run_on_all_ranks`, which raises it on every rank.
    """
    job = config.parse_job()
    _, plan = resolve_job(job)
    spec, mechanism = job.spec, plan.mechanism
    source = resolve_model(spec.model.name, spec.model.revision)
    task, recipe = task_of(spec), Recipe.from_spec(spec)
    processor = task.load_processor(source, spec.model)
    sharding = _share_base(spec, device)
    model = load_lora_model(job, source, task.pad_id(processor), device, sharding)
    form = task.rows(processor, recipe, model)
    identity = {"name": source.name, "weights": source.identity()}
    if spec.model.quantization:
        identity["quantization"] = spec.model.quantization
    initial = read_initial_adapter(spec, mechanism, identity)
    if initial is not None:
        load_adapter_state(model, initial.tensors)
    named = trainable_parameters(model)
    loss_scale = parse_decimal(spec.training.loss_scale) if spec.training.loss_scale else 1.0
    if isinstance(form, TokenRows):
        _check_length(job, model, form.max_length)
        _check_vocabulary(job, model, max(processor.get_vocab().values()))
    if isinstance(form, PixelRows):
        _check_image_size(job, model, form)
    shortest = dummy_batches(task, form, rows=1, length=min(form.lengths), device=device)
    head = find_output_head(task, model, shortest(0))
    gradients = PerExampleGradients(model, named, record_loss(task, head), loss_scale)
    at_once = find_bit_equal_shape(
        lambda rows: _on_all_sharing(sharding, _self_test(task, form, plan, model, gradients, device, rows)),
        rows=spec.training.micro_batch_size,
        device=device,
    )

    private_metrics = (
        PrivateMetrics(Path(config.private_directory), rank)
        if spec.observability.private_metrics == "Internal"
        else None
    )
    noise = DiscreteGaussian(mechanism.share_sigma)
    earlier_distance = initial.noise_distance if initial is not None else 0.0
    noise_remarks = _check_noise_sampler(plan, noise, gradients.dimension, earlier_distance)
    stream = SecretStream()
    shard = Shard.open(Path(config.shards[rank]))
    parameters = [parameter for _, parameter in named]
    rate = parse_decimal(learning_rate(spec))
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=parse_decimal(spec.training.weight_decay))
    return StepComponents(
        job=job,
        plan=plan,
        source=source,
        model=model,
        parameters=parameters,
        per_example_gradients=gradients,
        records_at_once=at_once,
        unit_gradients=ShardGradients(
            shard,
            model,
            gradients,
            stream.derive("seeds"),
            micro_batch_size=at_once,
            form=form,
            device=device,
            sharding=sharding,
            keep_losses=private_metrics is not None,
        ),
        clipper=GridClipper(
            gradients.dimension, mechanism.grid, float(mechanism.clip), device, keep_norms=private_metrics is not None
        ),
        sampler=PoissonSampler(len(shard), mechanism.sample_rate, stream.derive("sampling")),
        noise=noise,
        noise_stream=stream.derive("noise"),
        optimizer=optimizer,
        learning_rate=learning_rate_schedule(rate, spec.training.schedule, plan.steps, plan.warmup_steps),
        store=CheckpointStore.for_job(job, config.mounts),
        evaluation=Shard.open(Path(config.evaluation)) if config.evaluation else None,
        private_metrics=private_metrics,
        form=form,
        output_head=head,
        sharding=sharding,
        identity=identity,
        started_from=initial.summary if initial else None,
        remarks=(
            *noise_remarks,
            *counted_records_remark(mechanism, spec.dataset.unit.at_least),
            *((SHARED_PASSES_REMARK,) if sharding and spec.model.sharding == "Workers" else ()),
        ),
    )


def _share_base(spec: Spec, device: torch.device) -> BaseSharding | None:
    """The ranks with which this rank shares the base model; None where it has a whole one. Call on every rank."""
    if spec.ranks_per_base == 1:
        return None
    sharding = BaseSharding.of(spec.ranks_per_base, device)
    if spec.model.sharding != "Workers":
        sharding.check_one_machine()
    return sharding


def load_lora_model(
    job: TenSafeTrainingJob,
    source: ModelSource,
    pad_id: int | None,
    device: torch.device,
    sharding: BaseSharding | None = None,
) -> PeftModel:
    """The job's base model with its LoRA factors, in training mode.

    It is the same on every rank and in every attempt: its random numbers come from `spec.lora.initSeed`. With
    `sharding`, this rank holds its part of the base.
    """
    spec, lora, deferred = job.spec, job.spec.lora, None
    settings: dict[str, Any] = {
        "modules_to_save": lora.modules_to_save,
        "precision": precision_of(job, device),
        "pad_token_id": pad_id,
    }
    if sharding and not (spec.model.trust_remote_code or spec.model.quantization):
        deferred = load_deferred(source, task_of(spec), **settings)
    base = (
        deferred.base
        if deferred
        else load_model(
            source,
            task_of(spec),
            init_seed=lora.init_seed,
            device="cpu" if sharding else device,
            trust_remote_code=spec.model.trust_remote_code,
            quantization=spec.model.quantization,
            **settings,
        )
    )
    model = attach_lora_of(lora, base)
    if spec.training.gradient_checkpointing:
        checkpoint_activations(base.model)
    if sharding:
        sharding.shard(model, device, deferred)
    return model


def precision_of(job: TenSafeTrainingJob, device: torch.device) -> str:
    """The precision of the base weights: that of the manifest, else bf16 on a GPU and fp32 on a CPU."""
    return job.spec.training.precision or ("bf16" if device.type == "cuda" else "fp32")


def _self_test(
    task: Task,
    form: Rows,
    plan: Plan,
    model: PeftModel,
    gradients: PerExampleGradients,
    device: torch.device,
    rows: int,
) -> SelfTest:
    """The largest errors of the self-test, over dummy micro-batches of `rows` records of every length in the run."""
    clipper = GridClipper(gradients.dimension, plan.mechanism.grid, float(plan.mechanism.clip), device)
    reports = [
        self_test(model, gradients, clipper, dummy_batches(task, form, rows=rows, length=length, device=device))
        for length in form.lengths
    ]
    return SelfTest(
        sum_error=max(report.sum_error for report in reports),
        neighbour_error=max(report.neighbour_error for report in reports),
    )


def _on_all_sharing(sharding: BaseSharding | None, own: SelfTest) -> SelfTest:
    """The self-test's result, or that of a rank whose kernels round where those of this one do not.

    Ranks that share a base must agree: they run the same passes.
    """
    if sharding is None:
        return own
    (inexact,) = sharding.largest(int(not own.bit_equal))
    return replace(own, neighbour_error=max(own.neighbour_error, math.ulp(0.0))) if inexact else own


def _check_length(job: TenSafeTrainingJob, model: PeftModel, length: int) -> None:
    """Refuse a record length for which the model has too few positions."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and length > positions:
        raise AttemptFailed(
            Reason.INVALID_MANIFEST,
            f"spec.training.maxLength: {length} is more than the {positions} positions of {job.spec.model.name}; "
            "lower it",
        )


def _check_vocabulary(job: TenSafeTrainingJob, model: PeftModel, largest: int) -> None:
    """Refuse a tokenizer with tokens that the model has no embedding for.

    A record with such a token would fail, and the failure would reveal something about that record.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    if largest >= rows:
        raise AttemptFailed(
            Reason.MODEL_UNSUPPORTED,
            f"spec.model.name: the tokenizer of {job.spec.model.name} has tokens up to number {largest}, but the model "
            f"has embeddings for only {rows}; use a model and a tokenizer that match",
        )


def _check_image_size(job: TenSafeTrainingJob, model: PeftModel, form: PixelRows) -> None:
    """Refuse a model that reads images of another size than its image processor makes, or that are not in RGB."""
    made, channels = (form.recipe.pixels.height, form.recipe.pixels.width), getattr(model.config, "num_channels", 3)
    size = getattr(model.config, "image_size", made)
    wanted = tuple(size) if isinstance(size, list | tuple) else (size, size)
    if (wanted, channels) != (made, 3):
        raise AttemptFailed(
            Reason.MODEL_UNSUPPORTED,
            f"spec.model.name: {job.spec.model.name} reads images of {wanted[0]} x {wanted[1]} pixels in {channels} "
            f"channels, but its image processor makes {made[0]} x {made[1]} pixels in 3; correct the size in its "
            "preprocessor_config.json",
        )


def _check_noise_sampler(
    plan: Plan, noise: DiscreteGaussian, dimension: int, earlier_distance: float = 0.0
) -> tuple[str, ...]:
    """Check that the share of δ for the noise sampler covers its distance from the discrete Gaussian.

    A total variation distance of τ over all draws costs (1 + e^ε)·τ. `earlier_distance` is that of the earlier
    trainings of the adapter, which ε counts too. Above ε = 30 the factor e^ε makes any distance too expensive. Then the
    job runs, and the statement has a remark, which is returned.

    Raises:
        AttemptFailed: δ is too small, and ε is at most 30.
    """
    draws = dimension * plan.max_steps * plan.mechanism.workers
    epsilon = min(plan.target_epsilon, plan.epsilon(plan.max_steps))
    cost = math.log(draws * noise.total_variation + earlier_distance) + float(np.logaddexp(0.0, epsilon))
    if cost <= math.log(float(plan.delta) * accounting.SAMPLER_SHARE_OF_DELTA):
        return ()
    if epsilon <= MAX_CHECKED_EPSILON:
        raise AttemptFailed(
            Reason.INVALID_MANIFEST,
            f"spec.privacy.targetDelta: {plan.delta} is too small for {draws} draws of noise with a distance of "
            f"{noise.total_variation:.1e} each; raise it, or lower spec.lora.rank",
        )
    return (
        f"At an ε of {epsilon:.0f} the noise sampler's distance from the discrete Gaussian adds e^{cost:.0f} to δ: "
        "such an ε hides nothing.",
    )
