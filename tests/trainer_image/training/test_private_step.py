"""The order of a step, what each part receives, and what a step does that may not be revealed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensorguard.training.budget_gate import Allowance, Verdict
from tensorguard.training.step import PrivateStep
from tensorguard.training.stop_signal import StopSignal

SHAPES = ((2, 3), (1,), (3,))
DIMENSION = 10


class Parts:
    """The parts of a step. `order` has what was called, with the number of the step."""

    def __init__(self, directory: Path) -> None:
        self.order: list[str] = []
        self.verdict = Verdict.CONTINUE
        self.complete = True
        self.total: np.ndarray | None = np.arange(DIMENSION, dtype=np.int64)
        self.summed: list[dict[str, Any]] = []
        self.stop = StopSignal.of(directory)
        self.parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        self.optimizer = torch.optim.SGD(self.parameters, lr=1.0)
        self.drawn = 0
        self.may_draw = threading.Event()
        self.may_draw.set()
        self.drawing = threading.Event()

    def make(self, *, keeps: bool = False) -> PrivateStep:
        parts: Any = {"sampler": self, "gradients": self, "clipper": self, "noise": self, "noise_stream": "stream"}
        return PrivateStep(
            aggregator=self,  # type: ignore[arg-type]
            budget_gate=self,  # type: ignore[arg-type]
            parameters=self.parameters,
            optimizer=self.optimizer,
            learning_rate=lambda step: 0.1 * (step + 1),
            gradient_per_grid_step=0.5,
            stop=self.stop,
            keep_private_metrics=self.keep if keeps else None,
            **parts,
        )

    # of the sampler and of the noise
    def draw(self, *noise: Any) -> Any:
        if noise:
            assert noise == (DIMENSION, "stream")
            self.drawing.set()
            self.may_draw.wait()
            self.drawn += 1
            return f"noise {self.drawn}"
        self.order.append("sample")
        return np.array([3, 5])

    def add_to(self, clipper: Any, units: list[int], stop: StopSignal) -> bool:
        assert (clipper, units, stop) == (self, [3, 5], self.stop)
        self.order.append("gradients")
        return self.complete

    def take(self) -> torch.Tensor:
        self.order.append("clip")
        return torch.full((DIMENSION,), 7, dtype=torch.int32)

    def ensure_charged(self, step: int, stop: bool) -> Allowance:
        self.order.append(f"charge {step} {stop}")
        return Allowance(self.verdict, step + 4, f"head {step}")

    def keep(self, step: int) -> None:
        self.order.append(f"keep {step}")

    def prepare(self, step: int, dimension: int) -> None:
        assert dimension == DIMENSION

    def sum(self, step: int, local_sum: np.ndarray, noise: str, **others: Any) -> np.ndarray | None:
        self.order.append(f"sum {step}")
        self.summed.append({"local": local_sum, "noise": noise, **others})
        return self.total

    @property
    def values(self) -> list[float]:
        return [float(value) for parameter in self.parameters for value in parameter.detach().flatten()]


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


@pytest.fixture
def step_of(parts: Parts) -> Iterator[Callable[..., PrivateStep]]:
    made: list[PrivateStep] = []

    def make(**how: bool) -> PrivateStep:
        made.append(parts.make(**how))
        return made[-1]

    yield make
    for step in made:
        step.close()


def test_parts_of_a_step_run_in_their_order(parts: Parts, step_of: Callable[..., PrivateStep]) -> None:
    step = step_of(keeps=True)
    assert step.run(6) is Verdict.CONTINUE
    assert parts.order == ["sample", "gradients", "clip", "charge 6 False", "keep 7", "sum 6"]
    (summed,) = parts.summed
    assert summed["local"].tolist() == [7] * DIMENSION
    del summed["local"]
    assert summed == {"noise": "noise 1", "charged_through": 10, "ledger_head": "head 6", "stop": False}


def test_private_figures_are_kept_only_where_the_job_asks(parts: Parts, step_of: Callable[..., PrivateStep]) -> None:
    step_of().run(0)
    assert not any(part.startswith("keep") for part in parts.order)


def test_every_step_has_noise_of_its_own(parts: Parts, step_of: Callable[..., PrivateStep]) -> None:
    step = step_of()
    for number in range(4):
        step.run(number)
    assert [each["noise"] for each in parts.summed] == [f"noise {number}" for number in range(1, 5)]


def test_noise_that_was_drawn_ahead_for_another_step_is_not_used(
    parts: Parts, step_of: Callable[..., PrivateStep]
) -> None:
    step = step_of()
    step.run(0)
    step.run(5)  # noise and masks for step 1 were made
    assert [each["noise"] for each in parts.summed] == ["noise 1", "noise 3"]


@pytest.mark.parametrize("verdict", [Verdict.STOP, Verdict.EXHAUSTED])
def test_step_that_is_not_charged_reveals_nothing(
    verdict: Verdict, parts: Parts, step_of: Callable[..., PrivateStep]
) -> None:
    parts.verdict = verdict
    assert step_of(keeps=True).run(2) is verdict
    assert parts.order == ["sample", "gradients", "clip", "charge 2 False"]
    assert parts.values == [0.0] * DIMENSION


def test_request_to_stop_reaches_the_gate_and_the_other_ranks(
    parts: Parts, step_of: Callable[..., PrivateStep]
) -> None:
    parts.stop.request()
    step_of().run(2)
    assert "charge 2 True" in parts.order
    assert parts.summed[0]["stop"] is True


def test_sum_that_lacks_a_gradient_is_not_revealed(parts: Parts, step_of: Callable[..., PrivateStep]) -> None:
    """Another rank's request to stop can end the gradients here before this rank sees the request itself."""
    parts.complete = False
    step_of().run(2)
    assert parts.summed[0]["stop"] is True


def test_sum_that_no_rank_reveals_changes_nothing(parts: Parts, step_of: Callable[..., PrivateStep]) -> None:
    parts.total = None
    assert step_of().run(2) is Verdict.STOP
    assert parts.values == [0.0] * DIMENSION


def test_model_moves_against_the_decoded_mean_gradient(parts: Parts, step_of: Callable[..., PrivateStep]) -> None:
    """The gradient is the sum times C/(S·B), in the order of the parameters, with the rate of the step."""
    step_of().run(2)
    assert parts.values == pytest.approx([-0.3 * 0.5 * number for number in range(DIMENSION)])
    assert all(parameter.grad is None for parameter in parts.parameters)
    assert all(group["lr"] == pytest.approx(0.3) for group in parts.optimizer.param_groups)


def test_large_sums_are_decoded_exactly(parts: Parts, step_of: Callable[..., PrivateStep]) -> None:
    """2^24 + 1 is no float32."""
    parts.total = np.full(DIMENSION, 2**24 + 1, dtype=np.int64)
    parts.total[0] = 0
    step = step_of()
    step.gradient_per_grid_step = 2.0**-24
    step.run(9)
    exact = np.float32(np.float64(2**24 + 1) * 2.0**-24)
    assert parts.values[1:] == pytest.approx([-float(exact)] * (DIMENSION - 1), rel=1e-7)


def test_noise_is_drawn_by_one_thread(step_of: Callable[..., PrivateStep]) -> None:
    """Two threads would share the secret stream."""
    assert step_of()._pool._max_workers == 1


def test_closing_waits_for_the_noise_that_is_being_drawn_and_starts_no_other(
    parts: Parts, step_of: Callable[..., PrivateStep]
) -> None:
    step = step_of()
    step._prepare(0)
    step.run(0)
    assert step._ahead is not None
    step._ahead[1].result()
    parts.may_draw.clear()
    parts.drawing.clear()
    step._prepare(5)
    parts.drawing.wait()
    step._prepare(6)
    before = parts.drawn
    threading.Timer(0.1, parts.may_draw.set).start()
    step.close()
    assert parts.drawn == before + 1
    with pytest.raises(RuntimeError, match="after shutdown"):
        step.run(5)
