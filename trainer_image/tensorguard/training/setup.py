"""Sets up and checks the components of one rank's steps, once per incarnation.

In comes a `WorkerConfig`; out come `StepComponents`. Every problem with a model, a shard or a checkpoint location shows
here, on public dummy input, before the ledger is acquired. So nothing is spent on a job that cannot run.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from peft import PeftModel
from torch import nn

from tensafe_api.accounting import composition
from tensafe_api.reasons import Reason
from tensafe_api.resolve import Plan, keeps_states, learning_rate, resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.numeric import parse_decimal, parse_quantity
from tensafe_api.statement.contents import SAMPLERS_UNPAID, digest
from tensorguard.checkpoint.encryption import Identities, read_identities
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.data.recipe import Recipe
from tensorguard.data.rows import PixelRows, Rows, TokenRows
from tensorguard.data.shard import Shard
from tensorguard.models.adapter import load_adapter_state
from tensorguard.models.batch_losses import record_loss
from tensorguard.models.bit_equality import find_bit_equal_shape
from tensorguard.models.deferred_model import DeferredModel
from tensorguard.models.frozen_prefix import StateRows, find_frozen_prefix
from tensorguard.models.lora import trainable_parameters
from tensorguard.models.output_head import OutputHead, find_output_head
from tensorguard.models.positions import check_length
from tensorguard.models.self_test import SelfTest, dummy_batches, self_test, states_change_nothing
from tensorguard.models.sharded_base import SHARED_PASSES_REMARK, BaseSharding
from tensorguard.models.source import ModelSource, resolve_model
from tensorguard.models.tasks import Task, task_of
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.base_model import load_lora_model, load_to_share
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.config import WorkerConfig, counted_records_remark
from tensorguard.training.initial_adapter import InitialAdapter, find_initial_adapter
from tensorguard.training.private_metrics import PrivateMetrics
from tensorguard.training.schedule import learning_rate_schedule
from tensorguard.training.unit_gradients import ShardGradients


@dataclass
class StepComponents:
    """The components of one rank.

    Attributes:
        parameters: the trained parameters, in the order of the gradient's coordinates.
        shard: the records of this rank, which are private, as is their number.
        evaluation: the tokenised evaluation set; None without one.
        form: makes the rows of micro-batches.
        why_no_states: why the frozen layers are computed in every step although `training.frozenPrefix` is Auto; empty
            where they are computed once, or where there are none.
        output_head: computes the losses without the logits; None where that is not possible.
        records_at_once: the number of records in a micro-batch: `training.microBatchSize`, or less where the gradients
            of so many are not bit-equal on this machine.
        private_metrics: None unless the job keeps private metrics.
        sharding: the ranks that share one base model; None where each rank has a whole one.
        identity: name, digest and quantisation of the base model, and digest of the chat template, for the ledger and
            the statement.
        initial: the adapter of `lora.initFrom`; None without one.
        remarks: sentences that the statement must contain.
    """

    job: TenSafeTrainingJob
    plan: Plan
    source: ModelSource
    model: PeftModel
    parameters: Sequence[nn.Parameter]
    per_example_gradients: PerExampleGradients
    records_at_once: int
    shard: Shard
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
    why_no_states: str
    output_head: OutputHead | None
    sharding: BaseSharding | None
    identity: dict[str, str]
    initial: InitialAdapter | None
    identities: Identities | None
    remarks: tuple[str, ...]

    @property
    def dimension(self) -> int:
        """d, the number of trained numbers."""
        return self.per_example_gradients.dimension


MOST_OF_DISK = 0.5
"""The share of the free disk, or of the disk that a worker requests, that the states of all ranks on it may take."""
KEPT_OF_NODE = 0.15
"""The share of a node's disk that is not free for states: the kubelet evicts pods where less than that is left."""

T = TypeVar("T")
OnAllRanks = Callable[[Callable[[], T]], T]
"""Runs a function on this rank, and raises if it failed on any rank (`run_on_all_ranks`)."""


@dataclass(frozen=True)
class _Loaded:
    """What a rank has before it does anything together with the others. `deferred`: weights that are still in files."""

    job: TenSafeTrainingJob
    plan: Plan
    source: ModelSource
    task: Task
    form: Rows
    model: PeftModel
    deferred: DeferredModel | None
    identity: dict[str, str]
    initial: InitialAdapter | None
    identities: Identities | None
    noise: DiscreteGaussian
    noise_remarks: tuple[str, ...]
    shard: Shard
    evaluation: Shard | None
    store: CheckpointStore


def set_up(
    config: WorkerConfig, rank: int, device: torch.device, on_all_ranks: OnAllRanks[Any] = lambda call: call()
) -> StepComponents:
    """Load the model, attach LoRA, check both, and open the shard. Call on every rank.

    A rank that failed alone while the others wait for it in a pass over a shared base would leave them waiting. So each
    rank first loads by itself whatever can fail, then the ranks share the base, and then they test it together.

    Args:
        on_all_ranks: runs each of these parts.

    Raises:
        Exception: whatever a component raises, or the error of another rank.
    """
    loaded: _Loaded = on_all_ranks(lambda: _load(config, rank, device))
    (sharding,) = on_all_ranks(lambda: (_share_base(loaded, device),))
    head, gradients, at_once = on_all_ranks(lambda: _test_gradients(loaded, sharding, device))
    form, why_no_states = on_all_ranks(lambda: _with_states(loaded, gradients, at_once, config, device))
    job, plan, shard = loaded.job, loaded.plan, loaded.shard
    spec, mechanism = job.spec, plan.mechanism
    private_metrics = (
        PrivateMetrics(Path(config.private_directory), rank)
        if spec.observability.private_metrics == "Internal"
        else None
    )
    stream = SecretStream()
    parameters = [parameter for _, parameter in gradients.parameters]
    rate = parse_decimal(learning_rate(spec))
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=parse_decimal(spec.training.weight_decay))
    return StepComponents(
        job=job,
        plan=plan,
        source=loaded.source,
        model=loaded.model,
        parameters=parameters,
        per_example_gradients=gradients,
        records_at_once=at_once,
        shard=shard,
        unit_gradients=ShardGradients(
            shard,
            loaded.model,
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
        noise=loaded.noise,
        noise_stream=stream.derive("noise"),
        optimizer=optimizer,
        learning_rate=learning_rate_schedule(rate, spec.training.schedule, plan.steps, plan.warmup_steps),
        store=loaded.store,
        evaluation=loaded.evaluation,
        private_metrics=private_metrics,
        form=form,
        why_no_states=why_no_states,
        output_head=head,
        sharding=sharding,
        identity=loaded.identity,
        initial=loaded.initial,
        identities=loaded.identities,
        remarks=(
            *loaded.noise_remarks,
            *counted_records_remark(mechanism, spec.dataset.unit.at_least),
            *((SHARED_PASSES_REMARK,) if sharding and spec.model.sharding == "Workers" else ()),
        ),
    )


def _load(config: WorkerConfig, rank: int, device: torch.device) -> _Loaded:
    """Load the model, its adapter and the shard, without a collective."""
    job = config.parse_job()
    _, plan = resolve_job(job)
    spec, mechanism = job.spec, plan.mechanism
    source = resolve_model(spec.model.name, spec.model.revision)
    task, recipe = task_of(spec), Recipe.from_spec(spec)
    processor = task.load_processor(source, spec.model)
    pad_id = task.pad_id(processor)
    model, deferred = (
        (load_lora_model(job, source, pad_id, device), None)
        if spec.ranks_per_base == 1
        else load_to_share(job, source, pad_id, device)
    )
    form = task.rows(processor, recipe, model)
    identity = {"name": source.name, "weights": source.identity()}
    if spec.model.quantization:
        identity["quantization"] = spec.model.quantization
    if "messages" in recipe.columns:
        identity["chatTemplate"] = digest(str(recipe.chat_template or processor.chat_template).encode())
    store = CheckpointStore.for_job(job, config.mounts)
    identities = read_identities(Path(config.identity_file)) if config.identity_file else None
    initial = find_initial_adapter(spec, mechanism, identity, store, config.job_uid, identities)
    if initial is not None and initial.tensors is not None:
        load_adapter_state(model, initial.tensors)
    if isinstance(form, TokenRows):
        check_length(model, source.name, form.max_length)
        _check_vocabulary(job, model, max(processor.get_vocab().values()))
    if isinstance(form, PixelRows):
        _check_image_size(job, model, form)
    noise = DiscreteGaussian(mechanism.share_sigma)
    dimension = sum(parameter.numel() for _, parameter in trainable_parameters(model))
    return _Loaded(
        job=job,
        plan=plan,
        source=source,
        task=task,
        form=form,
        model=model,
        deferred=deferred,
        identity=identity,
        initial=initial,
        identities=identities,
        noise=noise,
        noise_remarks=_check_noise_sampler(
            plan, noise, dimension, initial.noise_distance if initial is not None else 0.0
        ),
        shard=Shard.open(Path(config.shards[rank])),
        evaluation=Shard.open(Path(config.evaluation)) if config.evaluation else None,
        store=store,
    )


def _share_base(loaded: _Loaded, device: torch.device) -> BaseSharding | None:
    """Share the base model with other ranks; None where this rank keeps a whole one. Call on every rank."""
    spec = loaded.job.spec
    if spec.ranks_per_base == 1:
        return None
    sharding = BaseSharding.of(spec.ranks_per_base, device)
    if spec.model.sharding != "Workers":
        sharding.check_one_machine()
    sharding.shard(loaded.model, device, loaded.deferred)
    return sharding


def _test_gradients(
    loaded: _Loaded, sharding: BaseSharding | None, device: torch.device
) -> tuple[OutputHead | None, PerExampleGradients, int]:
    """The output head, the gradients of records, and how many records at once are bit-equal. Call on every rank.

    Ranks that share a base run the same passes, and a fault on one of them ends the test on all.
    """
    task, form, model, training = loaded.task, loaded.form, loaded.model, loaded.job.spec.training
    loss_scale = parse_decimal(training.loss_scale) if training.loss_scale else 1.0
    shortest = dummy_batches(task, form, rows=1, length=min(form.lengths), device=device)
    head = find_output_head(task, model, shortest(0))
    gradients = PerExampleGradients(model, trainable_parameters(model), record_loss(task, head), loss_scale)
    at_once = find_bit_equal_shape(
        lambda rows: _on_all_sharing(
            sharding, _self_test(task, form, loaded.plan, model, gradients, device, rows, sharding)
        ),
        rows=training.micro_batch_size,
        device=device,
    )
    return head, gradients, at_once


def _with_states(
    loaded: _Loaded, gradients: PerExampleGradients, at_once: int, config: WorkerConfig, device: torch.device
) -> tuple[Rows, str]:
    """The rows of the job, with the states of what is frozen where these save time, fit, and change no bit.

    Also returns why they are left out, if they would save time.
    """
    task, form, model = loaded.task, loaded.form, loaded.model
    if not keeps_states(loaded.job.spec, loaded.plan):
        return form, ""
    one = dummy_batches(task, form, rows=1, length=min(form.lengths), device=device)(0)
    prefix = find_frozen_prefix(model, {name: each for name, each in one.items() if name != "labels"})
    if prefix is None:
        return form, ""
    rows = StateRows(form, prefix, device)
    try:
        if rows.bytes_of(*filter(None, (loaded.shard, loaded.evaluation))) > _disk_for_states(loaded.job, config):
            why = "their results would take more than half of the disk that is free for this worker"
        elif _states_are_exact(task, rows, loaded.plan, model, gradients, device, at_once):
            return rows, ""
        else:
            why = "on this machine, a record's gradient would change with kept results"
    except torch.OutOfMemoryError:
        raise
    except Exception:  # the upper layers of a model may need anything of the lower ones
        why = "the trained layers of this model need more than their results"
    prefix.close()
    return form, why


def _states_are_exact(
    task: Task,
    rows: StateRows,
    plan: Plan,
    model: PeftModel,
    gradients: PerExampleGradients,
    device: torch.device,
    at_once: int,
) -> bool:
    """Whether gradients have the same bits with and without states, and wherever a record is in a micro-batch."""
    batches = (
        dummy_batches(task, rows, rows=at_once, length=length, device=device, padded=padded)(0)
        for length in rows.lengths
        for padded in (False, True)
    )
    same = all(states_change_nothing(model, gradients, batch) for batch in batches)
    return same and _self_test(task, rows, plan, model, gradients, device, at_once).bit_equal


def _disk_for_states(job: TenSafeTrainingJob, config: WorkerConfig) -> float:
    """The bytes of the disk that the states of one rank may take."""
    cluster, disk = job.spec.cluster, shutil.disk_usage(config.private_directory)
    if config.place == "OneMachine":
        return disk.free * MOST_OF_DISK / cluster.ranks
    free = disk.free - KEPT_OF_NODE * disk.total
    if cluster.worker.ephemeral_storage is not None:
        free = min(free, float(parse_quantity(cluster.worker.ephemeral_storage)))
    return free * MOST_OF_DISK / cluster.ranks_per_worker


def _self_test(
    task: Task,
    form: Rows,
    plan: Plan,
    model: PeftModel,
    gradients: PerExampleGradients,
    device: torch.device,
    rows: int,
    sharding: BaseSharding | None = None,
) -> SelfTest:
    """The largest errors of the self-test, over dummy micro-batches of `rows` records of every length in the run."""
    clipper = GridClipper(gradients.dimension, plan.mechanism.grid, float(plan.mechanism.clip), device)
    first_fault = {} if sharding is None else {"first_fault": sharding.first}
    reports = [
        self_test(
            model, gradients, clipper, dummy_batches(task, form, rows=rows, length=length, device=device), **first_fault
        )
        for length in form.lengths
    ]
    return SelfTest(
        sum_error=max(report.sum_error for report in reports),
        neighbour_error=max(report.neighbour_error for report in reports),
        uneven=next((report.uneven for report in reports if report.uneven), ""),
    )


def _on_all_sharing(sharding: BaseSharding | None, own: SelfTest) -> SelfTest:
    """The self-test's result, or that of a rank whose kernels round where those of this one do not.

    Ranks that share a base must agree: they run the same passes.
    """
    if sharding is None:
        return own
    (inexact,) = sharding.largest(int(not own.bit_equal))
    return replace(own, neighbour_error=max(own.neighbour_error, math.ulp(0.0))) if inexact else own


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
    cost = composition.log_cost_of_samplers(draws * noise.total_variation + earlier_distance, epsilon)
    if cost <= composition.log_share_of_samplers(plan.delta):
        return ()
    if epsilon <= composition.LARGEST_PAID_EPSILON:
        raise AttemptFailed(
            Reason.INVALID_MANIFEST,
            f"spec.privacy.targetDelta: {plan.delta} is too small for {draws} draws of noise with a distance of "
            f"{noise.total_variation:.1e} each; raise it, or lower spec.lora.rank",
        )
    return (f"At an ε of {epsilon:.0f} {SAMPLERS_UNPAID}e^{cost:.0f} to δ: such an ε hides nothing.",)
