"""The command on a real Ray cluster: killed and interrupted in several ways, with nothing left behind.

One job with one worker goes through all of it, because a start takes most of a minute on two cores.
`distributed/test_restarts.py` tests what happens when one of two workers dies, and how SIGTERM ends a run.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensafe_api.manifest.text import load_manifest
from tensafe_api.resolve import resolve_job
from tensafe_api.statement.contents import recompute_epsilon
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.ledger.contract import LedgerState
from tensorguard.runners.local.driver import run
from tensorguard.runners.local.ray_cluster import local_ray
from tensorguard.training.stop_signal import StopSignal
from tests.support.trainer.command import OVERRIDES, RunCommand, assert_nothing_is_left, write_job

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def shared_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Ray cluster that several runs in this process join."""
    with local_ray(tmp_path_factory.mktemp("ray"), cpus=1, gpus=0):
        yield


@pytest.mark.parametrize(
    ("override", "content", "reason", "named"),
    [
        ("spec.dataset.columns.text=note", None, "DatasetUnsuitable", "has no column 'note'"),
        ("spec.dataset.uri=data.jsonl", "", "DatasetUnsuitable", "there is no data at"),
        ("spec.dataset.uri=data.jsonl", '{"text": null, "label": 1}\n', "DatasetUnsuitable", "data.jsonl, line 1)"),
        ("spec.dataset.unusable=Skip", '{"text": null, "label": 1}\n', "DatasetUnsuitable", "no record is usable"),
        (
            "spec.dataset.uri=data.jsonl",
            '{"text": "a", "label": 1}\n{"tex',
            "DatasetUnreadable",
            "data.jsonl, line 2: ",
        ),
        ("spec.dataset.uri=nowhere.jsonl", None, "DatasetUnreadable", "nowhere.jsonl"),
        ("spec.dataset.uri=pvc://claim/data.jsonl", None, "DatasetUnreadable", "pvc://claim"),
    ],
)
def test_unusable_data_fails_in_one_sentence_and_costs_nothing(
    shared_ray: None, tmp_path: Path, override: str, content: str | None, reason: str, named: str
) -> None:
    write_job(tmp_path)
    if content is not None:
        (tmp_path / "data.jsonl").write_text(content)
    job = load_manifest(tmp_path / "job.yaml", (*OVERRIDES, override))
    result = run(
        job,
        output_dir=tmp_path / "out",
        base_dir=tmp_path,
        resume=False,
        listener=lambda record: None,
        stop=StopSignal(),
    )
    assert result.job.status is not None
    attempt = result.job.status.attempts[-1]
    assert (result.exit_code, attempt.reason) == (1, reason), attempt.message
    assert attempt.message is not None
    assert named in attempt.message
    assert "\n" not in attempt.message
    assert result.job.status.privacy.steps_charged == 0
    assert not (tmp_path / "out" / "ledger.jsonl").exists()


def test_command_survives_kills_and_ctrl_c_and_leaves_nothing_behind(tmp_path: Path, temporary: Path) -> None:
    write_job(tmp_path)
    spent: list[int] = []

    def checked(command: RunCommand) -> LedgerState:
        ledger = command.ledger()
        spent.append(ledger.steps_charged)
        assert spent == sorted(spent)
        return ledger

    # The driver is killed. A user resumes, although the orphaned workers may still hold the ledger.
    command = RunCommand(tmp_path, temporary, resume=False)
    command.wait_for_steps(14)
    assert [stat.S_IMODE(path.stat().st_mode) for path in temporary.iterdir()] == [
        0o700
    ]  # Ray makes its own folders inside readable for all users
    before = checked(command)
    command.kill_driver()
    command = RunCommand(tmp_path, temporary, resume=True)
    command.wait_for_steps(14)
    ledger = checked(command)
    assert (ledger.attempt, ledger.incarnation) == (2, 1)
    assert ledger.steps_charged > before.steps_charged

    # Both the driver and a worker are killed.
    command.kill_rank_0()
    command.kill_driver()
    command = RunCommand(tmp_path, temporary, resume=True)
    command.wait_for_steps(14)
    before, ledger = ledger, checked(command)
    assert ledger.attempt == 3
    assert ledger.steps_recharged > before.steps_recharged

    # Ctrl-C, which a terminal also sends to Ray's processes, saves a checkpoint of the last revealed step.
    code, out = command.interrupt()
    assert code == 130, command.stderr_text()
    assert "--resume" in command.stderr_text()
    status, ledger = json.loads(out)["status"], checked(command)
    assert status["phase"] == ledger.outcome == "Suspended"
    assert [each["reason"] for each in status["attempts"]] == ["WorkerLost", "WorkerLost", "Interrupted"]
    assert status["privacy"]["stepsCharged"] == ledger.steps_charged
    saved = ledger.checkpoints[-1]
    assert saved.step == status["progress"]["step"] < 300
    name = saved.uri.rsplit("/", 1)[1]
    statement = json.loads(CheckpointStore(str(tmp_path / "checkpoints")).read(name, saved.digest)["statement.json"])
    assert recompute_epsilon(statement) == status["privacy"]["epsilonSpent"]
    assert float(status["privacy"]["epsilonClaimed"]) > float(status["privacy"]["epsilonSpent"])
    _, plan = resolve_job(load_manifest(tmp_path / "out" / "job.yaml"))
    assert float(status["privacy"]["epsilonSpent"]) >= plan.epsilon(saved.step + ledger.steps_recharged)
    assert_nothing_is_left(tmp_path / "out", temporary)
