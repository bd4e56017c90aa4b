"""What a canary is: one clip norm in a coordinate of its own, in with probability 1/2, and sampled as a record is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensorguard.canary_audit.canaries import Canaries, CanaryGradients, Scores
from tensorguard.canary_audit.job_audit import AuditResult
from tensorguard.privacy.clipping import GridClipper
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.privacy.stream import SecretStream
from tensorguard.training.stop_signal import StopSignal
from tests.support.trainer.private_steps import example_mechanism
from tests.support.trainer.rank_harness import SingleRankChannel
from tests.support.trainer.thread_group import results_of

CPU = torch.device("cpu")
COORDINATES = np.array([7, 2, 30])


class OneRecord:
    """The gradient of a shard with one unit, and what was asked of it."""

    def __init__(self, complete: bool = True) -> None:
        self.asked: list[list[int]] = []
        self.complete = complete

    def add_to(self, clipper: GridClipper, units: Sequence[int], stop: StopSignal) -> bool:
        self.asked.append(list(units))
        return self.complete


def added(units: Sequence[int], records: Any = None, first: int = 0, stop: StopSignal | None = None) -> Any:
    """The sum of the drawn canaries in clip norms, and whether it is complete."""
    mechanism = example_mechanism(1)
    clipper = GridClipper(40, mechanism.grid, float(mechanism.clip), CPU)
    gradients = CanaryGradients(records, first, COORDINATES, 40, SecretStream())
    complete = gradients.add_to(clipper, units, stop or StopSignal())
    return clipper.take().numpy() / mechanism.grid, complete


def test_canary_is_one_clip_norm_in_its_own_coordinate() -> None:
    total, complete = added([0, 2])
    assert complete
    assert np.flatnonzero(total).tolist() == [7, 30]
    assert (total[[7, 30]] > 0.99).all() and (total <= 1).all()


def test_units_below_the_first_canary_are_the_records() -> None:
    records = OneRecord()
    total, complete = added([0, 4, 5, 6], records, first=5)
    assert complete and records.asked == [[0, 4]]
    assert np.flatnonzero(total).tolist() == [2, 7]


def test_records_are_asked_even_if_none_was_drawn() -> None:
    """Ranks that share a base model run the same passes."""
    records = OneRecord()
    added([], records, first=5)
    assert records.asked == [[]]


def test_sum_is_incomplete_if_the_records_are_or_a_stop_was_requested() -> None:
    assert added([9], OneRecord(complete=False), first=5)[1] is False
    stop = StopSignal()
    stop.request()
    assert added([1], stop=stop)[1] is False


def test_coins_are_fair_new_in_each_audit_and_the_same_on_all_ranks() -> None:
    one, other = results_of(2, lambda channel: Canaries.draw(channel, 10_000, 20_000))
    assert (one.included == other.included).all() and (one.coordinates == other.coordinates).all()
    assert abs(one.included.mean() - 0.5) < 5 * 0.5 / 100
    again = Canaries.draw(SingleRankChannel(), 10_000, 20_000)
    assert abs((again.included == one.included).mean() - 0.5) < 5 * 0.5 / 100


@pytest.mark.parametrize("dimension", [50, 70])
def test_each_canary_has_a_coordinate_of_its_own_and_one_shard(dimension: int) -> None:
    canaries = Canaries.draw(SingleRankChannel(), 50, dimension)
    assert len(set(canaries.coordinates.tolist())) == 50
    assert canaries.coordinates.min() >= 0 and canaries.coordinates.max() < dimension
    shards = [set(canaries.coordinates_on(rank, 3).tolist()) for rank in range(3)]
    assert sum(map(len, shards)) == len(set.union(*shards)) == canaries.included.sum()
    assert set.union(*shards) == set(canaries.coordinates[canaries.included].tolist())


def test_more_canaries_than_coordinates_are_refused() -> None:
    with pytest.raises(ValueError, match="51 canaries need as many trained parameters, and there are 50"):
        Canaries.draw(SingleRankChannel(), 51, 50)


@pytest.mark.slow
def test_scores_without_noise_are_the_number_of_steps_that_a_canary_joined(
    audited: Callable[..., AuditResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiscreteGaussian, "draw", lambda _noise, count, _stream: np.zeros(count, dtype=np.int64))
    scores = audited("spec.training.steps=20", "spec.training.expectedBatchSize=128", canaries=2000).scores
    assert (scores.scores[~scores.included] == 0).all()
    joined = scores.scores[scores.included]
    assert np.abs(joined - np.rint(joined)).max() < 0.05  # the margin for rounding to the grid
    n = 20 * len(joined)
    assert np.rint(joined).sum() / n == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / n) ** 0.5)


def test_scores_are_kept_in_a_file_of_their_owner(tmp_path: Path) -> None:
    scores = Scores(3, np.array([True, False]), np.array([1.5, -0.25]))
    path = tmp_path / "scores.npz"
    scores.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    found = Scores.load(path)
    assert (found.steps, found.included.tolist(), found.scores.tolist()) == (3, [True, False], [1.5, -0.25])
    with pytest.raises(FileExistsError):
        scores.save(path)
