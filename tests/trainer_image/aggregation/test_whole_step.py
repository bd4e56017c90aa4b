"""A whole private step without a model: sampled units, clipping, noise, charge, masks, reveal, decoding.

Gradients are given, everything else is real. What is tested here is what the parts promise together: one unit moves the
revealed sum by at most S, noise of every rank is in it and is never used twice, and nothing is revealed that was not
charged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from tensafe_api.privacy_events import Mechanism
from tensorguard.aggregation.keys import Session
from tensorguard.aggregation.protocol import AggregationConfig
from tensorguard.aggregation.registry import create_aggregator
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.sampling import PoissonSampler
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.budget_gate import Allowance, Verdict
from tensorguard.training.step import PrivateStep
from tensorguard.training.stop_signal import StopSignal

Run = Callable[[int, Callable[[Any], Any]], list[Any]]
Shard = Mapping[int, Sequence[float]]
JOB_KEY = bytes(32)
CPU = torch.device("cpu")


@dataclass
class Rows:
    """Stands for the model: each unit's gradient is given. A unit's rounding seed is its own name."""

    shard: Shard

    def add_to(self, clipper: GridClipper, units: Sequence[int], stop: StopSignal) -> None:
        names = [list(self.shard)[unit] for unit in units]
        if names:
            clipper.add(torch.tensor([self.shard[name] for name in names], dtype=torch.float32), names)


@dataclass
class Counter:
    """Stands for the ledger: one charge a step, up to `budget` of them."""

    events: list[tuple[str, int]]
    budget: int = 1000
    allowance: Allowance = field(default_factory=lambda: Allowance(Verdict.CONTINUE, 0, "0" * 64))

    def ensure_charged(self, step: int, stop: bool) -> Allowance:
        if step >= self.budget:
            return Allowance(Verdict.EXHAUSTED, step, "0" * 64)
        self.events.append(("charge", step))
        return Allowance(Verdict.CONTINUE, step + 1, "0" * 64)


class Notebook:
    """Stands for the optimiser: keeps the gradients that it is given."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.param_groups: list[dict[str, Any]] = [{"lr": 0.0}]
        self.gradients: list[np.ndarray] = []

    def step(self) -> None:
        self.gradients.append(torch.cat([p.grad.flatten() for p in self.parameters]).double().numpy())

    def zero_grad(self, set_to_none: bool) -> None:
        for parameter in self.parameters:
            parameter.grad = None


@dataclass
class Told:
    """What one worker saw: the sums in grid steps, the verdicts, and the order of charge and reveal."""

    sums: list[np.ndarray]
    verdicts: list[Verdict]
    events: list[tuple[str, int]]


def mechanism(workers: int, colluders: int = 0, sigma: str = "1", rate: str = "1", batch: int = 8) -> Mechanism:
    return Mechanism(
        sample_rate=rate,
        noise_multiplier=sigma,
        clip="0.5",
        unit="Example",
        workers=workers,
        colluders=colluders,
        grid_bits=14,
        expected_batch_size=batch,
    )


def steps(
    channel: Any,
    how: Mechanism,
    shard: Shard,
    count: int,
    dimension: int,
    *,
    keys: int | None = None,
    budget: int = 1000,
    stop_before: int | None = None,
) -> Told:
    """Take `count` steps as one worker of a group; `keys` makes the streams of two runs equal."""
    events: list[tuple[str, int]] = []
    real_add = channel.all_reduce
    stop = StopSignal()

    def add(vector: np.ndarray) -> np.ndarray:
        events.append(("reveal", len([1 for kind, _ in events if kind == "reveal"])))
        return real_add(vector)

    channel.all_reduce = add
    session = Session(job="j", attempt=1, incarnation=1, workers=channel.size, colluders=how.colluders)
    cut = dimension // 3
    parameters = [torch.nn.Parameter(torch.zeros(cut)), torch.nn.Parameter(torch.zeros(1, dimension - cut))]
    stream = SecretStream(None if keys is None else (keys * 100 + channel.rank).to_bytes(32, "big"))
    notebook = Notebook(parameters)
    unit_of_gradient = float(how.clip) / (how.grid * how.expected_batch_size)
    config = AggregationConfig(channel, session, JOB_KEY, grid_bits=how.grid_bits, verify="Standard")
    step = PrivateStep(
        aggregator=create_aggregator(config),
        budget_gate=Counter(events, budget),  # type: ignore[arg-type]
        sampler=PoissonSampler(len(shard), how.sample_rate, stream.derive("sampling")),
        gradients=Rows(shard),
        clipper=GridClipper(dimension, how.grid, float(how.clip), CPU),
        noise=DiscreteGaussian(how.share_sigma),
        noise_stream=stream.derive("noise"),
        parameters=parameters,
        optimizer=notebook,  # type: ignore[arg-type]
        learning_rate=lambda step: 1.0,
        gradient_per_grid_step=unit_of_gradient,
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
    return Told([np.rint(gradient / unit_of_gradient) for gradient in notebook.gradients], verdicts, events)


@pytest.mark.parametrize(("size", "colluders"), [(1, 0), (2, 0), (3, 1), (4, 2)])
def test_the_noise_of_all_ranks_is_in_every_sum_and_is_new_each_step(size: int, colluders: int, workers: Run) -> None:
    """Without a unit the sums are noise alone, of variance N/(N−t)·σ²·S²."""
    how, dimension = mechanism(size, colluders), 6000
    told: list[Told] = workers(size, lambda channel: steps(channel, how, {}, 4, dimension, keys=1))
    sums = told[0].sums
    assert len(sums) == 4
    assert all(np.array_equal(mine, theirs) for other in told for mine, theirs in zip(sums, other.sums))
    sigma = how.outsider_noise_multiplier * how.grid
    for total in sums:
        assert 1e-6 < stats.chi2(dimension).sf((total**2).sum() / sigma**2) < 1 - 1e-6
        assert abs(total.mean()) < 5 * sigma / math.sqrt(dimension)
    for one, other in itertools.combinations(sums, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / math.sqrt(dimension)


def test_no_noise_comes_again_after_a_restart(workers: Run) -> None:
    how = mechanism(2)
    runs = [workers(2, lambda channel: steps(channel, how, {}, 2, 500))[0].sums for _ in range(2)]
    for one, other in itertools.combinations([*runs[0], *runs[1]], 2):
        assert (one == other).mean() < 0.05


spans = st.sampled_from([0.0, 1e-45, 1e-6, 0.1, 1.0, 1e30, 3e38, math.nan, math.inf, -math.inf])
row = st.lists(st.one_of(spans, st.floats(width=32)), min_size=7, max_size=7)


@settings(max_examples=40)
@given(
    shards=st.lists(st.dictionaries(st.integers(0, 50), row, max_size=4), min_size=2, max_size=2),
    x=row,
    at=st.booleans(),
)
@example(shards=[{0: [1.0] * 7, 1: [1.0] * 7}, {}], x=[-1e30] * 7, at=False)
def test_one_more_unit_moves_the_revealed_sum_by_at_most_the_grid(
    shards: list[dict[int, list[float]]], x: list[float], at: bool, workers: Run
) -> None:
    """Both runs draw the same noise and every unit joins, so the difference of what is revealed is x's own part."""
    how = mechanism(2, sigma="0.01")

    def revealed(shards: Sequence[Shard]) -> np.ndarray:
        return workers(2, lambda channel: steps(channel, how, shards[channel.rank], 1, 7, keys=3))[0].sums[0]

    more = [dict(shard) for shard in shards]
    more[at] = {99: x, **more[at]} if at else {**more[at], 99: x}  # before or after the others
    difference = revealed(more) - revealed(shards)
    assert sum(int(k) ** 2 for k in difference) <= how.grid**2


def test_the_mean_is_over_the_public_batch_whoever_was_drawn(workers: Run) -> None:
    """Three units of half the clip norm, B = 8: the gradient is their sum over 8, not over three."""
    how = mechanism(2, sigma="0.005")
    rows = [[0.25 if place == unit else 0.0 for place in range(6)] for unit in range(3)]
    shards: list[Shard] = [{0: rows[0], 1: rows[1]}, {2: rows[2]}]
    (total,) = workers(2, lambda channel: steps(channel, how, shards[channel.rank], 1, 6))[0].sums
    # In grid steps; the room for rounding takes four of S, and noise of σ·S = 82 steps is in each coordinate.
    assert np.abs(total - how.grid * np.array([0.5, 0.5, 0.5, 0, 0, 0])).max() < 8 * 82


def test_a_step_that_drew_nobody_is_taken_noised_and_charged(workers: Run) -> None:
    how = mechanism(2, rate="0.0000000001")
    shard = {unit: [1.0] * 300 for unit in range(5)}
    told: list[Told] = workers(2, lambda channel: steps(channel, how, shard, 3, 300))
    for one in told:
        assert one.verdicts == [Verdict.CONTINUE] * 3
        assert [event for event in one.events if event[0] == "charge"] == [("charge", step) for step in range(3)]
        assert all(total.any() for total in one.sums)


def test_each_step_is_charged_before_it_is_revealed(workers: Run) -> None:
    told: list[Told] = workers(2, lambda channel: steps(channel, mechanism(2), {0: [1.0] * 9}, 3, 9))
    expected = [(kind, step) for step in range(3) for kind in ("charge", "reveal")]
    assert [one.events for one in told] == [expected] * 2


def test_what_is_not_charged_is_not_revealed(workers: Run) -> None:
    told: list[Told] = workers(2, lambda channel: steps(channel, mechanism(2), {0: [1.0] * 9}, 4, 9, budget=2))
    for one in told:
        assert one.verdicts == [Verdict.CONTINUE] * 2 + [Verdict.EXHAUSTED] * 2
        assert len(one.sums) == 2
        assert one.events.count(("reveal", 2)) == 0


def test_a_stop_on_one_rank_keeps_the_step_from_all(workers: Run) -> None:
    """The last rank wants to stop; the others learn of it from the header, after the charge and before the reveal."""

    def work(channel: Any) -> Told:
        return steps(channel, mechanism(2), {0: [1.0] * 9}, 2, 9, stop_before=1)

    for one in workers(2, work):
        assert one.verdicts == [Verdict.CONTINUE, Verdict.STOP]
        assert len(one.sums) == 1
        assert ("reveal", 1) not in one.events
