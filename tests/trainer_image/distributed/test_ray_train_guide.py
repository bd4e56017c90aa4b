"""The calls of the Ray Train guide of TenSafe 4.0, in our words: the same names and arguments, with a small model.

Most of them run up to the resolved plan. Two of them train, with real Ray.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import Spec
from tensorguard.distributed import (
    ConfigurationError,
    DistributedDPConfig,
    DistributedRDPAccountant,
    SecureAggregationConfig,
    TenSafeCallback,
    TenSafeTrainer,
    TenSafeTrainingConfig,
)
from tensorguard.distributed._manifests import build_job
from tensorguard.distributed._progress_log import LOGGER
from tensorguard.ledger.file import FileLedger
from tensorguard.training.config import PRIVATE_METRICS
from tests.support.trainer.rank_harness import make_model, records

PAGE = Path(__file__).parents[3] / "docs" / "python-api.md"
ROWS = [{"text": f"note {number}", "label": number % 2} for number in range(200)]
BUDGET = DistributedDPConfig(target_epsilon=8.0, target_delta=1e-5, max_grad_norm=1.0, noise_multiplier=1.1)

GUIDE: dict[type, dict[str, Any]] = {
    TenSafeTrainingConfig: {
        "tokenizer_name": None,
        "lora_rank": 8,
        "lora_alpha": 16.0,
        "lora_dropout": 0.1,
        "target_modules": None,
        "num_epochs": None,  # 3
        "per_device_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "learning_rate": 1e-4,
        "weight_decay": 0.01,
        "warmup_ratio": 0.1,
        "max_seq_length": 512,
        "num_workers": 4,
        "use_gpu": True,
        "resources_per_worker": None,
        "checkpoint_frequency": 100,
        "checkpoint_dir": "/tmp/checkpoints",
        "dp_config": None,
        "secure_aggregation": None,
    },
    DistributedDPConfig: {
        "target_epsilon": 8.0,
        "target_delta": 1e-5,
        "max_grad_norm": 1.0,
        "noise_multiplier": 1.1,
        "accountant_type": "rdp",
        "stop_on_budget_exceeded": True,
    },
    SecureAggregationConfig: {
        "enabled": False,
        "protocol": "pairwise_masking",
        "key_exchange": "diffie_hellman",
        "verify_aggregation": True,
    },
}
"""The guide's fields and their defaults."""


def plan_of(**fields: Any) -> Spec:
    """The completed spec of a configuration, for 4,000 records of text with two classes."""
    given = {"model_name": "acme/tiny", "num_labels": 2, "unit_at_least": 4000, "dp_config": BUDGET} | fields
    completed, _ = resolve_job(build_job(TenSafeTrainingConfig(**given), ROWS, evaluates=False))
    return completed.spec


def test_every_field_of_the_guide_takes_the_guides_default() -> None:
    spec = plan_of(
        **GUIDE[TenSafeTrainingConfig]
        | {
            "dp_config": DistributedDPConfig(**GUIDE[DistributedDPConfig]),
            "secure_aggregation": SecureAggregationConfig(**GUIDE[SecureAggregationConfig] | {"enabled": True}),
        }
    )
    assert (spec.lora.rank, spec.lora.alpha, spec.lora.dropout, spec.lora.target_modules) == (8, 16, "0.1", ())
    assert (spec.training.expected_batch_size, spec.training.micro_batch_size) == (32, 8)
    assert (spec.training.learning_rate, spec.training.warmup_ratio) == ("0.0001", "0.1")
    assert (spec.cluster.workers, spec.cluster.worker.gpus) == (4, 1)
    assert (spec.checkpoint.every_steps, spec.checkpoint.uri) == (100, "/tmp/checkpoints")
    assert (spec.privacy.target_epsilon, spec.privacy.target_delta, spec.privacy.noise_multiplier) == (
        "8.0",
        "1e-05",
        "1.1",
    )


def test_documented_differences_are_those_of_the_defaults() -> None:
    """Every default that is not the guide's has a row with both values and a reason, and no other has."""
    table = PAGE.read_text().partition("These defaults differ:")[2].partition("What else differs:")[0]
    rows = {row[0]: row[1:] for row in re.findall(r"^\| `(\w+)` \| `(.+?)` \| (.+?) \| (.+?) \|$", table, re.MULTILINE)}
    differing = {}
    for kind, guide in GUIDE.items():
        defaults = {field.name: field.default for field in dataclasses.fields(kind)}
        differing |= {name: value for name, value in guide.items() if defaults[name] != value or name == "dp_config"}
        for name in differing.keys() & defaults.keys():
            _, here, reason = rows[name]
            assert reason and (defaults[name] is None or str(defaults[name]) in here)
    assert rows.keys() == differing.keys()
    for name, value in differing.items():
        written = rows[name][0].replace("1e-4", "0.0001").replace("1e-5", "1e-05").strip('"')
        assert written == str(value), name


@pytest.mark.parametrize("accountant_type", ["rdp", "prv", "moments"])
def test_dp_config_of_the_guide_is_accepted(accountant_type: str) -> None:
    dp = dataclasses.replace(BUDGET, accountant_type=accountant_type)
    spec = plan_of(dp_config=dp, num_epochs=0.1)
    assert spec.privacy.accountant == {"prv": "PLD"}.get(accountant_type, "RDP")


@pytest.mark.parametrize(
    "aggregation",
    [
        SecureAggregationConfig(enabled=True, protocol="pairwise_masking", key_exchange="diffie_hellman"),
        SecureAggregationConfig(enabled=True, verify_aggregation=True),
        None,
    ],
)
def test_secure_aggregation_of_the_guide_is_accepted(aggregation: SecureAggregationConfig | None) -> None:
    assert plan_of(secure_aggregation=aggregation, enable_audit_logging=True).aggregation.verify == "Standard"


def test_training_without_a_privacy_configuration_is_refused_with_both_ways_on() -> None:
    with pytest.raises(ConfigurationError) as refused:
        TenSafeTrainingConfig(model_name="acme/tiny", lora_rank=16, dp_config=None)
    assert str(refused.value) == (
        "dp_config: missing, and every training is differentially private: write "
        "dp_config=DistributedDPConfig(target_epsilon=8.0), or train without privacy by peft and transformers"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "batch"),
    [
        ({"per_device_batch_size": 8, "num_workers": 8, "learning_rate": 1e-4 * 8}, 512),
        ({"per_device_batch_size": 8, "num_workers": 8, "gradient_accumulation_steps": 1}, 64),
        ({"per_device_batch_size": 2, "gradient_accumulation_steps": 4, "num_workers": 2}, 16),
    ],
)
def test_batch_is_scaled_by_workers_and_accumulation(fields: dict[str, Any], batch: int) -> None:
    spec = plan_of(**fields)
    assert spec.training.expected_batch_size == batch
    assert spec.cluster.workers == fields["num_workers"]


def test_gpus_are_inferred_from_the_resources_of_a_worker() -> None:
    spec = plan_of(num_workers=16, resources_per_worker={"CPU": 4, "GPU": 1})
    assert (spec.cluster.workers, spec.cluster.worker.cpus, spec.cluster.worker.gpus) == (16, "4", 1)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_is_accepted(precision: str) -> None:
    assert plan_of(mixed_precision=precision).training.precision == precision


def test_remote_checkpoints_are_accepted() -> None:
    spec = plan_of(checkpoint_frequency=100, checkpoint_dir="s3://bucket/checkpoints")
    assert (spec.checkpoint.uri, spec.checkpoint.every_steps) == ("s3://bucket/checkpoints", 100)


def test_checkpoint_of_a_run_that_is_not_here_is_refused_with_the_fix(
    fake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = TenSafeTrainingConfig(
        model_name="acme/tiny",
        num_labels=2,
        checkpoint_dir="s3://bucket/checkpoints",
        dp_config=BUDGET,
        unit_at_least=4000,
    )
    with pytest.raises(ConfigurationError) as refused:
        TenSafeTrainer(config=config).fit(ROWS, resume_from_checkpoint="s3://bucket/checkpoints/step_1000")
    assert str(refused.value) == (
        f"resume_from_checkpoint: s3://bucket/checkpoints/step_1000: there is no ledger in output_dir "
        f"({tmp_path}/tensafe-runs/tiny), and a run resumes from its ledger, which holds the charged steps: "
        "set output_dir to the folder of the run to resume"
    )
    assert fake.calls == []


def test_budget_loop_with_an_own_training_step(capsys: pytest.CaptureFixture[str]) -> None:
    """The loop of the guide; the training step of the caller counts itself."""
    target_epsilon = 8.0
    accountant = DistributedRDPAccountant(target_epsilon=8.0, target_delta=1e-5)

    def train_step(batch: list[int]) -> None:
        accountant.step(noise_multiplier=1.1, sample_rate=0.2)

    with pytest.warns(UserWarning, match="no step was counted"):
        epsilon, delta = accountant.get_epsilon(target_delta=1e-5)
    assert (f"{epsilon:.2f}", delta) == ("0.00", 1e-5)
    steps = 0
    for batch in [[0]] * 100:
        train_step(batch)
        steps += 1
        epsilon, delta = accountant.get_epsilon(target_delta=1e-5)
        print(f"Current epsilon: {epsilon:.2f}")
        if epsilon >= target_epsilon:
            break
    assert 1 < steps < 100
    assert capsys.readouterr().out.splitlines()[-1] == f"Current epsilon: {epsilon:.2f}" and epsilon >= 8


def test_calls_of_the_guide_that_are_not_offered_lead_on() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Unknown'"):
        from tensorguard.distributed import Unknown  # noqa: F401
    trainer = TenSafeTrainer(TenSafeTrainingConfig(model_name="m", dp_config=BUDGET))
    with pytest.raises(AttributeError, match=r"each step draws its own random batch.*; call fit"):
        trainer.train_step([])
    assert not hasattr(trainer, "unknown")


class GuideCallback(TenSafeCallback):
    """With the signatures and figures of the guide's custom callback."""

    def on_train_begin(self, trainer, **kwargs):
        print("Training started!")

    def on_step(self, trainer, step, metrics, **kwargs):
        assert set(kwargs) == set()
        if step % 5 == 0:
            print(f"Step {step}: loss={metrics['loss']:.4f}, eval_loss={metrics['eval_loss']:.4f}")

    def on_epoch_end(self, trainer, epoch, metrics, **kwargs):
        print(f"Epoch {epoch} complete: eval_loss={metrics['eval_loss']:.4f}")

    def on_train_end(self, trainer, **kwargs):
        print(f"Training complete! Final epsilon: {trainer.epsilon_spent:.2f}")


class TrustedCallback(TenSafeCallback):
    """Keeps the private metrics of each step."""

    def __init__(self) -> None:
        self.figures: list[dict[str, float]] = []

    def on_step(self, trainer, step, private_metrics):
        self.figures.append(private_metrics)


@pytest.mark.ray
@pytest.mark.nightly
def test_guide_trains_on_data_frames_with_its_callback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_model(tmp_path / "model")
    config = TenSafeTrainingConfig(
        model_name=str(tmp_path / "model"),
        num_labels=2,
        lora_rank=16,
        lora_alpha=32,
        target_modules=["query", "value"],
        num_epochs=2,
        per_device_batch_size=4,
        learning_rate=1e-2,
        max_seq_length=16,
        num_workers=2,
        use_gpu=False,
        checkpoint_dir=tmp_path / "models",
        unit_at_least=320,
        private_metrics="Internal",
        secure_aggregation=SecureAggregationConfig(enabled=True, verify_aggregation=True),
        dp_config=dataclasses.replace(BUDGET, target_epsilon=80.0),
    )
    trusted = TrustedCallback()
    trainer = TenSafeTrainer(config=config, callbacks=[GuideCallback(), trusted])
    LOGGER.setLevel(logging.DEBUG)
    try:
        result = trainer.fit(
            train_dataset=pandas.DataFrame(records(330)), eval_dataset=pandas.DataFrame(records(40, seed=1))
        )
    finally:
        LOGGER.setLevel(logging.NOTSET)
    printed = capfd.readouterr().out
    assert result.phase == "Succeeded" and result.metrics["steps"] == 10
    assert printed.startswith("Training started!\nStep 5: loss=nan, eval_loss=0.")
    assert printed.endswith(f"Training complete! Final epsilon: {trainer.epsilon_spent:.2f}\n")
    final = json.loads((tmp_path / "models/final/statement.json").read_text())
    assert final["privateMetrics"] == "Internal"
    assert f"Epoch 2 complete: eval_loss={result.metrics['final_eval_loss']:.4f}" in printed
    assert f"Final epsilon: {result.metrics['dp_epsilon']:.2f}" in printed
    assert [0 < each["loss"] < 2 for each in trusted.figures] == [True] * 10
    drawn = [each["units"] for each in trusted.figures]
    assert all(20 <= units <= 120 for units in drawn) and len(set(drawn)) > 1  # 64 of 330 x 64 / 320, at random
    for rank in range(2):
        lines = (tmp_path / "models.private" / PRIVATE_METRICS.format(rank=rank)).read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, 11))


class Pairs(torch.utils.data.Dataset):
    """Pairs of a text and its class, as torch data sets often hold them."""

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> tuple[str, int]:
        record = records(240)[index]
        return record["text"], record["label"]


@pytest.mark.ray
def test_exception_of_a_callback_saves_a_checkpoint_from_which_tuples_resume(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    config = TenSafeTrainingConfig(
        model_name=str(tmp_path / "model"),
        num_labels=2,
        per_device_batch_size=5,
        gradient_accumulation_steps=2,
        num_epochs=10,
        max_seq_length=16,
        num_workers=1,
        checkpoint_dir=tmp_path / "models",
        unit_at_least=200,
        columns={"text": 0, "label": 1},
        dp_config=DistributedDPConfig(target_epsilon=20.0),
    )

    class Fails(TenSafeCallback):
        def on_step(self, trainer, step, metrics, **kwargs):
            if step == 3:
                raise LookupError(f"the tracker is gone at {metrics['step']}")

    with pytest.raises(LookupError, match="the tracker is gone at 3") as raised:
        TenSafeTrainer(config, [Fails()]).fit(Pairs())
    ledger = FileLedger(tmp_path / "models" / "run").read()
    [*_, checkpoint] = ledger.checkpoints
    assert 3 <= checkpoint.step < 200 and f"stopped after step {checkpoint.step}" in raised.value.__notes__[0]
    assert ledger.steps_charged == checkpoint.step
    result = TenSafeTrainer(config).fit(Pairs(), resume_from_checkpoint=checkpoint.uri)
    assert result.phase == "Succeeded" and result.metrics["steps"] == 200
    assert 0 < (result.metrics["dp_epsilon"] or math.inf) <= 20
