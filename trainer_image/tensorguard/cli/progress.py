"""The progress of a run, computed from its log records: what both displays show.

In: the plan, and log records (`tensorguard.training.run_log`) one at a time. Out: plain attributes that a display may
read from another thread at any time. Times are those of the log records, so the same records always give the same
figures.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tensafe_api.accounting.composition import format_epsilon
from tensafe_api.resolve import Plan
from tensorguard.cli.wording import duration_text, steps_text
from tensorguard.training.run_log import Evaluated, LogRecord, Preparing, Saved, Started, Stepped

SPEED_WINDOW_SECONDS = 30.0
"""Steps per second are a mean over the steps of this time."""

PLD_FIGURES = 20
"""A PLD ε takes about half a second, so at most this number of them is computed over a planned run."""


@dataclass(frozen=True)
class Speed:
    """The recent `steps_per_second` > 0, and the `seconds_left` that follow from it."""

    steps_per_second: float
    seconds_left: float


class RunProgress:
    """The state of a run according to its log records."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stage: str | None = None
        """What is being prepared; None while steps run."""
        self.started: Started | None = None
        self.step = 0
        self.charged = 0
        self.epsilon = 0.0
        """ε of `charged` steps, or of a few more with PLD: never less than the ε spent."""
        self.evaluation: Evaluated | None = None
        self.saved: Saved | None = None
        self.speed: Speed | None = None
        self._recent: deque[Stepped] = deque()

    def update(self, record: LogRecord) -> None:
        """Fold in the next log record."""
        match record:
            case Preparing():
                self.stage = record.what
            case Started():
                self.stage, self.started, self.step, self.speed = None, record, record.step, None
                self._recent.clear()
            case Stepped():
                self._step(record)
            case Evaluated():
                self.evaluation = record
            case Saved():
                self.saved = record

    @property
    def exact(self) -> bool:
        """Whether `epsilon` is of exactly the charged steps."""
        return self._counted(self.charged) == self.charged

    def notes(self) -> list[str]:
        """Short remarks beside steps and ε, such as `1.9 steps/s`."""
        notes = []
        if self.speed is not None:
            notes.append(f"{self.speed.steps_per_second:.3g} steps/s")
            if self.step < self.plan.steps:
                notes.append(f"{duration_text(self.speed.seconds_left)} left")
        if self.evaluation is not None:
            notes.append(f"{evaluation_text(self.evaluation)} at step {self.evaluation.step:,}")
        if self.saved is not None:
            notes.append(f"checkpoint at step {self.saved.step:,}")
        return notes

    def epsilon_text(self) -> str:
        """ε as displayed, such as `4.929 of 8, 50 steps charged`."""
        bound = "" if self.exact else "≤ "
        epsilon = f"{bound}{format_epsilon(self.epsilon)} of {self.plan.target_epsilon:g}"
        return f"{epsilon}, {steps_text(self.charged)} charged"

    def _step(self, record: Stepped) -> None:
        self.stage, self.step = None, record.step
        if record.charged != self.charged:
            self.charged = record.charged
            self.epsilon = self.plan.epsilon(self._counted(record.charged))
        self._recent.append(record)
        while len(self._recent) > 2 and record.time - self._recent[1].time >= SPEED_WINDOW_SECONDS:
            self._recent.popleft()
        first = self._recent[0]
        if record.time > first.time and record.step > first.step:
            rate = (record.step - first.step) / (record.time - first.time)
            self.speed = Speed(rate, max(0, self.plan.steps - record.step) / rate)

    def _counted(self, charged: int) -> int:
        """The number of steps whose ε is displayed for `charged` steps: with PLD the next mark at or above them."""
        if self.plan.accountant == "RDP":
            return charged
        mark = max(1, self.plan.steps // PLD_FIGURES)
        above = -(-charged // mark) * mark
        return min(above, self.plan.steps) if charged <= self.plan.steps else charged


def is_restart(before: Started | None, now: Started) -> bool:
    """Whether `now` restarts a run that `before` started."""
    return before is not None and (now.attempt, now.incarnation) != (before.attempt, before.incarnation)


def evaluation_text(evaluation: Evaluated) -> str:
    """An evaluation as displayed: its main metric if it has one, else its loss."""
    if evaluation.main_metric is None:
        return f"evaluation loss {evaluation.loss:.4g}"
    title, value = evaluation.main_metric
    return f"{title} {value:.3f}"
