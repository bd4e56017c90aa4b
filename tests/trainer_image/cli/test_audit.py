"""`tensafe audit`: its exit codes, figures, picture, and the arguments that it refuses.

The steps are real, and their ranks are threads. `test_audit_on_ray.py` has them in processes of Ray.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorguard.canary_audit import job_audit
from tensorguard.cli.main import main
from tensorguard.privacy.noise import DiscreteGaussian
from tensorguard.runners.preflight import RunRefused
from tests.support.trainer.audits import MANIFEST, scores_on_threads

Call = Callable[..., int]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """`call(*arguments)`: the exit code of an audit of one step."""
    path = tmp_path / "job.yaml"
    path.write_text(MANIFEST)
    monkeypatch.setattr(job_audit, "scores_without_records", scores_on_threads)

    def audit(*arguments: str) -> int:
        try:
            return main(["audit", str(path), *arguments])
        except SystemExit as exit_:
            return int(exit_.code or 0)

    return audit


@pytest.mark.slow
def test_audit_of_a_job_that_keeps_its_claim_exits_0(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    out = capsys.readouterr().out
    assert "Not refuted" in out and "no proof" in out
    assert "4.378" in out and "to expect" in out and "claimed 1" in out


@pytest.mark.slow
def test_audit_of_half_the_noise_exits_1(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = DiscreteGaussian.draw
    monkeypatch.setattr(DiscreteGaussian, "draw", lambda noise, count, stream: draw(noise, count, stream) // 2)
    assert call() == 1
    assert "Refuted: the steps are less private than the ledger accounts them" in capsys.readouterr().out


@pytest.mark.slow
def test_figures_are_json_for_scripts(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("-o", "json", "--canaries", "1000", "--guesses", "100", "--confidence", "0.9") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["refuted"] is False
    assert found["claimed"]["epsilon"] == pytest.approx(4.377, abs=1e-3)
    assert (found["claimed"]["steps"], found["claimed"]["sampleRate"]) == (1, 1.0)
    guesses = found["byGuesses"]
    assert (guesses["canaries"], guesses["guesses"], guesses["confidence"]) == (1000, 200, 0.9)
    assert guesses["expected"]["low"] <= guesses["expected"]["high"] <= guesses["largestPossible"]
    assert found["byNoise"]["noiseMultiplierAtMost"] > 1


@pytest.mark.slow
def test_figures_without_noise_are_valid_json(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiscreteGaussian, "draw", lambda _noise, count, _stream: np.zeros(count, dtype=np.int64))
    assert call("-o", "json", "--canaries", "500") == 1

    def refuse(name: str) -> None:
        raise ValueError(name)

    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert found["byNoise"] == {"epsilonAtLeast": None, "noiseMultiplierAtMost": 0.0, "refuted": True}


@pytest.mark.slow
def test_audit_too_small_to_refute_the_claim_says_so(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--canaries", "100") == 0
    assert "Guesses alone could not refute it" in capsys.readouterr().out


@pytest.mark.slow
def test_picture_is_a_png(call: Call, tmp_path: Path) -> None:
    assert call("--canaries", "500", "--plot", str(tmp_path / "audit.png")) == 0
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_picture_that_cannot_be_written_is_an_error(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--canaries", "500", "--plot", "/nowhere/audit.png") == 1
    shown = capsys.readouterr().err
    assert "--plot /nowhere/audit.png: No such file or directory: create its folder" in shown
    assert "starting the workers" not in shown


@pytest.mark.slow
def test_picture_that_cannot_be_written_after_the_audit_leaves_its_figures(
    call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--canaries", "500", "--plot", str(tmp_path)) == 1
    shown = capsys.readouterr()
    assert "ε claimed" in shown.out and f"--plot {tmp_path}: " in shown.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--canaries", "1"), "at least 2 are needed"),
        (("--guesses", "2501"), "must be from 1 to half of --canaries (2500)"),
        (("--guesses", "0"), "must be from 1 to half of --canaries"),
        (("--steps", "2"), "the job has 1 to 1 steps"),
        (("--steps", "0"), "the job has 1 to 1 steps"),
        (("--confidence", "0.4"), "above 0.5 and below 1"),
        (("--output-dir", "x"), "--output-dir needs --with-data"),
        (
            ("--set", 'spec.privacy.targetEpsilon="5"', "--set", "spec.training.steps=2"),
            "the budget of the job ends after 1 steps, so 2 cannot be audited: write --steps 1",
        ),
    ],
)
def test_arguments_that_fit_no_audit_are_refused_before_anything_runs(
    arguments: tuple[str, ...], message: str, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.out == ""


@pytest.mark.slow
def test_refusal_of_this_machine_is_one_sentence(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RunRefused("spec.cluster", "too few CPUs")

    monkeypatch.setattr(job_audit, "scores_without_records", refuse)
    assert call() == 2
    assert "too few CPUs" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_interrupted_audit_has_no_result(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(job_audit, "scores_without_records", interrupt)
    assert call() == 130
    assert capsys.readouterr().out == ""
