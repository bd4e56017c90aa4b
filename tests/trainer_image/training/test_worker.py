"""What a worker does between its steps: when it saves, evaluates and ends, and what it records of this."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Progress
from tensorguard.training import worker as worker_module
from tensorguard.training.budget_gate import Verdict
from tensorguard.training.run_log import Ended, Evaluated, LogRecord, Preparing, Saved, Stepped
from tensorguard.training.worker import Worker
from tests.support.trainer.rank_harness import SingleRankChannel

WITHOUT_AUDIT_LOG: Any = SimpleNamespace(spec=SimpleNamespace(observability=SimpleNamespace(audit_log=None)))


class Ledger:
    """Records what a worker writes."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.progress: list[tuple[int | None, Any]] = []
        self.closed = False

    def record_outcome(self, outcome: str) -> None:
        self.outcomes.append(outcome)

    def set_progress(self, progress: Progress, evaluation: Any = None) -> None:
        self.progress.append((progress.step, evaluation))

    def read(self) -> Any:
        return SimpleNamespace(steps_charged=40)

    def close(self) -> None:
        self.closed = True


class Log:
    """Keeps the records of the run log."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.closed = False

    def write(self, record: LogRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        self.closed = True


class Steps:
    """A private step that always succeeds, until a verdict is due."""

    def __init__(self) -> None:
        self.verdicts: dict[int, Verdict] = {}
        self.ran: list[int] = []
        self.aggregator = SimpleNamespace(statement=lambda: "aggregation")
        self.budget_gate = SimpleNamespace(steps_charged=30)
        self.closed = False

    def run(self, step: int) -> Verdict:
        self.ran.append(step)
        return self.verdicts.get(step, Verdict.CONTINUE)

    def close(self) -> None:
        self.closed = True


TASK = SimpleNamespace(loading_lines=lambda base, adapter: ("print(1)",))


class Setting:
    """A worker in a job of nine steps: a checkpoint every three, an evaluation every four."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledger, self.log, self.steps = Ledger(), Log(), Steps()
        self.heard: list[LogRecord] = []
        self.saved: list[tuple[int, bool]] = []
        self.evaluated: list[dict[str, Any]] = []
        self.private: list[tuple[int, float, dict[str, float]]] = []
        self.loss = 0.5
        self.room_for_checkpoints = True
        channel: Any = SingleRankChannel()
        config: Any = SimpleNamespace(
            attempt=3,
            threads=torch.get_num_threads(),
            directory=tmp_path,
            ledger_location=None,
            place="OneMachine",
            job_uid="job-uid",
            traceback_file=lambda process: tmp_path / f"errors-{process}.log",
            parse_job=lambda: WITHOUT_AUDIT_LOG,
        )
        monkeypatch.setattr(worker_module, "open_ledger", lambda directory, location: self.ledger)
        monkeypatch.setattr(worker_module, "RunLog", lambda path: self.log)
        monkeypatch.setattr(worker_module, "use_deterministic_kernels", lambda: None)
        monkeypatch.setattr(worker_module, "Checkpointer", self._checkpointer)
        monkeypatch.setattr(worker_module, "evaluate_on_all_ranks", self._evaluate)
        monkeypatch.setattr(worker_module, "task_of", lambda spec: TASK if spec is self.spec else None)
        self.worker = Worker(config, channel, torch.device("cpu"), self.heard.append)
        self.worker._acquired_as = (3, 1)
        steps: Any = self.steps
        self.worker.private_step = steps
        self.set()

    def set(self, *, visibility: str | None = "Public", private_metrics: bool = False, fail: bool = False) -> None:
        evaluation = SimpleNamespace(visibility=visibility) if visibility else None
        metrics = SimpleNamespace(record_evaluation=lambda *figures: self.private.append(figures))
        self.spec = SimpleNamespace(
            evaluation=evaluation,
            training=SimpleNamespace(micro_batch_size=16),
            checkpoint=SimpleNamespace(keep=3),
            privacy=SimpleNamespace(on_budget_exhausted="Fail" if fail else "Stop"),
        )
        self.components: Any = SimpleNamespace(
            plan=SimpleNamespace(steps=9, evaluate_every=4, checkpoint_every=3, target_epsilon=8.0),
            job=SimpleNamespace(spec=self.spec),
            evaluation="shard" if evaluation else None,
            private_metrics=metrics if private_metrics else None,
            records_at_once=16,
            model="model",
            form="form",
            output_head="head",
            sharding=None,
            store="store",
            source="source",
            optimizer="optimizer",
        )
        self.worker.components = self.components

    def _checkpointer(self, **parts: Any) -> Any:
        named = {name: parts[name] for name in ("store", "source", "model", "optimizer")}
        assert named == {name: name for name in named}
        assert (parts["ledger"], parts["keep"], parts["acquired_as"]) == (self.ledger, 3, (3, 1))
        assert parts["statement_inputs"].args == (self.components, "OneMachine", "aggregation", None)

        def save(step: int, *, final: bool) -> Any:
            if not (final or self.room_for_checkpoints):
                return None
            self.saved.append((step, final))
            return SimpleNamespace(step=step, uri=f"s3://b/{step}", digest=f"sha256:{step}")

        return SimpleNamespace(save=save)

    def _evaluate(self, channel: Any, shard: Any, model: Any, **others: Any) -> tuple[float, dict[str, float]]:
        self.evaluated.append({"channel": channel, "shard": shard, "model": model, **others})
        return self.loss, {"accuracy": 0.75}

    def recorded(self, kind: type[LogRecord]) -> list[Any]:
        return [record for record in self.log.records if isinstance(record, kind)]

    @property
    def end(self) -> tuple[str, str]:
        (ended,) = self.recorded(Ended)
        assert ended.attempt == 3
        return ended.reason, ended.message


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    return Setting(tmp_path, monkeypatch)


def test_all_planned_steps_run_and_the_last_checkpoint_is_final(at: Setting) -> None:
    at.worker.run_steps()
    assert at.steps.ran == list(range(9))
    assert at.saved == [(3, False), (6, False), (9, True)]
    assert [record.step for record in at.recorded(Evaluated)] == [4, 8, 9]
    assert [(record.step, record.charged) for record in at.recorded(Stepped)] == [(step, 30) for step in range(1, 10)]
    assert [(each.step, each.uri, each.digest, each.final, each.charged) for each in at.recorded(Saved)] == [
        (3, "s3://b/3", "sha256:3", False, 40),
        (6, "s3://b/6", "sha256:6", False, 40),
        (9, "s3://b/9", "sha256:9", True, 40),
    ]
    assert at.ledger.outcomes == ["Completed"]
    assert at.end == ("Completed", "all 9 steps are done")
    assert at.heard == at.log.records
    assert all(isinstance(record.time, float) for record in at.log.records)


def test_resumed_run_starts_at_its_step(at: Setting) -> None:
    at.worker._step = at.worker._saved_step = 6
    at.worker.run_steps()
    assert at.steps.ran == [6, 7, 8]
    assert at.saved == [(9, True)]


def test_stop_saves_the_steps_that_were_revealed(at: Setting) -> None:
    at.steps.verdicts[5] = Verdict.STOP
    at.worker.run_steps()
    assert at.saved == [(3, False), (5, False)]
    assert at.ledger.outcomes == ["Suspended"]
    assert at.end == ("Interrupted", "stopped on request after step 5 of 9")


def test_stop_right_after_a_checkpoint_saves_no_other_one(at: Setting) -> None:
    at.steps.verdicts[6] = Verdict.STOP
    at.worker.run_steps()
    assert at.saved == [(3, False), (6, False)]


def test_exhausted_budget_ends_with_a_final_checkpoint(at: Setting) -> None:
    at.steps.verdicts[5] = Verdict.EXHAUSTED
    at.worker.run_steps()
    assert at.saved == [(3, False), (5, True)]
    assert at.ledger.outcomes == ["BudgetExhausted"]
    assert at.end == ("BudgetExhausted", "step 6 of 9 would exceed spec.privacy.targetEpsilon (8)")


def test_exhausted_budget_fails_where_the_manifest_asks_for_it(at: Setting) -> None:
    at.set(fail=True)
    at.steps.verdicts[5] = Verdict.EXHAUSTED
    at.worker.run_steps()
    assert at.saved == [(3, False)] and at.ledger.outcomes == []
    assert at.end == ("PrivacyBudgetExceeded", "step 6 of 9 would exceed spec.privacy.targetEpsilon (8)")


@pytest.mark.parametrize(
    ("from_final", "step", "saved_step", "saves"),
    [(True, 9, 9, False), (False, 9, 9, True), (True, 9, 7, True), (False, 9, 7, True)],
)
def test_final_checkpoint_of_a_killed_incarnation_is_kept(
    from_final: bool, step: int, saved_step: int, saves: bool, at: Setting
) -> None:
    at.worker._resumed_from_final, at.worker._step, at.worker._saved_step = from_final, step, saved_step
    at.worker.run_steps()
    assert at.saved == ([(9, True)] if saves else [])
    assert len(at.evaluated) == (1 if saves else 0)
    assert at.ledger.outcomes == ["Completed"]


def test_checkpoint_without_room_in_the_ledger_is_left_out(at: Setting) -> None:
    at.room_for_checkpoints = False
    at.worker.run_steps()
    assert at.saved == [(9, True)] and len(at.recorded(Saved)) == 1


@pytest.mark.parametrize("private_metrics", [False, True])
def test_public_evaluation_is_logged_and_shown_in_the_ledger(private_metrics: bool, at: Setting) -> None:
    at.set(private_metrics=private_metrics)
    at.worker._step = 4
    at.worker._evaluate()
    (call,) = at.evaluated
    assert call["channel"] is at.worker._channel and call["device"] == torch.device("cpu")
    assert tuple(call[name] for name in ("shard", "model", "task", "batch_size", "form", "head", "aggregator")) == (
        "shard",
        "model",
        TASK,
        16,
        "form",
        "head",
        None,
    )
    (record,) = at.recorded(Evaluated)
    assert (record.step, record.loss, record.metrics) == (4, 0.5, {"accuracy": 0.75})
    ((_, result),) = at.ledger.progress
    assert (result.step, float(result.loss)) == (4, 0.5)
    assert at.private == []


def test_private_evaluation_is_masked_and_kept_for_its_owner_only(at: Setting) -> None:
    at.set(visibility="Private", private_metrics=True)
    at.worker._step = 4
    at.worker._evaluate()
    assert at.evaluated[0]["aggregator"] is at.steps.aggregator
    assert at.private == [(4, 0.5, {"accuracy": 0.75})]
    assert at.log.records == [] and at.ledger.progress == []


@pytest.mark.parametrize("visibility", ["Private", None])
def test_nothing_is_evaluated_without_a_set_or_a_reader(visibility: str | None, at: Setting) -> None:
    at.set(visibility=visibility)
    at.worker._evaluate()
    at.set()
    at.components.evaluation = None
    at.worker._evaluate()
    assert at.evaluated == []


def test_loss_that_is_not_finite_is_logged_but_not_put_into_the_ledger(at: Setting) -> None:
    at.loss = float("nan")
    at.worker._evaluate()
    assert len(at.recorded(Evaluated)) == 1 and at.ledger.progress == []


def test_progress_is_that_of_the_last_step(at: Setting) -> None:
    at.worker.run_steps()
    steps = [step for step, evaluation in at.ledger.progress if evaluation is None]
    assert steps == list(range(1, 10))
    assert [step for step, evaluation in at.ledger.progress if evaluation is not None] == [4, 8, 9]


def test_traceback_is_that_of_the_rank_and_the_attempt(at: Setting, tmp_path: Path) -> None:
    try:
        raise KeyError("patient 7")
    except KeyError:
        at.worker.record_traceback()
    text = (tmp_path / "errors-rank0.log").read_text()
    assert "attempt 3\n" in text and "patient 7" in text


class Gathered(SingleRankChannel):
    """A channel of three ranks; `others` have the numbers that the two others send."""

    size = 3

    def __init__(self, *others: int) -> None:
        self.others = others

    def all_gather(self, message: bytes) -> list[bytes]:
        return [message, *(number.to_bytes(len(message), "big") for number in self.others)]


@pytest.mark.parametrize(
    ("mine", "others", "fewest"), [(16, (16, 16), None), (16, (16, 4), 4), (2, (16, 4), 2), (16, (300, 16), None)]
)
def test_fewest_records_at_once_of_any_rank_are_logged(
    mine: int, others: tuple[int, int], fewest: int | None, at: Setting
) -> None:
    channel: Any = Gathered(*others)
    at.worker._channel = channel
    at.components.records_at_once = mine
    at.worker._log_records_at_once()
    reason = "on this machine, a record's gradient would change with its place among more"
    shown = [record.what for record in at.recorded(Preparing)]
    assert shown == ([f"Computing {fewest} instead of 16 records at once: {reason}"] if fewest else [])
    assert all(isinstance(record.time, float) for record in at.log.records)


def test_closing_ends_the_thread_the_ledger_and_the_log(at: Setting) -> None:
    at.worker.close()
    assert at.steps.closed and at.ledger.closed and at.log.closed


def test_other_ranks_write_nothing(at: Setting) -> None:
    worker: Any = at.worker
    worker._ledger = worker._log = None
    worker.run_steps()
    assert at.steps.ran == list(range(9))
    assert at.saved == [] and at.log.records == [] and at.heard == []
    assert at.ledger.outcomes == [] and at.ledger.progress == []
    worker.log_end(Reason.COMPLETED, "done")
    worker.close()
    assert not at.ledger.closed


def test_evaluation_follows_the_plan_of_its_own(at: Setting) -> None:
    at.components.plan = replace_plan(at.components.plan, evaluate_every=9, checkpoint_every=9)
    at.worker.run_steps()
    assert at.saved == [(9, True)] and len(at.evaluated) == 1


def replace_plan(plan: Any, **changes: Any) -> Any:
    return SimpleNamespace(**{**vars(plan), **changes})


@pytest.mark.parametrize("others", [(b"", b""), (b"", b"the disk is full")], ids=["none", "another-rank"])
def test_why_any_rank_computes_the_frozen_layers_in_every_step_is_logged(
    others: tuple[bytes, ...], at: Setting
) -> None:
    channel: Any = SimpleNamespace(all_gather=lambda own: [own, *(each.ljust(len(own)) for each in others)])
    at.worker._channel = channel
    at.components.why_no_states = ""
    at.worker._log_why_no_states()
    shown = [record.what for record in at.recorded(Preparing)]
    assert shown == [f"Computing the frozen layers in every step: {each.decode()}" for each in others if each]
