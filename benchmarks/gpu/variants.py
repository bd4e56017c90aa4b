"""The steps that are compared. Each variant makes its own model, and yields a function that takes one step.

- `plain`: this project's trainer without privacy: the same model, loss and deterministic kernels, an ordinary backward
  pass, AdamW.
- `private`: the whole private step of one worker, `training.step.PrivateStep`. A counter replaces the ledger.
- `stock`: transformers, peft and PyTorch as they are, without privacy.
- `hooks`, `ghost`, `fastdp`: the peers on the model of `stock`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from benchmarks.gpu.setting import Setting, default_kernels
from benchmarks.peers.causal import NextToken, fastdp_step, next_token_rows
from benchmarks.peers.steps import NOISE_MULTIPLIER, opacus_step, plain_step
from benchmarks.plain import plain_step as plain_tensafe_step
from tensorguard.aggregation.channel import Channel
from tensorguard.aggregation.protocol import AggregationConfig
from tensorguard.aggregation.registry import create_aggregator
from tensorguard.aggregation.session import Session
from tensorguard.data.rows import Rows, TokenRows
from tensorguard.data.shard import Shard, Target, records_table, units_table
from tensorguard.models.batch_losses import LossFunction, record_loss
from tensorguard.models.load import checkpoint_activations, prepare_base
from tensorguard.models.lora import attach_lora, trainable_parameters
from tensorguard.models.output_head import find_output_head
from tensorguard.models.self_test import dummy_batches, self_test
from tensorguard.models.tasks import task_named
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.gradients import PerExampleGradients
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.step import PrivateStep
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.unit_gradients import ShardGradients
from tests.support.trainer.private_steps import JOB_KEY, CountingGate, example_mechanism

TASK = task_named("CausalLM")
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""All linear layers of a Llama but the output."""
Step = Callable[[int], object]
"""Takes the step of this number."""


@dataclass(frozen=True)
class Trained:
    """A model with LoRA factors as this project's trainer prepares it, and its loss for each record."""

    model: PeftModel
    loss: LossFunction
    form: Rows

    @property
    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        return trainable_parameters(self.model)

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW([parameter for _, parameter in self.parameters], lr=1e-3)


def trained(setting: Setting, rank: int) -> Trained:
    """The model of a run with LoRA factors of `rank`."""
    size, device = setting.size, setting.device
    base = prepare_base(size.model(device), TASK, pad_token_id=0, device=device, quantization=size.quantization)
    if size.checkpointing:
        checkpoint_activations(base.model)
    model = attach_lora(
        base, rank=rank, alpha=2 * rank, dropout=0.0, init_seed=0, target_modules=LINEAR, layers=size.adapted
    )
    form = TokenRows(size.length, 0, size.words)
    head = find_output_head(TASK, model, dummy_batches(TASK, form, rows=1, length=min(form.lengths), device=device)(0))
    return Trained(model, record_loss(TASK, head), form)


def tokens(setting: Setting) -> torch.Tensor:
    """The records of a step: random tokens, int64 [batch, length]."""
    size = setting.size
    return torch.randint(size.words, (size.batch, size.length), generator=torch.Generator().manual_seed(0))


def shard(setting: Setting) -> Shard:
    """The records as a worker reads them. All tokens but the first are learned."""
    ids = tokens(setting)
    learned = [[0] + [1] * (ids.shape[1] - 1)] * len(ids)
    return Shard(units_table(records_table(ids.tolist(), learned, Target.LEARNED_TOKENS), np.arange(len(ids))))


@contextmanager
def private(
    setting: Setting,
    channel: Channel,
    made: Trained | None = None,
    *,
    records: Shard | None = None,
    tested: bool = False,
) -> Iterator[PrivateStep]:
    """The private step of a job with one worker, in which every record joins every step (q = 1).

    Args:
        made: the model; by default a new one of the setting's rank.
        records: by default `shard(setting)`.
        tested: whether the self-test comes first, as in a run. It may raise SelfTestError.
    """
    made = made or trained(setting, setting.size.rank)
    gradients = PerExampleGradients(made.model, made.parameters, made.loss)
    try:
        step = _private_step(setting, channel, made, gradients, records or shard(setting))
        if tested:
            rows, length, device = setting.micro_batch, setting.size.length, setting.device
            dummies = dummy_batches(TASK, made.form, rows=rows, length=length, device=device)
            self_test(made.model, gradients, step.clipper, dummies)
        try:
            yield step
        finally:
            step.close()
    finally:
        gradients.close()


def _private_step(
    setting: Setting, channel: Channel, made: Trained, gradients: PerExampleGradients, units: Shard
) -> PrivateStep:
    device, batch = setting.device, setting.size.batch
    mechanism, stream = example_mechanism(1, sigma=str(NOISE_MULTIPLIER), batch=batch), SecretStream()
    session = Session(job="benchmark", attempt=1, incarnation=1, workers=1)
    return PrivateStep(
        aggregator=create_aggregator(AggregationConfig(channel, session, JOB_KEY, mechanism.grid_bits, "Standard")),
        budget_gate=CountingGate([]),  # type: ignore[arg-type]
        sampler=PoissonSampler(len(units), mechanism.sample_rate, stream.derive("sampling")),
        gradients=ShardGradients(
            units,
            made.model,
            gradients,
            stream.derive("seeds"),
            micro_batch_size=setting.micro_batch,
            form=made.form,
            device=device,
        ),
        clipper=GridClipper(gradients.dimension, mechanism.grid, float(mechanism.clip), device),
        noise=DiscreteGaussian(mechanism.share_sigma),
        noise_stream=stream.derive("noise"),
        parameters=[parameter for _, parameter in made.parameters],
        optimizer=made.optimizer(),
        learning_rate=lambda _: 1e-3,
        gradient_per_grid_step=float(mechanism.clip) / (mechanism.grid * batch),
        stop=StopSignal(),
    )


@contextmanager
def _private_run(setting: Setting, channel: Channel) -> Iterator[Step]:
    with private(setting, channel) as step:
        yield step.run


@contextmanager
def _plain(setting: Setting, _channel: Channel) -> Iterator[Step]:
    made = trained(setting, setting.size.rank)
    yield plain_tensafe_step(
        made.model,
        made.loss,
        made.optimizer(),
        shard(setting),
        micro_batch=setting.micro_batch,
        form=made.form,
        device=setting.device,
    )


def _peer(make: Callable[..., Callable[[], None]], **arguments: object) -> Variant:
    """A variant on the model as transformers and peft make it, with PyTorch's default kernels."""

    @contextmanager
    def variant(setting: Setting, _channel: Channel) -> Iterator[Step]:
        base = setting.size.model(setting.device)
        base.config.use_cache = False
        lora = LoraConfig(
            task_type=TASK.peft_type,
            r=setting.size.rank,
            lora_alpha=2 * setting.size.rank,
            target_modules=LINEAR,
            layers_to_transform=None if setting.size.adapted is None else list(setting.size.adapted),
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")  # peft reads it
            model = NextToken(get_peft_model(base, lora).train())
        rows = next_token_rows(tokens(setting).to(setting.device))
        with default_kernels():
            step = make(model, rows, setting.micro_batch, **arguments)
            yield lambda _: step()

    return variant


Variant = Callable[[Setting, Channel], AbstractContextManager[Step]]
OWN: dict[str, Variant] = {"plain": _plain, "private": _private_run, "stock": _peer(plain_step, by_token=True)}
PEERS: dict[str, Variant] = {
    "hooks": _peer(opacus_step, mode="hooks", by_token=True),
    "ghost": _peer(opacus_step, mode="ghost", by_token=True),
    "fastdp": _peer(fastdp_step),
}
