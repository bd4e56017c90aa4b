"""The code blocks of docs/python-api.md, unchanged: with real Ray, real workers, and a small model."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from datasets import Dataset
from ray.util.placement_group import placement_group, remove_placement_group

from tensafe_api.accounting import composition
from tensafe_api.statement.contents import recompute_epsilon
from tensorguard.distributed import (
    ConfigurationError,
    DistributedDPConfig,
    DistributedRDPAccountant,
    RayTimeoutError,
    SecureAggregationConfig,
    TenSafeTrainer,
    TenSafeTrainingConfig,
)
from tensorguard.ledger.file import FileLedger
from tests.support.trainer.rank_harness import make_model, records

PAGE = Path(__file__).parents[3] / "docs" / "python-api.md"


def code(heading: str) -> str:
    """The first Python block below a heading of the page."""
    found = re.search(rf"^## {heading}$.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of two CPUs that existed before the training, as in a notebook that reads its data with Ray."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield
    ray.shutdown()


def write_lines(path: str, rows: list[dict[str, Any]]) -> None:
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.ray
@pytest.mark.smoke
def test_quick_start_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    mechanism = {
        "noise_multiplier": result.metrics["noise_multiplier"],
        "sample_rate": result.metrics["sample_rate"],
        "steps": charged,
    }
    by_pld = composition.epsilon(**mechanism, delta=composition.job_delta("1e-5"), accountant="PLD")
    assert result.metrics["dp_epsilon"] == pytest.approx(by_pld, abs=1e-3)
    by_rdp = DistributedRDPAccountant(8.0, 1e-5)
    by_rdp.step(**mechanism)
    assert by_rdp.get_epsilon()[0] > by_pld
    claim = json.loads((Path(result.checkpoint) / "statement.json").read_text())
    assert recompute_epsilon(claim) == claim["spent"]["epsilon"]
    assert float(claim["spent"]["epsilon"]) == result.metrics["dp_epsilon_spent"]


@pytest.mark.ray
def test_copy_of_the_training_data_is_refused_as_evaluation_set(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    config = TenSafeTrainingConfig(
        model_name=str(tmp_path / "model"),
        num_labels=2,
        checkpoint_dir=tmp_path / "models",
        unit_at_least=200,
        dp_config=DistributedDPConfig(target_epsilon=8.0),
    )
    private = records(240)
    copied = Dataset.from_list(private[::-1]).select(range(100))
    sentence = r"^eval_dataset: most of its records are also in train_dataset, .* or leave eval_dataset out$"
    with pytest.raises(ConfigurationError, match=sentence):
        TenSafeTrainer(config).fit(private, eval_dataset=copied)
    assert not list(tmp_path.rglob("ledger.jsonl"))


@pytest.mark.ray
def test_missing_resources_raise_ray_timeout_error(cluster: None, tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    config = TenSafeTrainingConfig(
        model_name=str(tmp_path / "model"),
        num_labels=2,
        checkpoint_dir=tmp_path / "models",
        unit_at_least=200,
        ray_timeout=1,
        dp_config=DistributedDPConfig(target_epsilon=8.0),
    )
    occupied = placement_group([{"CPU": 1}])
    ray.get(occupied.ready())
    try:
        with pytest.raises(RayTimeoutError, match="the resources for 2 workers with 1 CPU each within 1 seconds"):
            TenSafeTrainer(config).fit(ray.data.from_items(records(240)))
    finally:
        remove_placement_group(occupied)
    assert FileLedger(tmp_path / "models" / "run").read().steps_charged == 0


def test_callback_example_runs(fake: Any, config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(code("Callbacks"), names)
    fake.losses = (0.5,) * 10
    TenSafeTrainer(config(), [names["Printer"]()]).fit(records(200), records(10))
    printed = capsys.readouterr().out
    assert printed.startswith("10 steps\n") and "step 10: ε " in printed
    assert "epoch 1: public evaluation loss 0.5000\nε " in printed


def test_planning_example_runs() -> None:
    names: dict[str, Any] = {}
    exec(code("Planning by hand"), names)
    assert 0 < names["epsilon"] < 8 and names["left"] > 0


def test_page_names_every_field_of_the_configuration() -> None:
    text = PAGE.read_text()
    for kind in (TenSafeTrainingConfig, DistributedDPConfig, SecureAggregationConfig):
        for field in dataclasses.fields(kind):
            assert field.name in text, field.name
