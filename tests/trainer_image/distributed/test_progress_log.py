"""The logger `tensorguard.distributed`: the plan before a training, each log record while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tensorguard.distributed import DistributedDPConfig, TenSafeTrainer, TenSafeTrainingConfig
from tensorguard.distributed._progress_log import LOGGER

RECORDS = [{"text": f"note {number}", "label": number % 2} for number in range(200)]
Make = Callable[..., TenSafeTrainingConfig]
NOISE = DistributedDPConfig(target_epsilon=8.0, target_delta=1e-5, noise_multiplier=1.1)


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    yield
    LOGGER.setLevel(logging.NOTSET)


@pytest.mark.slow
def test_plan_is_logged_before_the_training(fake: Any, config: Make, caplog: pytest.LogCaptureFixture) -> None:
    fake.at_step = lambda step: logging.getLogger("step").warning("%s", step)
    with caplog.at_level(logging.INFO):
        result = TenSafeTrainer(
            config(gradient_accumulation_steps=8, num_epochs=2, dp_config=DistributedDPConfig(target_epsilon=8.0))
        ).fit(RECORDS)
    plan = caplog.messages[0]
    assert plan.startswith(
        "plan: expected batch 80 (per_device_batch_size x gradient_accumulation_steps x num_workers = 5 x 8 x 2); "
        "sampling rate 0.4 (of at least 200 records); steps 5 (3 in each epoch); noise multiplier "
    )
    metrics = result.metrics
    assert f"{metrics['noise_multiplier']} (calibrated for 5 steps)" in plan
    assert f"; ε {metrics['dp_epsilon']:g} (of 5 steps; target_epsilon is 8); δ 0.0005 (1 / (10 x" in plan
    assert caplog.messages.index("1") > 0


def test_plan_names_what_was_configured(fake: Any, config: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        TenSafeTrainer(config(dp_config=NOISE)).fit(RECORDS)
    assert "noise multiplier 1.1 (as configured); ε " in caplog.messages[0]
    assert caplog.messages[0].endswith("δ 1e-05 (target_delta)")


def test_plan_is_printed_unless_the_log_shows_it(
    fake: Any, config: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(run: str) -> tuple[str, str]:
        TenSafeTrainer(config(dp_config=NOISE, checkpoint_dir=config().checkpoint_dir / run)).fit(RECORDS)
        shown = capsys.readouterr()
        return shown.out, shown.err

    out, error = printed("to a file")
    assert out == ""
    LOGGER.setLevel(logging.INFO)
    assert "expected batch" not in printed("logged")[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    terminal, _ = printed("on a terminal")
    for name in ("expected batch", "sampling rate", "steps", "noise multiplier", "ε", "δ"):
        assert name in error and name in terminal


def test_debug_level_alone_shows_public_records_on_standard_error(
    fake: Any, config: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a program that calls `setLevel` and configures no handler."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    LOGGER.setLevel(logging.DEBUG)
    fake.losses = (0.9,)
    TenSafeTrainer(config(dp_config=NOISE)).fit(RECORDS, RECORDS[:5])
    shown = capsys.readouterr().err
    assert "tensorguard.distributed INFO plan: expected batch 20" in shown
    assert "DEBUG job: {" in shown and '"privateMetrics":"Hidden"' in shown
    assert "DEBUG started attempt 1, incarnation 1, step 0" in shown
    assert "DEBUG stepped step 1, charged 1" in shown
    assert "DEBUG evaluated step 1, loss 0.9, accuracy 0.55" in shown
    assert "DEBUG ended attempt 1, reason Completed" in shown
    assert LOGGER.handlers == []


def test_logs_go_only_to_handlers_of_the_program(
    fake: Any, config: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
    LOGGER.setLevel(logging.DEBUG)
    TenSafeTrainer(config(dp_config=NOISE)).fit(RECORDS)
    assert capsys.readouterr().err == ""
