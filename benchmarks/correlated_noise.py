"""Accuracy with independent and with correlated noise (banded matrix factorisation), at the same ε, on SST-2 or E2E.

Correlated noise adds z_t − Σ_{j=1}^{b−1} a_j·w_{t−j} to step t, where w are the earlier noises: later noise takes back
a part of earlier noise. Units are in b random groups, and step t draws from group t mod b at b times the rate. So a
unit joins at most every b-th step, and T steps cost as much as ⌈T/b⌉ Poisson-sampled steps at the rate b·q, with z of
σ·‖a‖ clip norms (the event of ``amplified_bandmf_event`` in ``jax_privacy``).

Bands, learning rates and seeds come in. For each setting, the noise of the last iterate relative to one band goes out,
with the accuracy on the dev split (E2E has none) and on the test split of each seed. `--minimise` chooses the
coefficients a: for the last iterate of SGD with a linear decay (last), the mean of all iterates (mean), or the last one
with Adam's momentum (momentum). One run of 81 steps takes three to four minutes on
one core.

With `--floor` the gradients are scaled before they are clipped and noised, and back afterwards ("scale then privatise",
arXiv 2507.01129): each coordinate is divided by the root of its second moment, so that small ones get less noise.

    .venv/bin/python -m benchmarks.correlated_noise --bands 1 4 --rates 2e-2 6e-2 --seeds 1 2 3 4 5
    .venv/bin/python -m benchmarks.correlated_noise --bands 1 --rates 2e-2 --seeds 1 2 --floor 1
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

import torch
from opacus.optimizers.optimizer import _mark_as_processed
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import corpora, minilm
from benchmarks.classification import TARGET_EPSILON, WORKLOADS, Workload, add_data_option
from benchmarks.command import option_parser
from benchmarks.frozen_layers import frozen_outputs, numbered, use_cached_outputs
from benchmarks.peers.opacus_trainer import Settings, make_private, take_steps
from tensafe_api.accounting.calibration import calibrate

Goal = Literal["last", "mean", "momentum"]
MOMENTUM = 0.9
SECOND_MOMENT_DECAY = 0.95
ADAPTER = minilm.Adapter()
FROZEN = min(ADAPTER.layers)


def workload(steps: int, goal: Goal) -> Tensor:
    """How much the noise of each step moves the iterates that count, fp64 [iterates, steps]."""
    rates = torch.tensor([1 - t / steps for t in range(steps)], dtype=torch.float64)
    moved = torch.tril(rates.expand(steps, steps))
    if goal == "mean":
        return moved / math.sqrt(steps)
    if goal == "momentum":
        ages = (torch.arange(steps)[:, None] - torch.arange(steps)[None, :]).clamp(min=0)
        average = torch.tril((1 - MOMENTUM) * MOMENTUM ** ages.double())
        moved = moved @ (average / average.sum(dim=1, keepdim=True))
    return moved[-1:]


def coefficients(steps: int, bands: int, goal: Goal) -> tuple[list[float], float]:
    """The coefficients a (the first is 1) with the least noise in the workload, and that noise for σ = 1."""
    goals = workload(steps, goal)
    ages = torch.arange(steps)[:, None] - torch.arange(steps)[None, :]
    later = torch.zeros(bands - 1, dtype=torch.float64, requires_grad=True)  # the coefficients after the first

    def variance() -> Tensor:
        a = torch.cat([torch.ones(1, dtype=torch.float64), later])
        matrix = torch.where((ages >= 0) & (ages < bands), a[ages.clamp(0, bands - 1)], 0.0)
        noise = torch.linalg.solve_triangular(matrix, goals, upper=False, left=False)
        total: Tensor = (noise**2).sum() * (a**2).sum()
        return total

    if bands > 1:
        optimizer = torch.optim.LBFGS([later], max_iter=2000, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = variance()
            loss.backward()
            return loss

        optimizer.step(closure)
    return [1.0, *later.detach().tolist()], math.sqrt(variance().item())


def sigma(data: Workload, epsilon: float, bands: int, steps: int) -> float:
    """The noise multiplier of ⌈steps/bands⌉ Poisson-sampled steps at `bands` times the rate."""
    rate = bands * data.sample_rate
    return float(
        calibrate(
            target_epsilon=epsilon,
            sample_rate=rate,
            steps=math.ceil(steps / bands),
            delta=data.delta,
            accountant="PLD",
        )
    )


class Scales:
    """The factor of each coordinate, from the second moments of the noised gradients so far.

    Args:
        noise: standard deviation of a sum's noise.
        floor: what is added to the root of a second moment, in standard deviations of a mean gradient's noise.
    """

    def __init__(self, parameters: Sequence[Tensor], noise: float, floor: float, batch: int) -> None:
        self._noise, self._floor, self._batch, self._steps = noise / batch, floor * noise / batch, batch, 0
        self._moments = [torch.zeros_like(each) for each in parameters]
        self.factors = [torch.ones_like(each) for each in parameters]

    def learn(self, sums: Sequence[Tensor]) -> None:
        """Take the noised sums of one step, scaled back, into account."""
        self._steps += 1
        for moment, factor, noised in zip(self._moments, self.factors, sums):
            square = (noised.view_as(moment) / self._batch) ** 2 - (self._noise / factor) ** 2
            moment.mul_(SECOND_MOMENT_DECAY).add_(square, alpha=1 - SECOND_MOMENT_DECAY)
        known = 1 - SECOND_MOMENT_DECAY**self._steps
        roots = [(each / known).clamp(min=0).sqrt() + self._floor for each in self._moments]
        size = math.sqrt(sum(float((each**2).sum()) for each in roots) / sum(each.numel() for each in roots))
        self.factors = [size / each for each in roots]  # the norm of the roots, and so of a gradient, stays the same


def trained_accuracies(
    data: Workload,
    hidden: Tensor,
    splits: Sequence[TensorDataset],
    a: Sequence[float],
    noise: float,
    settings: Settings,
    seed: int,
    floor: float | None = None,
) -> list[float]:
    """The accuracy on each of `splits` but the first, which is trained on.

    Args:
        hidden: the outputs of the frozen layers for the rows of all splits.
        noise: σ·‖a‖, in clip norms.
        floor: as for `Scales`; None: the gradients are not scaled.
    """
    starts = list(itertools.accumulate(map(len, splits), initial=0))
    model = minilm.load_model(ADAPTER, data.num_labels, seed)
    use_cached_outputs(model, hidden, FROZEN)
    torch.manual_seed(1000 + seed)
    rows = numbered(splits[0], 0)
    hooks, optimizer, _ = make_private(model, settings, DataLoader(rows, batch_size=settings.micro_batch))
    earlier: list[list[Tensor]] = [[] for _ in optimizer.params]
    scales = Scales(optimizer.params, noise * settings.max_grad_norm, floor or 0.0, settings.expected_batch)
    clip = optimizer.clip_and_accumulate

    def clip_scaled() -> None:
        for parameter, factor in zip(optimizer.params, scales.factors):
            parameter.grad_sample = parameter.grad_sample * factor
        clip()

    def add_noise() -> None:
        for past, parameter in zip(earlier, optimizer.params):
            correlated = torch.randn_like(parameter.summed_grad) * noise
            for coefficient, old in zip(a[1:], reversed(past)):
                correlated = correlated - coefficient * old
            past.append(correlated)
            del past[: -len(a)]
            parameter.grad = (parameter.summed_grad + correlated).view_as(parameter)
            _mark_as_processed(parameter.summed_grad)
        if floor is not None:
            for factor, parameter in zip(scales.factors, optimizer.params):
                parameter.grad = parameter.grad / factor
            scales.learn([parameter.grad for parameter in optimizer.params])

    optimizer.add_noise = add_noise
    if floor is not None:
        optimizer.clip_and_accumulate = clip_scaled
    take_steps(model, optimizer, _draws(rows, len(a), settings), settings)
    hooks.cleanup()
    return [minilm.accuracy(model, numbered(split, start)) for split, start in zip(splits[1:], starts[1:])]


def splits_of(data: Workload) -> dict[str, Callable[[], corpora.Examples]]:
    """What reads each split, the one to train on first."""
    dev = {"dev": lambda: corpora.sst2("dev")} if data.name == "sst2" else {}
    return {"train": data.private, **dev, "test": data.test}


def _draws(rows: TensorDataset, bands: int, settings: Settings) -> Iterator[list[Tensor]]:
    """Poisson draws without end, each from the next of `bands` random groups, at `bands` times the rate."""
    group = torch.randint(0, bands, (len(rows),))
    for step in itertools.count():
        drawn = (group == step % bands) & (torch.rand(len(rows)) < bands * settings.sample_rate)
        yield [column[drawn] for column in rows.tensors]


def main() -> int:
    """Run the command line, which prints one line for each number of bands and learning rate."""
    parser = option_parser("correlated_noise", "Accuracy with correlated noise.")
    add_data_option(parser)
    parser.add_argument("--epsilon", type=float, default=TARGET_EPSILON, help="the ε to keep (default %(default)g)")
    parser.add_argument(
        "--bands",
        type=int,
        nargs="+",
        default=[1, 4],
        help="bands of the factorisation; 1: independent noise (default 1 4)",
    )
    parser.add_argument(
        "--minimise",
        choices=get_args(Goal),
        default="mean",
        help="error that the factorisation minimises (default %(default)s)",
    )
    parser.add_argument("--rates", type=float, nargs="*", default=[2e-2], help="none: the noise only")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="seeds of the runs (default 1 2)")
    parser.add_argument("--steps", type=int, help="steps of a run (default: the data set's)")
    parser.add_argument(
        "--floor", type=float, help="scale the gradients first; added to each root, in noises of a step"
    )
    options = parser.parse_args()
    data = WORKLOADS[options.data]
    steps = options.steps or data.steps
    torch.set_num_threads(1)
    try:
        examples = {name: read() for name, read in splits_of(data).items()}
    except corpora.CorpusMissing as missing:
        print(f"skipped: {missing}")
        return 0
    tokenizer = minilm.load_tokenizer()
    splits = [corpora.tokens(each, tokenizer, data.max_length) for each in examples.values()]
    hidden = frozen_outputs(splits, FROZEN) if options.rates else torch.empty(0)
    alone = sigma(data, options.epsilon, 1, steps) * coefficients(steps, 1, options.minimise)[1]
    for bands in options.bands:
        multiplier = sigma(data, options.epsilon, bands, steps)
        a, spread = coefficients(steps, bands, options.minimise)
        ratio = multiplier * spread / alone
        print(f"bands {bands}: sigma {multiplier}, noise {ratio:.3f}, a {[round(each, 3) for each in a]}", flush=True)
        for rate in options.rates:
            settings = Settings(
                noise_multiplier=0.0,  # the noise is added here
                sample_rate=data.sample_rate,
                steps=steps,
                expected_batch=data.expected_batch,
                learning_rate=rate,
                max_grad_norm=data.max_grad_norm,
            )
            noise = multiplier * math.hypot(*a)
            runs = [
                trained_accuracies(data, hidden, splits, a, noise, settings, seed, options.floor)
                for seed in options.seeds
            ]
            means = [statistics.mean(column) for column in zip(*runs)]
            named = ", ".join(f"{name} {mean:.4f}" for name, mean in zip(list(examples)[1:], means))
            print(f"  rate {rate:g}: {named}, runs {runs}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
