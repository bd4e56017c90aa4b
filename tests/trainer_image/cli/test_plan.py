"""`tensafe plan`: the table, its form for scripts, and the picture."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tensorguard.cli import plan_memory
from tensorguard.cli.main import main

pytestmark = pytest.mark.slow

Write = Callable[..., str]
_NOT_READ = "spec.model.name: no model is read in these tests"
OWN: dict[str, Any] = {
    "training": {"steps": 40, "expectedBatchSize": 256},
    "privacy__accountant": "RDP",
    "dataset__unit__atLeast": 4000,
}


@pytest.fixture(autouse=True)
def without_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory is not estimated: `test_plan_memory` tests it."""

    def refuse(*_: object) -> None:
        raise ValueError(_NOT_READ)

    monkeypatch.setattr(plan_memory, "worker_memory", refuse)


def test_table_compares_pairs_with_the_manifest(write_manifest: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_manifest(**OWN)
    assert main(["plan", path]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"the memory of a worker is not estimated: {_NOT_READ}\n"
    rows = [line.split() for line in shown.out.splitlines()[1:6]]
    assert [row[:2] for row in rows] == [["160", "64"], ["80", "128"], ["40", "256"], ["20", "512"], ["10", "1,024"]]
    assert rows[2][4:] == ["1.00", "as", "in", "the", "manifest"]
    assert [float(row[4]) for row in rows] == sorted((float(row[4]) for row in rows), reverse=True)
    assert "about 10,240 example gradients (2.56 epochs) and keeps ε = 8" in shown.out


def test_terminal_shows_what_is_computed_and_clears_it(
    write_manifest: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["plan", write_manifest(**OWN)]) == 0
    shown = capsys.readouterr().err.split("\r\033[K")
    assert shown[5:] == [
        "computing the noise of 5 pairs ...",
        "",
        "estimating the memory of a worker ...",
        f"the memory of a worker is not estimated: {_NOT_READ}\n",
    ]


@pytest.mark.parametrize("length", [{"steps": 80}, {"epochs": "5.12"}], ids=["steps", "epochs"])
def test_proposed_command_is_valid(
    write_manifest: Write, capsys: pytest.CaptureFixture[str], length: dict[str, Any]
) -> None:
    path = write_manifest(**{**OWN, "training": {"expectedBatchSize": 256, **length}})
    assert main(["plan", path, "--set", "spec.privacy.targetEpsilon=4"]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert command[:2] == ["tensafe", "run"]
    assert main(["plan", *command[2:], "-o", "json"]) == 0
    own = next(each for each in json.loads(capsys.readouterr().out)["choices"] if each["own"])
    assert (own["steps"], own["expectedBatchSize"]) == (40, 512)
    assert own["epsilon"] <= 4


def test_picture_is_written(write_manifest: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", write_manifest(**OWN), "--plot", str(tmp_path / "plan.png")]) == 0
    with Image.open(tmp_path / "plan.png") as picture:
        assert picture.format == "PNG" and picture.width > 600


@pytest.mark.parametrize("name", ["absent/plan.png", "plan.txt"])
def test_picture_that_cannot_be_written_is_an_error(
    write_manifest: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["plan", write_manifest(**OWN), "--plot", str(tmp_path / name)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"tensafe plan: --plot {tmp_path / name}: ")


def test_invalid_manifest_is_reported(write_manifest: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", write_manifest(privacy__targetEpsilon="NaN")]) == 2
    assert "spec.privacy.targetEpsilon" in capsys.readouterr().err
