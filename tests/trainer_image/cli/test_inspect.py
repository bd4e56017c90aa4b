"""`tensafe inspect`: exit codes, where its output is written, and the options that change it."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tensorguard.cli.main import main
from tensorguard.inspection.inspection import NOTICE

ROWS = [{"note": f"a note about case {i}", "department": i % 3} for i in range(12)]


@pytest.fixture
def job(write_manifest: Callable[..., str], tmp_path: Path) -> Callable[..., str]:
    """Writes data and a manifest that reads them, without an evaluation set."""

    def write(rows: Sequence[dict[str, Any]] = ROWS, **changes: Any) -> str:
        path = tmp_path / "data" / "train.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        unit = {"kind": "Example", "atLeast": 12}
        given = {
            "evaluation": None,
            "dataset__unit": unit,
            "privacy__accountant": "RDP",
            "training__expectedBatchSize": 4,
        }
        return write_manifest(**given, **changes)

    return write


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["inspect", *arguments])
    output = capsys.readouterr()
    return code, output.out, output.err


@pytest.mark.slow
def test_good_data_exit_with_0(job: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = inspected(capsys, job())
    assert code == 0
    assert out.splitlines()[0] == NOTICE
    assert "units    12  each record is one" in out
    assert "Reading 1 jsonl file at" in err and "refused" not in err
    assert "a note" not in out + err


@pytest.mark.slow
def test_data_that_a_run_refuses_exit_with_1_and_its_message(
    job: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = job([*ROWS, {"note": None, "department": 1}])
    code, out, err = inspected(capsys, path)
    assert code == 1
    assert "usable   12" in out and "NoText" in out
    assert err.splitlines()[-1].startswith("a run would be refused: spec.dataset: 1 record has no text (the first: ")
    assert inspected(capsys, path, "--set", "spec.dataset.unusable=Skip")[0] == 0


def test_invalid_manifest_exits_with_2(job: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = inspected(capsys, job(), "--set", "spec.training.maxLength=none")
    assert (code, out) == (2, "") and err.startswith("spec.training.maxLength")


@pytest.mark.slow
def test_model_without_files_exits_with_1(job: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = inspected(capsys, job(model__name="./none"))
    assert (code, out) == (1, "") and "there is no folder" in err


def test_set_changes_the_job(job: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    path = job()
    cut = []
    for length in (4, 64):
        code, out, _ = inspected(capsys, path, "-o", "json", "--set", f"spec.training.maxLength={length}")
        assert code == 0
        found = json.loads(out)
        assert found["lengths"]["maxLength"] == length
        cut.append(found["lengths"]["cut"])
    assert cut == [12, 0]


def test_json_is_all_of_standard_output(job: Callable[..., str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", job(), "-o", "json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert {"notice", "records", "usable", "units", "trained", "unusable", "labels"} < found.keys()
    assert found["labels"] == {"0": 4, "1": 4, "2": 4}
    assert found["examples"] is None


def test_records_are_shown_on_request(job: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = inspected(capsys, job(), "--show-records")
    assert out.count("a note about case") == 3


def test_only_the_owner_can_read_the_page(
    job: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    page.write_text("before")
    page.chmod(0o644)
    code, _, err = inspected(capsys, job(), "--html", str(page))
    assert code == 0 and f"written to {page}" in err
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


def test_page_that_cannot_be_written_exits_with_1(
    job: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = inspected(capsys, job(), "--html", str(tmp_path / "none" / "page.html"))
    assert code == 1 and out.startswith(NOTICE)
    assert "cannot be written: No such file or directory: name a file in a folder that exists" in err
