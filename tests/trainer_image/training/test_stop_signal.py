"""A request to stop reaches every process of a run through the run's folder, and no later run."""

from __future__ import annotations

from pathlib import Path

from tensorguard.training.stop_signal import StopSignal


def test_request_of_one_process_is_seen_by_another(tmp_path: Path) -> None:
    mine, theirs = StopSignal.of(tmp_path), StopSignal.of(tmp_path)
    assert not mine and not theirs.requested
    mine.request()
    assert mine and theirs and theirs.requested


def test_stop_after_the_charged_steps_leaves_the_present_step_alone(tmp_path: Path) -> None:
    mine, theirs = StopSignal.of(tmp_path), StopSignal.of(tmp_path)
    mine.request(after_charged_steps=True)
    assert mine.requested and theirs.requested
    assert not mine and not theirs
    mine.request()
    assert theirs


def test_request_that_came_before_the_run_had_a_folder_is_kept(tmp_path: Path) -> None:
    stop = StopSignal()
    assert not stop.requested
    stop.request(after_charged_steps=True)
    assert stop.requested and not stop
    stop.bind(tmp_path)
    assert StopSignal.of(tmp_path).requested and not StopSignal.of(tmp_path)


def test_requests_of_an_earlier_run_are_cleared(tmp_path: Path) -> None:
    earlier = StopSignal.of(tmp_path)
    earlier.request()
    earlier.request(after_charged_steps=True)
    now = StopSignal()
    now.bind(tmp_path)
    assert not now.requested and not list(tmp_path.iterdir())
    now.request()
    assert StopSignal.of(tmp_path)


def test_request_stays_after_its_file_is_removed(tmp_path: Path) -> None:
    stop = StopSignal.of(tmp_path)
    StopSignal.of(tmp_path).request()
    assert stop
    for file in tmp_path.iterdir():
        file.unlink()
    assert stop
