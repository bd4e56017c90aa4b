"""`tensafe account`: ε from σ, σ from ε, and the messages for mistakes."""

from __future__ import annotations

import json

import pytest

from tests.support.trainer.cli import call

ACCOUNT = ["account", "--sample-rate", "0.04", "--steps", "2250", "--delta", "1e-5"]


def test_account_computes_epsilon_from_noise_multiplier(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*ACCOUNT, "--noise-multiplier", "1.5", "--accountant", "rdp", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] == pytest.approx(7.32934, abs=1e-4)
    assert (found["noiseMultiplier"], found["delta"], found["accountant"].lower()) == (1.5, 1e-5, "rdp")


@pytest.mark.slow
def test_account_computes_noise_multiplier_from_epsilon(capsys: pytest.CaptureFixture[str]) -> None:
    sigmas = []
    for accountant in ("rdp", "pld"):
        assert call(*ACCOUNT, "--target-epsilon", "7.33", "--accountant", accountant, "-o", "json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["epsilon"] <= 7.33
        sigmas.append(found["noiseMultiplier"])
    assert sigmas[0] == pytest.approx(1.5, abs=2e-3) and sigmas[1] < sigmas[0]


def test_account_has_the_default_accountant_of_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, accountant in (
        ([*ACCOUNT, "--noise-multiplier", "1.5"], "PLD"),
        ([*ACCOUNT[:-1], "1e-10", "--noise-multiplier", "1.5"], "RDP"),
    ):
        assert call(*arguments, "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["accountant"] == accountant


@pytest.mark.parametrize(
    "arguments",
    [
        [*ACCOUNT],
        [*ACCOUNT, "--noise-multiplier", "1", "--target-epsilon", "8"],
        [*ACCOUNT, "--noise-multiplier", "nan"],
        [*ACCOUNT, "--noise-multiplier", "-1"],
        [*ACCOUNT, "--noise-multiplier", "1e-160"],
        [*ACCOUNT, "--noise-multiplier", "1e200"],
        [*ACCOUNT[:-1], "1e-10", "--noise-multiplier", "1", "--accountant", "pld"],
        ["account", "--noise-multiplier", "1", "--sample-rate", "1.5", "--steps", "10", "--delta", "1e-5"],
        ["account", "--noise-multiplier", "1", "--sample-rate", "0.1", "--steps", "1.5", "--delta", "1e-5"],
        ["account", "--noise-multiplier", "1", "--sample-rate", "0.1", "--steps", "10", "--delta", "1"],
    ],
    ids=[
        "neither σ nor ε",
        "both σ and ε",
        "σ is nan",
        "σ is negative",
        "σ is tiny",
        "σ is huge",
        "δ too small for pld",
        "rate above 1",
        "steps not whole",
        "δ is 1",
    ],
)
def test_account_refuses_invalid_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err
