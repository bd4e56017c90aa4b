"""Private steps without a model, a ledger or processes: for tests of aggregation, on workers that are threads.

Gradients, charges and the optimiser are simple stand-ins. Sampling, clipping, noise, aggregation and decoding are the
real code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tensafe_api.resources.mechanism import Mechanism
from tensorguard.aggregation.channel import Channel
from tensorguard.aggregation.protocol import AggregationConfig
from tensorguard.aggregation.registry import DEFAULT_PROTOCOL, create_aggregator
from tensorguard.aggregation.session import Session
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.budget_gate import Allowance, Verdict
from tensorguard.training.step import PrivateStep
from tensorguard.training.stop_signal import StopSignal

Shard = Mapping[int, Sequence[float]]
"""The gradient of each unit, by the unit's number."""
JOB_KEY = bytes(32)
CPU = torch.device("cpu")


@dataclass
class GivenGradients:
    """Replaces the model: each unit's gradient is given. A unit's rounding seed is its number."""

    shard: Shard

    def add_to(self, clipper: GridClipper, units: Sequence[int], stop: StopSignal) -> bool:
        numbers = [list(self.shard)[unit] for unit in units]
        if numbers:
            clipper.add(torch.tensor([self.shard[number] for number in numbers], dtype=torch.float32), numbers)
        return True


@dataclass
class CountingGate:
    """Replaces the ledger: one charge for each step, up to `budget` charges."""

    events: list[tuple[str, int]]
    budget: int = 1000
    allowance: Allowance = field(default_factory=lambda: Allowance(Verdict.CONTINUE, 0, "0" * 64))

    def ensure_charged(self, step: int, stop: bool) -> Allowance:
        if step >= self.budget:
            return Allowance(Verdict.EXHAUSTED, step, "0" * 64)
        self.events.append(("charge", step))
        return Allowance(Verdict.CONTINUE, step + 1, "0" * 64)


class RecordingOptimizer:
    """Replaces the optimiser: keeps the gradients that it receives."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.param_groups: list[dict[str, Any]] = [{"lr": 0.0}]
        self.gradients: list[np.ndarray] = []

    def step(self) -> None:
        self.gradients.append(
            torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None]).double().numpy()
        )

    def zero_grad(self, set_to_none: bool) -> None:
        for parameter in self.parameters:
            parameter.grad = None


@dataclass
class StepResults:
    """What one worker observed: the sums in grid steps, the verdicts, and the order of charges and reveals."""

    sums: list[np.ndarray]
    verdicts: list[Verdict]
    events: list[tuple[str, int]]


def example_mechanism(workers: int, sigma: str = "1", rate: str = "1", batch: int = 8) -> Mechanism:
    return Mechanism(
        sample_rate=rate,
        noise_multiplier=sigma,
        clip="0.5",
        unit="Example",
        workers=workers,
        grid_bits=14,
        expected_batch_size=batch,
    )


def take_steps(
    channel: Channel,
    mechanism: Mechanism,
    shard: Shard,
    count: int,
    dimension: int,
    *,
    keys: int | None = None,
    budget: int = 1000,
    stop_before: int | None = None,
    protocol: str = DEFAULT_PROTOCOL,
) -> StepResults:
    """Take `count` steps as one worker of a group. `keys` makes the random streams of two runs equal."""
    events: list[tuple[str, int]] = []
    all_reduce = channel.all_reduce
    stop = StopSignal()

    def recording_all_reduce(vector: np.ndarray) -> np.ndarray:
        events.append(("reveal", len([1 for kind, _ in events if kind == "reveal"])))
        return all_reduce(vector)

    channel.all_reduce = recording_all_reduce  # type: ignore[method-assign]
    session = Session(job="j", attempt=1, incarnation=1, workers=channel.size)
    cut = dimension // 3
    parameters = [torch.nn.Parameter(torch.zeros(cut)), torch.nn.Parameter(torch.zeros(1, dimension - cut))]
    stream = SecretStream(None if keys is None else (keys * 100 + channel.rank).to_bytes(32, "big"))
    optimizer = RecordingOptimizer(parameters)
    gradient_per_grid_step = float(mechanism.clip) / (mechanism.grid * mechanism.expected_batch_size)
    config = AggregationConfig(channel, session, JOB_KEY, grid_bits=mechanism.grid_bits, verify="Standard")
    step = PrivateStep(
        aggregator=create_aggregator(config, protocol),
        budget_gate=CountingGate(events, budget),  # type: ignore[arg-type]
        sampler=PoissonSampler(len(shard), mechanism.sample_rate, stream.derive("sampling")),
        gradients=GivenGradients(shard),
        clipper=GridClipper(dimension, mechanism.grid, float(mechanism.clip), CPU),
        noise=DiscreteGaussian(mechanism.share_sigma),
        noise_stream=stream.derive("noise"),
        parameters=parameters,
        optimizer=optimizer,  # type: ignore[arg-type]
        learning_rate=lambda step: 1.0,
        gradient_per_grid_step=gradient_per_grid_step,
        stop=stop,
    )
    verdicts = []
    try:
        for number in range(count):
            if number == stop_before and channel.rank == channel.size - 1:
                stop.request()
            verdicts.append(step.run(number))
    finally:
        step.close()
    return StepResults([np.rint(each / gradient_per_grid_step) for each in optimizer.gradients], verdicts, events)
