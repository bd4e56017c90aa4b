"""Where a run stands, folded from its events: what both displays show.

In: `tensorguard.training.run_log`, one at a time, and the plan. Out: plain attributes that a display may read from
another thread at any moment. The clock is the events' own, so the same events always give the same figures.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tensafe_api.accounting import format_epsilon
from tensafe_api.resolve import Plan
from tensorguard.training.run_log import Evaluated, LogRecord, Preparing, Saved, Started, Stepped

SPEED_WINDOW_SECONDS = 30.0
"""Steps per second are a mean over the steps of this time."""

PLD_FIGURES = 20
"""A PLD ε costs about half a second, so at most so many of them are computed over a planned run."""


@dataclass(frozen=True)
class Speed:
    """`steps_per_second` > 0 of late, and how many `seconds_left` that makes."""

    steps_per_second: float
    seconds_left: float


class Track:
    """The state of a run as far as its events tell it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stage: str | None = None
        """What is being prepared; None while steps are made."""
        self.started: Started | None = None
        self.step = 0
        self.charged = 0
        self.epsilon = 0.0
        """ε of `charged` steps, or of a few more with PLD: never less than what was spent."""
        self.evaluation: Evaluated | None = None
        self.saved: Saved | None = None
        self.speed: Speed | None = None
        self._recent: deque[Stepped] = deque()

    def fold(self, event: LogRecord) -> None:
        """Take in the next event."""
        match event:
            case Preparing():
                self.stage = event.what
            case Started():
                self.stage, self.started, self.step, self.speed = None, event, event.step, None
                self._recent.clear()
            case Stepped():
                self._step(event)
            case Evaluated():
                self.evaluation = event
            case Saved():
                self.saved = event

    @property
    def exact(self) -> bool:
        """Whether `epsilon` is of exactly the charged steps."""
        return self._counted(self.charged) == self.charged

    def notes(self) -> list[str]:
        """What is worth a few words beside steps and ε, such as `1.9 steps/s`."""
        notes = []
        if self.speed is not None:
            notes.append(f"{self.speed.steps_per_second:.3g} steps/s")
            if self.step < self.plan.steps:
                notes.append(f"{duration(self.speed.seconds_left)} left")
        if self.evaluation is not None:
            notes.append(f"{measured(self.evaluation)} at step {self.evaluation.step:,}")
        if self.saved is not None:
            notes.append(f"checkpoint at step {self.saved.step:,}")
        return notes

    def spent(self) -> str:
        """ε as it is shown, such as `4.929 of 8`."""
        return f"{'' if self.exact else '≤ '}{format_epsilon(self.epsilon)} of {self.plan.target_epsilon:g}"

    def _step(self, event: Stepped) -> None:
        self.stage, self.step = None, event.step
        if event.charged != self.charged:
            self.charged = event.charged
            self.epsilon = self.plan.epsilon(self._counted(event.charged))
        self._recent.append(event)
        while len(self._recent) > 2 and event.time - self._recent[1].time >= SPEED_WINDOW_SECONDS:
            self._recent.popleft()
        first = self._recent[0]
        if event.time > first.time and event.step > first.step:
            rate = (event.step - first.step) / (event.time - first.time)
            self.speed = Speed(rate, max(0, self.plan.steps - event.step) / rate)

    def _counted(self, charged: int) -> int:
        """For how many steps ε is computed when so many were charged: with PLD the next mark at or above them."""
        if self.plan.accountant == "RDP":
            return charged
        mark = max(1, self.plan.steps // PLD_FIGURES)
        above = -(-charged // mark) * mark
        return min(above, self.plan.steps) if charged <= self.plan.steps else charged


def restart_of(before: Started | None, now: Started) -> bool:
    """Whether `now` begins again what was running, rather than beginning the run."""
    return before is not None and (now.attempt, now.incarnation) != (before.attempt, before.incarnation)


def measured(evaluation: Evaluated) -> str:
    """An evaluation in a few words: its main metric where it has one, else its loss."""
    if evaluation.main_metric is None:
        return f"evaluation loss {evaluation.loss:.4g}"
    title, value = evaluation.main_metric
    return f"{title} {value:.3f}"


def duration(seconds: float) -> str:
    """Seconds as 4:05 or 2:04:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
