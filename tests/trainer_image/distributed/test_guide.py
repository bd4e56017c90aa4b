"""The guide's own code, run as it stands: with real Ray, real workers, and a small model in place of the hub's."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from command import kill_rank_0
from harness import make_model, records
from ray.util.placement_group import placement_group, remove_placement_group

from tensafe_api import statement
from tensorguard.distributed import (
    DistributedDPConfig,
    DistributedRDPAccountant,
    RayTimeoutError,
    SecureAggregationConfig,
    TenSafeCallback,
    TenSafeTrainer,
    TenSafeTrainingConfig,
)
from tensorguard.ledger.file import FileLedger

GUIDE = Path(__file__).parents[3] / "docs" / "python-api.md"


def code(heading: str) -> str:
    """The first block of Python below a heading of the guide."""
    found = re.search(rf"^## {heading}$.*?```python\n(.*?)```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of two CPUs that was there before the training, as in a notebook that reads its data with Ray."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


def write_lines(path: str, rows: list[dict[str, Any]]) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.ray
def test_quick_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    make_model(tmp_path / "model")
    write_lines("notes.jsonl", records(4200))
    write_lines("public.jsonl", records(200, seed=1))
    text = code("Quick start")
    assert '"google-bert/bert-base-uncased"' in text
    names: dict[str, Any] = {"__name__": "guide"}
    exec(text.replace('"google-bert/bert-base-uncased"', repr(str(tmp_path / "model"))), names)

    result = names["result"]
    assert result.phase == "Succeeded"
    assert result.metrics["steps"] == 47
    assert 0 < result.metrics["dp_epsilon_spent"] <= result.metrics["dp_epsilon"] <= 8.0
    assert result.metrics["dp_delta"] == 1e-5
    assert result.metrics["best_eval_loss"] < 0.7
    assert result.metrics["best_eval_accuracy"] > 0.5
    assert len(re.findall(r"^epoch \d: step \d+ of 47, ε \d\.\d+$", capsys.readouterr().out, re.MULTILINE)) == 3
    assert result.checkpoint == str(tmp_path / "models" / "notes" / "final")

    charged = FileLedger(result.output_dir).read().steps_charged
    assert charged == 47
    recount = DistributedRDPAccountant(8.0, 1e-5)
    recount.step(
        noise_multiplier=result.metrics["noise_multiplier"], sample_rate=result.metrics["sample_rate"], steps=charged
    )
    assert result.metrics["dp_epsilon"] == pytest.approx(recount.get_epsilon()[0], abs=1e-3)
    claim = json.loads((Path(result.checkpoint) / "statement.json").read_text())
    assert statement.recompute(claim) == claim["spent"]["epsilon"]
    assert float(claim["spent"]["epsilon"]) == result.metrics["dp_epsilon_spent"]


@pytest.mark.ray
def test_a_killed_worker_and_a_sigterm_cost_some_steps_and_the_run_goes_on(cluster: None, tmp_path: Path) -> None:
    """Ray starts the workers again by itself; SIGTERM seals a checkpoint before it ends what it ends, and a second call
    resumes.
    """

    class Terminated(BaseException):
        pass

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    run_folder = tmp_path / "models" / "run"

    class Fails(TenSafeCallback):
        killed_at = 0
        terminated = False

        def on_step(self, trainer: TenSafeTrainer, step: int) -> None:
            ledger = FileLedger(run_folder).read()
            if ledger.incarnation == 2 and not self.terminated:
                self.terminated = True
                os.kill(os.getpid(), signal.SIGTERM)
            if step >= 14 and not self.killed_at:
                self.killed_at = ledger.steps_charged
                kill_rank_0(ledger)

    make_model(tmp_path / "model")
    config = TenSafeTrainingConfig(
        model_name=str(tmp_path / "model"),
        num_labels=2,
        num_epochs=30,
        per_device_batch_size=5,
        gradient_accumulation_steps=2,
        max_seq_length=16,
        checkpoint_dir=tmp_path / "models",
        checkpoint_frequency=10,
        unit_at_least=200,
        dp_config=DistributedDPConfig(target_epsilon=20.0),
    )
    fails = Fails()
    handler = signal.signal(signal.SIGTERM, terminate)
    try:
        with pytest.raises(Terminated) as ended:
            TenSafeTrainer(config, [fails]).fit(records(240))
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert "sealed what it had" in ended.value.__notes__[0]
    ledger = FileLedger(run_folder).read()
    release = ledger.releases[-1]
    assert (ledger.attempt, ledger.incarnation, release.final) == (1, 2, False)
    assert ledger.claimed_from[0] == 0 < ledger.claimed_from[1]
    assert ledger.steps_recharged > 0
    assert fails.killed_at < ledger.steps_charged >= release.step + ledger.steps_recharged

    class Begins(TenSafeCallback):
        first: int | None = None
        spent: float

        def on_step(self, trainer: TenSafeTrainer, step: int) -> None:
            if self.first is None:
                self.first, self.spent = step, trainer.epsilon_spent

    begins = Begins()
    result = TenSafeTrainer(config, [begins]).fit(records(240), resume_from_checkpoint=release.uri)
    assert begins.first == release.step + 1
    assert begins.spent > 0
    assert result.phase == "Succeeded" and result.metrics["steps"] == 300
    assert FileLedger(run_folder).read().steps_charged >= 300 + ledger.steps_recharged


@pytest.mark.ray
def test_no_room_for_the_workers(cluster: None, tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    config = TenSafeTrainingConfig(
        model_name=str(tmp_path / "model"),
        num_labels=2,
        checkpoint_dir=tmp_path / "models",
        unit_at_least=200,
        ray_timeout=1,
        dp_config=DistributedDPConfig(target_epsilon=8.0),
    )
    taken = placement_group([{"CPU": 1}])
    ray.get(taken.ready())
    try:
        with pytest.raises(RayTimeoutError, match="no room for 2 workers with 1 CPU each within 1 seconds"):
            TenSafeTrainer(config).fit(ray.data.from_items(records(240)))
    finally:
        remove_placement_group(taken)
    assert FileLedger(tmp_path / "models" / "run").read().steps_charged == 0


def test_planning_by_hand() -> None:
    names: dict[str, Any] = {}
    exec(code("Planning by hand"), names)
    assert 0 < names["epsilon"] < 8 and names["left"] > 0


def test_guide_names_every_field() -> None:
    text = GUIDE.read_text()
    for kind in (TenSafeTrainingConfig, DistributedDPConfig, SecureAggregationConfig):
        for field in dataclasses.fields(kind):
            assert field.name in text, field.name
