"""`tensafe statement`: one statement as text, page and JSON; and what it refuses to show."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tensafe_api.statement.contents import canonical_json, digest
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.cli.main import main
from tests.support.programs import s3

RAW: dict[str, Any] = json.loads((Path(__file__).parents[2] / "api/statement.json").read_text("utf-8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A published checkpoint."""
    return publish(str(tmp_path), RAW)


def publish(root: str, document: dict[str, Any]) -> Path:
    CheckpointStore(root).write("final", {"statement.json": canonical_json(document), "weights": b"1"})
    return Path(root) / "final"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["statement", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["statement", *arguments])
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1
    return code, output.err


def test_text_begins_with_the_claim_in_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, str(folder))
    first = text.splitlines()[0]
    assert first.startswith("The adapter of the training job claims-triage") and first.endswith(".")
    assert "| ε claimed, of 2250 steps | 7.33 |" in text
    assert "- statement.json is the file that manifest.json lists." in text
    assert "tensafe verify DIR --public-key FILE" in text


def test_text_has_a_blank_line_before_each_heading(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, str(folder)).splitlines()
    headings = [number for number, line in enumerate(lines) if line.startswith("#")]
    assert len(headings) >= 4 and all(lines[number - 1] == lines[number + 1] == "" for number in headings)


def test_command_for_the_account_gives_the_claim(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, str(folder))
    command = next(line for line in text.splitlines() if line.strip().startswith("tensafe account"))
    assert main([*shlex.split(command)[1:], "-o", "json"]) == 0
    epsilon = Decimal(str(json.loads(capsys.readouterr().out)["epsilon"]))
    assert Decimal(RAW["claim"]["epsilon"]) - Decimal("0.002") < epsilon <= Decimal(RAW["claim"]["epsilon"])


def test_page_is_not_printed_on_a_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    code, message = refused(capsys, str(folder), "--format", "html")
    assert code == 2 and "add -o statement.html" in message


def test_file_in_place_of_a_folder_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = refused(capsys, str(folder / "statement.json"))
    assert code == 2 and "pass the folder of a checkpoint" in message


def test_page_is_written_to_a_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert shown(capsys, str(folder), "--format", "html", "-o", str(page)) == ""
    assert page.read_text("utf-8") == shown(capsys, str(folder), "--format", "html")
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")


def test_json_has_the_statement_unchanged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(shown(capsys, str(folder), "--format", "json"))
    assert report["statement"] == RAW
    assert report["statementDigest"] == digest((folder / "statement.json").read_bytes())
    assert report["curve"][-1] == {"steps": 2250, "epsilon": "7.33"}


def test_statement_is_read_from_a_uri(capsys: pytest.CaptureFixture[str]) -> None:
    publish("memory://bucket/models", RAW)
    text = shown(capsys, "memory://bucket/models/final/")
    fsspec.filesystem("memory").rm("/bucket", recursive=True)
    assert "claims-triage" in text


@pytest.mark.slow
def test_statement_is_read_from_a_bucket(s3_bucket: s3.S3, capsys: pytest.CaptureFixture[str]) -> None:
    """With the variables that other tools of S3 read too, and without a job that names the endpoint."""
    publish(f"s3://{s3.BUCKET}/models", RAW)
    assert "claims-triage" in shown(capsys, f"s3://{s3.BUCKET}/models/final")
    code, message = refused(capsys, f"s3://{s3.BUCKET}/models/other")
    assert code == 2 and f"s3://{s3.BUCKET}/models/other has no statement.json" in message


def test_statement_without_a_manifest_is_not_said_to_be_listed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "manifest.json").unlink()
    assert "manifest.json" not in shown(capsys, str(folder))


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = json.loads(json.dumps(RAW))
    changed["job"]["name"] = "a\x1b[2J\nb\x9b"
    folder = publish(str(tmp_path), changed)
    for form in ("text", "html", "json"):
        assert not set(shown(capsys, str(folder), "--format", form)) & set("\x1b\x9b")


def test_no_text_of_a_statement_makes_a_line_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = len(shown(capsys, str(publish(str(tmp_path), RAW))).splitlines())
    changed = json.loads(json.dumps(RAW))
    forged = "| ε claimed, of 2250 steps | 0.1 |"
    changed["lineage"] = f"none |\n{forged}\u2028{forged}"
    changed["assumed"][0] += f"\r{forged}"
    changed["model"] = {f"name\n{forged}": "x"}
    text = shown(capsys, str(publish(str(tmp_path), changed)))
    assert len(text.splitlines()) == lines and forged not in text.splitlines()


def test_every_changed_byte_of_the_statement_is_noticed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "statement.json"
    content = file.read_bytes()
    for place in range(0, len(content), 997):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        code, message = refused(capsys, str(folder))
        assert code == 1 and "cannot be trusted: statement.json is not" in message


def test_smaller_epsilon_is_refused_even_if_the_files_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = json.loads(json.dumps(RAW))
    changed["claim"]["epsilon"] = "1"
    code, message = refused(capsys, str(publish(str(tmp_path), changed)))
    assert code == 1 and "claim.epsilon is 1, and the rest of the statement gives 7.33" in message


@pytest.mark.parametrize(
    ("files", "code", "found"),
    [
        ({}, 2, "has no statement.json: pass the folder of a checkpoint, such as runs/first/checkpoints/final"),
        ({"statement.json": b"{"}, 1, "statement.json is not JSON"),
        ({"statement.json": b"[" * 100_000}, 1, "statement.json is not JSON"),
        ({"statement.json": b"[]"}, 1, "statement.json is not a JSON object"),
        ({"statement.json": b"{}"}, 1, "it has the schema None"),
        ({"statement.json": b"{ }"}, 1, "is not canonical JSON"),
        ({"statement.json": b"x" * ((4 << 20) + 1)}, 1, "has more than 4 MiB"),
        ({"statement.json": canonical_json(RAW), "manifest.json": b'{"files":[]}'}, 1, "that manifest.json lists"),
        ({"statement.json": canonical_json(RAW), "manifest.json": b"x"}, 1, "manifest.json is not JSON"),
    ],
    ids=["empty", "cut", "deep", "list", "object", "spaces", "large", "unlisted", "manifest"],
)
def test_folder_without_a_usable_statement_is_explained(
    files: dict[str, bytes], code: int, found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    exit_code, message = refused(capsys, str(tmp_path))
    assert exit_code == code and found in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("pvc://claims/final", "is on a PVC, which only pods can read: copy the folder from a pod"),
        ("nothing://bucket/final", "cannot be read: this kind of URI is not supported"),
        ("/nowhere/at/all", "has no statement.json"),
        ("s3://clinic/final", "cannot be read: the service does not answer: check AWS_ENDPOINT_URL"),
    ],
)
def test_uri_that_cannot_be_read_is_explained(
    uri: str, found: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    code, message = refused(capsys, uri)
    assert code == 2 and found in message


def test_output_that_cannot_be_written_is_explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, message = refused(capsys, str(folder), "-o", "/nowhere/page.html")
    assert code == 2 and "/nowhere/page.html cannot be written: No such file or directory" in message


@pytest.mark.slow
def test_page_needs_neither_torch_nor_ray(folder: Path) -> None:
    script = (
        "import sys; from tensorguard.cli.main import main; "
        f"main(['statement', {str(folder)!r}, '--format', 'html', '-o', {str(folder / 'page.html')!r}]); "
        "print({'torch', 'ray', 'transformers', 'peft', 'matplotlib'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"
