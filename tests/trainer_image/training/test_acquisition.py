"""How rank 0 acquires the ledger, what it sends to the other ranks, and which runs it refuses before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensorguard.ledger.contract import (
    DatasetChanged,
    LedgerBusy,
    LedgerCorrupt,
    LedgerState,
    ModelChanged,
    PublishedCheckpoint,
)
from tensorguard.ledger.file import FileLedger
from tensorguard.training import acquisition
from tensorguard.training.acquisition import Acquisition, _check_progress, acquire_ledger
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.config import RUN_LOG
from tests.support.trainer.rank_harness import Job

NAMED = Acquisition(3, 2**40, "step-000123-a64i2", "sha256:" + "f" * 64)


@pytest.mark.parametrize(
    "acquired",
    [NAMED, Acquisition(1, 0, "", ""), Acquisition(1, 1, "step-X", "digest X"), Acquisition(2, 9, "s" * 64, "d" * 71)],
)
def test_acquisition_is_unpacked_as_it_was_packed(acquired: Acquisition) -> None:
    message = acquired.pack()
    assert Acquisition.unpack(message) == acquired
    assert len(message) == len(NAMED.pack()), "an all-gather needs messages of one length"


def check(starts: tuple[int, ...], step: int, *, attempt: int = 1, outcome: str | None = None) -> None:
    state: Any = SimpleNamespace(attempt=1, outcome=outcome, start_steps=starts)
    failure = "worker 1 crashed with SIGBUS"
    config: Any = SimpleNamespace(attempt=attempt, private_directory="/nowhere", last_failure=failure)
    _check_progress(state, config, step)


@pytest.mark.parametrize(
    ("starts", "step"),
    [((), 0), ((0,), 0), ((4,), 4), ((0, 4), 8), ((0, 4, 8), 4), ((4, 0), 4)],
    ids=["first start", "first restart", "restart at a checkpoint", "progress", "another step", "an older step"],
)
def test_restart_with_progress_is_allowed(starts: tuple[int, ...], step: int) -> None:
    check(starts, step)


@pytest.mark.parametrize("starts", [(0, 0), (0, 4, 4), (4, 4), (0, 4)])
def test_second_restart_at_the_same_step_is_refused(starts: tuple[int, ...]) -> None:
    with pytest.raises(
        AttemptFailed, match=rf"restarted at step {starts[-1]} and failed again.*: worker 1 crashed with SIGBUS; fix"
    ):
        check(starts, starts[-1])


def test_new_attempt_and_resume_after_a_stop_may_start_at_the_same_step() -> None:
    check((0, 4), 4, attempt=2)
    check((0, 4), 4, outcome="Suspended")


class Store:
    """A store in which the checkpoints of these names exist."""

    def __init__(self, *names: str) -> None:
        self.present = names
        self.cleaned = 0

    def exists(self, name: str) -> bool:
        return name in self.present

    def names(self) -> list[str]:
        return []

    def listing(self, name: str) -> dict[str, str]:
        return {"adapter_model.safetensors": "sha256:a"}

    def remove_unfinished(self) -> None:
        self.cleaned += 1


class Run:
    """A run whose ledger is a file."""

    def __init__(self, directory: Path) -> None:
        made = Job.make(directory, "spec.cluster.workers=1")
        self.directory, self.made = directory, made
        self.store = Store()
        self.in_cluster = False
        self.digest = "keyed digest"
        self.weights, self.template = "commit:1a", "sha256:b"

    def acquire(self, *, attempt: int = 1, uid: str = "tiny-uid") -> Acquisition:
        location = SimpleNamespace() if self.in_cluster else None
        config: Any = SimpleNamespace(
            ledger_location=location,
            directory=self.directory,
            job_uid=uid,
            attempt=attempt,
            dataset_digest=self.digest,
            private_directory=str(self.directory),
            last_failure="",
        )
        components: Any = SimpleNamespace(
            job=self.made.job,
            plan=self.made.plan,
            store=self.store,
            initial=None,
            identity={"name": "tiny", "weights": self.weights, "chatTemplate": self.template},
        )
        ledger = FileLedger(self.directory)
        try:
            return acquire_ledger(ledger, config, components)
        finally:
            ledger.close()

    def publish(self, step: int, *, charged: int) -> None:
        """As an attempt does that charges steps and publishes a checkpoint, and then ends."""
        ledger = FileLedger(self.directory)
        ledger.acquire(attempt=1, from_step=0)
        ledger.charge(charged)
        uri = f"file:///b/step-{step}"
        ledger.record_checkpoint(PublishedCheckpoint(step, 1, uri, f"sha256:{step:064d}", "sha256:b", False))
        ledger.record_outcome("Suspended")
        ledger.close()
        self.store.present += (f"step-{step}",)
        (self.directory / RUN_LOG).touch()

    @property
    def state(self) -> LedgerState:
        return FileLedger(self.directory).read()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def test_new_run_starts_at_step_zero(run: Run) -> None:
    assert run.acquire() == Acquisition(1, 0, "", "")
    state = run.state
    assert (state.attempt, state.start_steps, state.dataset_digest) == (1, (0,), "keyed digest")
    assert run.store.cleaned == 1


def test_resume_starts_at_the_newest_checkpoint_that_exists(run: Run) -> None:
    run.publish(3, charged=5)
    run.publish(6, charged=5)
    assert run.acquire(attempt=2) == Acquisition(1, 6, "step-6", f"sha256:{6:064d}")
    assert (run.state.start_steps, run.state.charged_through) == ((6,), 6)
    run.store.present = ("step-3",)
    assert run.acquire(attempt=3) == Acquisition(1, 3, "step-3", f"sha256:{3:064d}")


def test_restart_is_the_next_incarnation(run: Run) -> None:
    assert [run.acquire().incarnation for _ in range(2)] == [1, 2]
    with pytest.raises(AttemptFailed, match="restarted at step 0 and failed again"):
        run.acquire()
    assert run.state.incarnation == 2, "a run that is refused does not acquire the ledger"
    assert run.acquire(attempt=2).incarnation == 1


def test_ledger_of_another_plan_or_job_is_refused_before_it_is_acquired(run: Run) -> None:
    for uid, plan in (("other-uid", run.made.plan), ("tiny-uid", replace(run.made.plan, reserve_steps=1))):
        run.made.plan = plan
        with pytest.raises(AttemptFailed, match="the ledger was opened with another plan") as refused:
            run.acquire(uid=uid)
        assert refused.value.reason is Reason.CONFIGURATION_CHANGED
    assert run.state.attempt == 0


def test_other_data_end_the_attempt(run: Run) -> None:
    run.acquire()
    run.digest = "another digest"
    with pytest.raises(DatasetChanged):
        run.acquire(attempt=2)
    assert run.state.dataset_digest == "keyed digest"


@pytest.mark.parametrize(
    ("weights", "template", "named"),
    [
        ("commit:2b", "sha256:b", r"base model is commit:2b, but the job started with commit:1a"),
        ("commit:1a", "sha256:c", "chat template"),
    ],
    ids=["branch that was moved", "edited template"],
)
def test_other_base_model_or_template_ends_the_attempt(run: Run, weights: str, template: str, named: str) -> None:
    run.acquire()
    assert (run.state.model_weights, run.state.chat_template_digest) == ("commit:1a", "sha256:b")
    run.weights, run.template = weights, template
    with pytest.raises(ModelChanged, match=named) as refused:
        run.acquire(attempt=2)
    assert refused.value.reason is Reason.CONFIGURATION_CHANGED
    assert (run.state.model_weights, run.state.chat_template_digest) == ("commit:1a", "sha256:b")


def test_run_log_is_compared_on_one_machine_only(run: Run) -> None:
    """In a cluster the log is the pod's own, and an earlier pod has charged."""
    run.publish(3, charged=5)
    (run.directory / RUN_LOG).unlink()
    with pytest.raises(LedgerCorrupt, match=r"events\.jsonl is missing"):
        run.acquire(attempt=2)
    assert run.state.attempt == 1
    run.in_cluster = True
    assert run.acquire(attempt=2).step == 3


def test_checkpoints_are_compared_with_the_ledger_before_it_is_acquired(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, int]] = []

    def check(store: Any, ledger: Any) -> None:
        seen.append((store, ledger.read().attempt))
        raise LedgerCorrupt("shorter")

    monkeypatch.setattr(acquisition, "check_checkpoints", check)
    with pytest.raises(LedgerCorrupt, match="shorter"):
        run.acquire()
    assert seen == [(run.store, 0)] and run.state.attempt == 0


def test_acquisition_waits_for_a_run_that_is_ending(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(ledger: FileLedger) -> None:
        raise LedgerBusy("another run")

    monkeypatch.setattr(FileLedger, "wait_until_free", busy)
    with pytest.raises(LedgerBusy):
        run.acquire()
