"""How a worker starts: what each part of its steps receives, and which errors end the attempt for good."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tensafe_api.reasons import Reason
from tensorguard.aggregation.session import Session
from tensorguard.training import worker as module
from tensorguard.training.acquisition import NOT_RANK_0, Acquisition
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.run_log import Ended, RunLogReader, Started
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.worker import Worker, train
from tests.support.trainer.rank_harness import SingleRankChannel

RESUMED = Acquisition(4, 30, "step-30", "sha256:30")
MECHANISM = SimpleNamespace(grid_bits=21, clip="0.5", grid=2**21, expected_batch_size=8)

WITHOUT_AUDIT_LOG: Any = SimpleNamespace(spec=SimpleNamespace(observability=SimpleNamespace(audit_log=None)))


class Start:
    """The parts that a worker starts with, each replaced by its name, and what was asked of them."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self.acquired = directory, RESUMED
        self.calls: list[Any] = []
        self.heard: list[Any] = []
        self.suspended = False
        self.ledger = SimpleNamespace(set_progress=lambda *_: None, close=lambda: None)
        names = ("unit_gradients", "clipper", "sampler", "noise", "noise_stream", "parameters", "optimizer")
        self.components: Any = SimpleNamespace(
            plan=SimpleNamespace(mechanism=MECHANISM, steps=100),
            job=SimpleNamespace(
                spec=SimpleNamespace(
                    aggregation=SimpleNamespace(verify="Standard"),
                    checkpoint=SimpleNamespace(encryption=None),
                    training=SimpleNamespace(micro_batch_size=16),
                )
            ),
            records_at_once=16,
            why_no_states="",
            form="form",
            learning_rate="rate",
            store="store",
            model="model",
            private_metrics=None,
            initial=None,
            identities="identities",
            **{name: name for name in names},
        )
        self.config: Any = SimpleNamespace(
            attempt=3,
            threads=torch.get_num_threads(),
            directory=directory,
            job_uid="uid",
            signing_key=None,
            recipients_file=None,
            ledger_location="location",
            job_key=lambda: b"job key",
            traceback_file=lambda process: directory / f"errors-{process}.log",
            parse_job=lambda: WITHOUT_AUDIT_LOG,
        )
        made = {"PrivateStep": dict, "BudgetGate": self._gate, "create_aggregator": self._aggregator}
        for name, maker in made.items():
            monkeypatch.setattr(module, name, maker)
        monkeypatch.setattr(module, "use_deterministic_kernels", lambda: self.calls.append("deterministic"))
        monkeypatch.setattr(module, "open_ledger", self._open)
        monkeypatch.setattr(module, "set_up", self._set_up)
        monkeypatch.setattr(module, "acquire_ledger", self._acquire)
        monkeypatch.setattr(module, "restore_checkpoint", lambda *what: self.calls.append(("restore", *what)))
        monkeypatch.setattr(module, "check_all_reduce_wraps", lambda channel: self.calls.append("wraps"))
        monkeypatch.setattr(module, "JobObject", self._job_object)

    def _open(self, directory: Path, location: str) -> Any:
        assert (directory, location) == (self.directory, "location")
        return self.ledger

    def _set_up(self, config: Any, rank: int, device: torch.device, on_all_ranks: Any) -> Any:
        assert config is self.config and device == torch.device("cpu")
        on_all_ranks(lambda: self.calls.append(("set up", rank)) or True)
        return self.components

    def _acquire(self, ledger: Any, config: Any, components: Any, signing_key: Any) -> Acquisition:
        assert (ledger, config, components) == (self.ledger, self.config, self.components)
        self.calls.append("acquire")
        return self.acquired

    def _gate(self, channel: Any, plan: Any, ledger: Any, from_step: int, stops: Any) -> dict[str, Any]:
        return {"channel": channel, "plan": plan, "ledger": ledger, "from_step": from_step, "stops": stops}

    def _aggregator(self, config: Any) -> Any:
        return config

    def _job_object(self, location: str) -> Any:
        assert location == "location"
        return SimpleNamespace(is_suspended=lambda: self.suspended)

    def worker(self, channel: Any = None) -> Worker:
        return Worker(self.config, channel or SingleRankChannel(), torch.device("cpu"), self.heard.append)


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(tmp_path, monkeypatch)


def test_everything_is_checked_before_the_ledger_is_acquired(begin: Start) -> None:
    begin.worker().start()
    restore = ("restore", "store", "step-30", "sha256:30", "model", "optimizer", "identities")
    assert begin.calls == ["deterministic", "wraps", ("set up", 0), "acquire", restore]


def test_step_receives_the_parts_and_the_decoding_of_the_grid(begin: Start) -> None:
    worker = begin.worker()
    worker.start()
    step: Any = worker.private_step
    stop = step.pop("stop")
    assert isinstance(stop, StopSignal)
    aggregation, gate = step.pop("aggregator"), step.pop("budget_gate")
    assert step == {
        "sampler": "sampler",
        "gradients": "unit_gradients",
        "clipper": "clipper",
        "noise": "noise",
        "noise_stream": "noise_stream",
        "parameters": "parameters",
        "optimizer": "optimizer",
        "learning_rate": "rate",
        "gradient_per_grid_step": 0.5 / (2**21 * 8),
        "keep_private_metrics": None,
    }
    session = Session(job="uid", attempt=3, incarnation=4, workers=1)
    assert (aggregation.channel, aggregation.session) == (worker._channel, session)
    assert (aggregation.job_key, aggregation.grid_bits, aggregation.verify) == (b"job key", 21, "Standard")
    assert (gate["channel"], gate["plan"], gate["ledger"]) == (worker._channel, begin.components.plan, begin.ledger)
    assert gate["from_step"] == 30


def test_gate_stops_after_the_charged_steps_on_request_and_on_suspension(begin: Start) -> None:
    worker = begin.worker()
    worker.start()
    step: Any = worker.private_step
    stops = step["budget_gate"]["stops"]
    assert not stops()
    begin.suspended = True
    assert stops() is True
    begin.suspended = False
    assert not stops()
    StopSignal.of(begin.directory).request(after_charged_steps=True)
    assert stops() and not step["stop"]


@pytest.mark.parametrize(
    ("acquired", "step", "from_final"),
    [(RESUMED, 30, False), (Acquisition(1, 0, "", ""), 0, False), (Acquisition(2, 100, "final", "d"), 100, True)],
)
def test_worker_continues_at_its_checkpoint(acquired: Acquisition, step: int, from_final: bool, begin: Start) -> None:
    begin.acquired = acquired
    worker = begin.worker()
    worker.start()
    assert (worker._step, worker._saved_step, worker._resumed_from_final) == (step, step, from_final)
    assert worker._acquired_as == (3, acquired.incarnation)
    assert any(call[0] == "restore" for call in begin.calls if isinstance(call, tuple)) == bool(acquired.checkpoint)
    (started,) = begin.heard
    assert (started.attempt, started.incarnation, started.step) == (3, acquired.incarnation, step)
    assert isinstance(next(iter(RunLogReader(begin.directory / "events.jsonl").read())), Started)


def test_private_figures_are_kept_by_the_worker_s_own_metrics(begin: Start) -> None:
    kept: list[Any] = []
    begin.components.private_metrics = SimpleNamespace(record_step=lambda *what: kept.append(what))
    begin.components.unit_gradients = SimpleNamespace(take_losses=lambda: [0.5])
    worker = begin.worker()
    worker.start()
    step: Any = worker.private_step
    step["keep_private_metrics"](7)
    assert kept == [(7, "clipper", [0.5])]


class Follower(SingleRankChannel):
    """Rank 1 of two. Rank 0 sends `acquisition`, and else the same as this rank."""

    rank, size = 1, 2

    def __init__(self, acquisition: Acquisition) -> None:
        self.first = acquisition.pack()

    def all_gather(self, message: bytes) -> list[bytes]:
        mine = message == NOT_RANK_0.pack()
        return [self.first if mine else message, message]

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        raise NotImplementedError


def test_other_ranks_follow_rank_0_and_never_open_the_ledger(begin: Start) -> None:
    worker = begin.worker(Follower(RESUMED))
    worker.start()
    assert "acquire" not in begin.calls and ("set up", 1) in begin.calls
    assert (worker._step, worker._acquired_as) == (30, (3, 4))
    step: Any = worker.private_step
    assert step["budget_gate"]["ledger"] is None
    assert step["aggregator"].session.workers == 2
    assert begin.heard == [] and not (begin.directory / "events.jsonl").exists()


class Failing:
    """Replaces `Worker`: raises `error` in its steps, and keeps the order of its calls."""

    error: Exception | None = None
    calls: list[Any]

    def __init__(self, *arguments: Any) -> None:
        type(self).calls = [arguments]

    def start(self) -> None:
        self.calls.append("start")

    def run_steps(self) -> None:
        self.calls.append("steps")
        if self.error is not None:
            raise self.error

    def record_traceback(self) -> None:
        self.calls.append("traceback")

    @property
    def audit(self) -> Any:
        return SimpleNamespace(log_failure=lambda *failure: self.calls.append(("audit", *failure)))

    def log_end(self, reason: Reason, message: str) -> None:
        self.calls.append((reason, message))

    def close(self) -> None:
        self.calls.append("close")


def trained(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> list[Any]:
    monkeypatch.setattr(Failing, "error", error)
    monkeypatch.setattr(module, "Worker", Failing)
    parts: Any = ("config", "channel", "device", "listener")
    try:
        train(*parts)
    except RuntimeError as raised:
        Failing.calls.append(raised)
    first, *rest = Failing.calls
    assert first == parts
    return rest


def test_attempt_that_would_fail_again_is_logged_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    error = AttemptFailed(Reason.NO_PROGRESS, "no progress")
    end = (Reason.NO_PROGRESS, "no progress")
    assert trained(monkeypatch, error) == ["start", "steps", end, "close"]
    error.__cause__ = KeyError("patient 7")
    assert trained(monkeypatch, error) == ["start", "steps", "traceback", end, "close"]


def test_error_that_a_restart_may_fix_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("peer lost")
    *calls, audited, closed, raised = trained(monkeypatch, error)
    assert (calls, closed, raised) == (["start", "steps", "traceback"], "close", error)
    assert audited[:2] == ("audit", Reason.INTERNAL_ERROR)


def test_worker_is_closed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trained(monkeypatch, None) == ["start", "steps", "close"]


def test_end_is_logged_with_its_attempt(begin: Start) -> None:
    begin.worker().log_end(Reason.COMPLETED, "done")
    (ended,) = begin.heard
    assert (ended.attempt, ended.reason, ended.message) == (3, "Completed", "done")
    assert list(RunLogReader(begin.directory / "events.jsonl").read()) == [Ended(ended.time, 3, "Completed", "done")]
