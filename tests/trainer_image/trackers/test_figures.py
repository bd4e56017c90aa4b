"""The list of what may be sent to a tracker, and that nothing else can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensafe_api.tasks import METRICS
from tensorguard.trackers.figures import KEYS, Point, grouped, privacy_figures, public_config, public_time
from tests.support.trainer.recorded_run import RecordedRun

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "trackers.md"


def test_keys_are_exactly_these() -> None:
    """A new key is a decision: it belongs here only if it is a function of public things."""
    assert set(KEYS) == {
        *("global_step", "epoch", "learning_rate"),
        *("dp_epsilon_spent", "dp_steps_charged", "dp_epsilon", "dp_steps_claimed"),
        *("eval_loss", "eval_accuracy", "eval_f1"),
    }
    assert {f"eval_{name}" for name in METRICS} < set(KEYS)


@pytest.mark.parametrize("key", ["loss", "grad_norm", "units", "clippedFraction"])
def test_point_with_a_private_key_cannot_be_made(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key}: not a key that may be sent"):
        Point(1, 1, 0.0, {"global_step": 1, key: 0.5})


def test_configuration_has_only_public_fields(tmp_path: Path) -> None:
    run = RecordedRun(tmp_path / "run")
    config = public_config(run.job, run.plan)
    assert "SECRET" not in json.dumps(config)
    assert config["model.name"] == "tiny"
    assert config["privacy.adjacency"] == run.plan.mechanism.adjacency == "AddOrRemoveOne"
    assert config["privacy.noiseMultiplier"] == run.plan.mechanism.noise_multiplier
    assert (config["metadata.name"], config["training.steps"], config["cluster.workers"]) == ("triage", 20, 2)


def test_every_epsilon_has_its_number_of_steps(tmp_path: Path) -> None:
    plan = RecordedRun(tmp_path / "run").plan
    early, late = privacy_figures(plan, 3), privacy_figures(plan, 21)
    assert (early["dp_steps_charged"], early["dp_steps_claimed"]) == (3, 20)
    assert early["dp_epsilon_spent"] >= plan.epsilon(3)
    assert early["dp_epsilon"] >= plan.epsilon(20)
    assert late["dp_epsilon"] == late["dp_epsilon_spent"] >= plan.epsilon(21)


def test_names_are_grouped_as_hugging_face_groups_them() -> None:
    assert [grouped(key) for key in ("eval_loss", "learning_rate", "dp_epsilon_spent")] == [
        "eval/loss",
        "train/learning_rate",
        "dp/epsilon_spent",
    ]


def test_times_do_not_show_the_duration_of_a_step() -> None:
    assert {public_time(seconds) for seconds in (30.1, 34.0, 59.9, 60.0)} == {60.0}


def test_page_explains_every_key() -> None:
    text = PAGE.read_text()
    for key, meaning in KEYS.items():
        assert f"`{key}` | {meaning} |" in text, key
