"""What an export sends of a run, and what a second export, a resume or a failing tracker changes about it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensorguard.cli.main import main
from tensorguard.ledger.contract import LedgerCorrupt
from tensorguard.runners.run_folder import lock_run_folder
from tensorguard.trackers.figures import TIME_GRAIN_SECONDS
from tensorguard.trackers.sent import SentFile
from tensorguard.trackers.tracker import Outcome, TrackerError
from tests.support.trainer.recorded_run import START, RecordedRun, crashed_and_finished

Exporter = Callable[..., None]


@pytest.mark.slow
def test_export_sends_epsilon_and_the_public_evaluation(tmp_path: Path, tracker: Any, export: Exporter) -> None:
    run = crashed_and_finished(tmp_path / "run")
    export(run.directory)
    assert [value for _, value in tracker.figures("eval_loss")] == [0.69, 0.6, 0.5, 0.4]
    assert [value for _, value in tracker.figures("eval_accuracy")] == [0.5, 0.6, 0.7, 0.8]
    assert tracker.figures("dp_epsilon_spent")[0][1] == pytest.approx(run.plan.epsilon(1), abs=1e-3)
    assert tracker.figures("learning_rate")[0] == (1, 5e-3)
    assert tracker.figures("epoch")[-1] == (22, 2.0)
    assert tracker.outcomes == [Outcome.FINISHED]
    ((info, _),) = tracker.opened
    assert (info.uid, info.name) == (run.job.metadata.uid, "triage")


@pytest.mark.slow
def test_steps_that_ran_again_count_again_and_epsilon_rises(tmp_path: Path, tracker: Any, export: Exporter) -> None:
    run = crashed_and_finished(tmp_path / "run")
    export(run.directory)
    assert [step for step, _ in tracker.figures("global_step")] == list(range(1, 23))
    done = [value for _, value in tracker.figures("global_step")]
    assert done == [*range(1, 13), *range(11, 21)]
    spent = [value for _, value in tracker.figures("dp_epsilon_spent")]
    assert all(before <= after for before, after in pairwise(spent))
    assert [value for _, value in tracker.figures("dp_steps_charged")] == [*range(1, 13), *range(14, 24)]
    assert [step for step, _ in tracker.figures("eval_loss")] == [5, 10, 17, 22]


def test_last_epsilon_is_that_of_the_ledger(tmp_path: Path, tracker: Any, export: Exporter) -> None:
    """A step that was charged, and not taken because of a crash, counts."""
    run = RecordedRun(tmp_path / "run")
    run.start(1, 1, 0)
    run.take_steps(1, 4)
    run.charge()
    run.kill()
    export(run.directory)
    assert tracker.figures("dp_steps_charged")[-1] == (4, 5)
    assert tracker.figures("dp_epsilon_spent")[-1][1] >= run.plan.epsilon(5)
    assert tracker.outcomes == [Outcome.FAILED]


@pytest.mark.slow
def test_times_of_points_hide_the_duration_of_steps(tmp_path: Path, tracker: Any, export: Exporter) -> None:
    export(crashed_and_finished(tmp_path / "run").directory)
    assert all(point.time % TIME_GRAIN_SECONDS == 0 and point.time > START for point in tracker.points)


def test_nothing_private_is_sent(tmp_path: Path, tracker: Any, export: Exporter) -> None:
    """Also if the job keeps private metrics for its owner."""
    tracker.adapters = "checkpoint"
    run = crashed_and_finished(tmp_path / "run")
    export(run.directory)
    sent = repr((tracker.opened, tracker.points, tracker.attached, tracker.outcomes))
    assert "SECRET" not in sent
    assert sorted({name for each in tracker.attached for name in each.files}) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "statement.json",
        "statement.md",
    ]


@pytest.mark.parametrize(
    ("adapters", "names"),
    [
        ("false", ["statement"]),
        ("end", ["statement", "adapter"]),
        ("checkpoint", ["adapter-step-10", "statement", "adapter"]),
    ],
)
def test_adapters_are_sent_only_on_request(
    adapters: str, names: list[str], tmp_path: Path, tracker: Any, export: Exporter
) -> None:
    tracker.adapters = adapters
    export(crashed_and_finished(tmp_path / "run").directory)
    assert [attachment.name for attachment in tracker.attached] == names


def test_changed_adapter_is_not_sent(tmp_path: Path, tracker: Any, export: Exporter, reports: list[str]) -> None:
    tracker.adapters = "end"
    run = crashed_and_finished(tmp_path / "run")
    (run.directory / "checkpoints" / "final" / "adapter_model.safetensors").write_bytes(b"other")
    export(run.directory)
    assert tracker.attached == []
    assert "adapter_model.safetensors is not what was written" in reports[-1]


def test_adapter_that_was_removed_is_reported_and_the_rest_is_sent(
    tmp_path: Path, tracker: Any, export: Exporter, reports: list[str]
) -> None:
    tracker.adapters = "checkpoint"
    run = crashed_and_finished(tmp_path / "run")
    shutil.rmtree(run.directory / "checkpoints" / "step-000010")
    export(run.directory)
    assert [attachment.name for attachment in tracker.attached] == ["statement", "adapter"]
    (line,) = reports
    assert line.startswith("the adapter of step 10 is not attached") and line.endswith("is not there any more")


def test_second_export_sends_nothing_again(tmp_path: Path, tracker: Any, export: Exporter) -> None:
    run = crashed_and_finished(tmp_path / "run")
    export(run.directory)
    first = len(tracker.points)
    export(run.directory)
    assert tracker.opened[1][1] == "run-1"
    assert len(tracker.attached) == 1
    assert len(tracker.points) == first
    for key in tracker.points[-1].figures:
        steps = [step for step, _ in tracker.figures(key)]
        assert sorted(set(steps)) == steps, f"{key} has two values at one step"


def test_resumed_run_continues_the_trackers_run(tmp_path: Path, tracker: Any, export: Exporter) -> None:
    run = RecordedRun(tmp_path / "run")
    run.start(1, 1, 0)
    run.take_steps(1, 8)
    run.save(8)
    run.end(Reason.INTERRUPTED)
    export(run.directory)
    run.start(2, 1, 8)
    run.take_steps(9, 20)
    run.end(Reason.COMPLETED, attempt=2)
    export(run.directory)
    assert [known for _, known in tracker.opened] == [None, "run-1"]
    assert tracker.outcomes == [Outcome.STOPPED, Outcome.FINISHED]
    assert [value for _, value in tracker.figures("global_step")] == list(range(1, 21))


def test_new_run_in_the_same_folder_gets_a_new_run_of_the_tracker(
    tmp_path: Path, tracker: Any, export: Exporter
) -> None:
    run = crashed_and_finished(tmp_path / "run")
    export(run.directory)
    other = crashed_and_finished(tmp_path / "other")
    file = SentFile(run.directory, "fake").path
    file.parent.rename(other.directory / "trackers")
    export(other.directory)
    assert [known for _, known in tracker.opened] == [None, None]


def test_what_could_not_be_sent_is_sent_by_the_next_export(tmp_path: Path, tracker: Any, export: Exporter) -> None:
    run = crashed_and_finished(tmp_path / "run")
    tracker.fails = [ConnectionError("no route to host")]
    with pytest.raises(ConnectionError):
        export(run.directory)
    export(run.directory)
    assert len(tracker.figures("global_step")) == 22
    assert tracker.opened[1][1] == "run-1"


def test_edited_ledger_is_reported_instead_of_a_small_epsilon(tmp_path: Path, tracker: Any, export: Exporter) -> None:
    run = crashed_and_finished(tmp_path / "run")
    ledger = run.directory / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:6]))
    with pytest.raises(LedgerCorrupt, match="records 23: restore the latest ledger"):
        export(run.directory)
    assert tracker.outcomes == []


@pytest.mark.slow
def test_ledger_of_another_run_is_reported_instead_of_its_epsilon(
    tmp_path: Path, tracker: Any, export: Exporter
) -> None:
    run = crashed_and_finished(tmp_path / "run")
    other = crashed_and_finished(tmp_path / "other", targetEpsilon="20")
    shutil.copy(other.directory / "ledger.jsonl", run.directory / "ledger.jsonl")
    with pytest.raises(LedgerCorrupt, match=r"of another run than job\.yaml beside it: they differ in job_uid"):
        export(run.directory)
    assert not tracker.figures("dp_epsilon_spent")
    assert main(["ledger", str(run.directory)]) == 1


def test_only_one_export_at_a_time_sends_to_a_tracker(tmp_path: Path, export: Exporter) -> None:
    run = crashed_and_finished(tmp_path / "run")
    with SentFile(run.directory, "fake").locked(), pytest.raises(TrackerError, match="another process exports"):
        export(run.directory)


def test_file_of_what_was_sent_has_no_secret(tmp_path: Path, export: Exporter) -> None:
    run = crashed_and_finished(tmp_path / "run")
    export(run.directory)
    path = SentFile(run.directory, "fake").path
    assert path.stat().st_mode & 0o077 == 0
    kept = json.loads(path.read_text())
    assert {key: value for key, value in kept["latest"].items() if key.startswith("dp_steps")} == {
        "dp_steps_charged": 23,
        "dp_steps_claimed": 23,
    }
    assert {key: value for key, value in kept.items() if key != "latest"} == {
        "job": run.job.metadata.uid,
        "destination": "fake",
        "run": "run-1",
        "points": 29,
        "attachments": ["statement"],
    }


@pytest.mark.slow
def test_slow_accountant_computes_few_figures_and_the_last_one(tmp_path: Path, tracker: Any, export: Exporter) -> None:
    run = RecordedRun(tmp_path / "run", steps=100, accountant="PLD", noiseMultiplier="1.5")
    run.start(1, 1, 0)
    run.take_steps(1, 12)
    run.end(Reason.INTERRUPTED)
    export(run.directory)
    assert tracker.figures("dp_steps_charged") == [(5, 5), (10, 10), (12, 12)]
    assert [spent >= run.plan.epsilon(step) for step, spent in tracker.figures("dp_epsilon_spent")] == [True] * 3


class Follow:
    """Plays a run while an export follows it: each wait of the export is the next event."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.lock = ExitStack()
        self.lock.enter_context(lock_run_folder(run.directory))
        self.events: Iterator[Callable[[], None]] = iter(())
        self.waits = 0

    def wait(self, seconds: float) -> None:
        self.waits += 1
        if self.waits % TIME_GRAIN_SECONDS == 1:
            next(self.events, self.lock.close)()


def test_following_export_sends_at_fixed_times_until_the_run_ends(
    tmp_path: Path, tracker: Any, export: Exporter, reports: list[str]
) -> None:
    run = RecordedRun(tmp_path / "run")
    follow = Follow(run)
    tracker.fails = [ConnectionError("http://user:password@tracker does not answer\nTraceback")]
    received: list[int] = []

    def play() -> Iterator[Callable[[], None]]:
        yield lambda: (run.start(1, 1, 0), run.take_steps(1, 5))  # type: ignore[func-returns-value]
        received.append(len(tracker.points))
        yield lambda: run.take_steps(6, 9)
        received.append(len(tracker.points))
        yield lambda: (run.take_steps(10, 20), run.end(Reason.COMPLETED))  # type: ignore[func-returns-value]
        received.append(len(tracker.points))

    follow.events = play()
    export(run.directory, follow=True, wait=follow.wait)
    assert received == [0, 9, 20], "a failed attempt is repeated at the next time"
    assert [value for _, value in tracker.figures("global_step")] == list(range(1, 21))
    assert tracker.outcomes == [Outcome.FINISHED]
    assert reports == ["http://tracker does not answer; trying again"]


def test_following_export_ends_when_the_run_was_killed(tmp_path: Path, tracker: Any, export: Exporter) -> None:
    run = RecordedRun(tmp_path / "run")
    follow = Follow(run)

    def killed() -> None:
        run.start(1, 1, 0)
        run.take_steps(1, 5)
        run.kill()
        follow.lock.close()

    follow.events = iter([killed])
    export(run.directory, follow=True, wait=follow.wait)
    assert len(tracker.figures("global_step")) == 5
    assert tracker.outcomes == [Outcome.FAILED]
