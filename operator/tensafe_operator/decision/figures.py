"""Figures: the privacy figures that a decision needs, and that the accountant computes beside the work queue.

A decision never computes one, because that takes up to ten seconds. It asks for it (`Draft.ask`) and gets None until
the accountant has it. The job is then decided on again.

While a job trains, its ε spent is that of the next of 64 points of its plan: an upper bound, so that a job needs few
figures however often it charges. The points after it are asked for in advance, and one of them is shown where training
is faster than the accountant. ε is exact beyond the plan, and when the job ends; until then it never falls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tensafe_api.job_status import Spent
from tensafe_api.resolve import Claim

POINTS, EIGHTH = 64, 8
"""Points of a plan, and of an eighth of it."""
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Figure(Protocol[T_co]):
    """What the accountant computes. Figures are compared by value, and computing one is pure."""

    def compute(self) -> T_co:
        """The figure. It may take ten seconds."""
        ...


class Ask(Protocol):
    """Returns a figure; None while it is not known."""

    def __call__(self, figure: Figure[T], /) -> T | None: ...


@dataclass(frozen=True)
class AllowedSteps:
    """How many of the planned steps of a claim its target allows, and their ε: what a job claims at least. Beside it ε
    before the first step.
    """

    claim: Claim

    def compute(self) -> tuple[int, float, float]:
        steps = self.claim.claimed_steps(0)
        return steps, self.claim.epsilon(steps), self.claim.epsilon(0)


@dataclass(frozen=True)
class Epsilon:
    """ε of so many steps of a claim."""

    claim: Claim
    steps: int

    def compute(self) -> float:
        return self.claim.epsilon(self.steps)


@dataclass(frozen=True)
class AskedFigures:
    """The `job_status.Figures` of a decision.

    Attributes:
        exact: whether ε spent is that of exactly the charged steps.
    """

    ask: Ask
    exact: bool = False

    def spent(self, claim: Claim, charged: int) -> Spent | None:
        """See `job_status.Figures`."""
        allowed = self.ask(AllowedSteps(claim))
        if allowed is None:
            return None
        steps, claimed, before = allowed
        if not charged:
            return Spent(steps, claimed, before)
        if charged > steps:
            beyond = self.ask(Epsilon(claim, charged))
            return None if beyond is None else Spent(charged, beyond, beyond)
        points = (charged,) if self.exact else _points_from(charged, claim.steps)
        known = [claimed if point >= steps else self.ask(Epsilon(claim, point)) for point in points]
        spent = next((each for each in known if each is not None), None)
        return None if spent is None else Spent(steps, claimed, spent)

    def epsilon(self, claim: Claim, steps: int) -> float | None:
        """See `job_status.Figures`."""
        return self.ask(Epsilon(claim, steps))


def _points_from(charged: int, planned: int) -> tuple[int, ...]:
    """The first of POINTS points of a plan that is not before `charged` steps, the one after it, and the end of the
    eighth of the plan after it. ε of the last one is there in time unless an eighth takes less than an ε.
    """
    spacing = -(-planned // POINTS)
    first = -(-charged // spacing) * spacing
    eighth = EIGHTH * spacing
    return first, first + spacing, (first // eighth + 1) * eighth


class ComputedFigures(Mapping[Figure[Any], Any]):
    """All figures, each computed when it is looked up: for programs that may wait."""

    def __getitem__(self, figure: Figure[T]) -> T:
        return figure.compute()

    def __contains__(self, figure: object) -> bool:
        return True

    def __iter__(self) -> Iterator[Figure[Any]]:
        return iter(())

    def __len__(self) -> int:
        return 0
