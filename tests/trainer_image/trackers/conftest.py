"""A tracker that keeps what it receives, and exports of recorded runs to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tensorguard.trackers.export import Export
from tensorguard.trackers.figures import Point
from tensorguard.trackers.history import RunFolder
from tensorguard.trackers.sent import SentFile
from tensorguard.trackers.tracker import Adapters, Attachment, Outcome, RunInfo


@dataclass
class FakeTracker:
    """Keeps what it receives. fails: errors that the next calls of `send` raise."""

    adapters: Adapters = "false"
    destination: str = "fake"
    fails: list[Exception] = field(default_factory=list)
    opened: list[tuple[RunInfo, str | None]] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    attached: list[Attachment] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def open(self, run: RunInfo, known: str | None) -> str:
        self.opened.append((run, known))
        return known or f"run-{len(self.opened)}"

    def send(self, points: Sequence[Point]) -> None:
        if self.fails:
            raise self.fails.pop(0)
        self.points += points

    def attach(self, attachment: Attachment) -> None:
        self.attached.append(attachment)

    def close(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def figures(self, key: str) -> list[tuple[int, float]]:
        """The steps and values of one key."""
        return [(point.step, point.figures[key]) for point in self.points if key in point.figures]


@pytest.fixture
def tracker() -> FakeTracker:
    return FakeTracker()


@pytest.fixture
def reports() -> list[str]:
    """The lines that exports report to the user."""
    return []


@pytest.fixture
def export(tracker: FakeTracker, reports: list[str]) -> Callable[..., None]:
    """Exports a run's folder to the fake tracker."""

    def run(directory: Path, *, follow: bool = False, wait: Callable[[float], None] = lambda seconds: None) -> None:
        Export(RunFolder(directory), tracker, SentFile(directory, "fake"), reports.append, wait).run(follow=follow)

    return run
