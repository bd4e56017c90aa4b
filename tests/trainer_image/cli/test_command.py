"""The command's contract with scripts: exit codes, standard output, and the messages for mistakes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_api.accounting.composition import format_epsilon
from tensafe_api.resources.numeric import MAX_WORKERS
from tensafe_api.statement.contents import canonical_json
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.checkpoint.trainer_state import TrainerState
from tensorguard.cli.main import command_parser
from tensorguard.ledger.file import FileLedger
from tensorguard.training.run_log import RunLog
from tests.support.trainer.cli import call

Write = Callable[..., str]


def test_validate_reports_all_faults_at_once(write_manifest: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_manifest(privacy__targetEpsilon="NaN", privacy__targetDelta="0.5", trainin={}, cluster__workers=999)
    assert call("validate", path) == 2
    errors = capsys.readouterr().err
    for field in ("spec.privacy.targetEpsilon", "spec.trainin", "did you mean training", "spec.cluster.workers"):
        assert field in errors


def test_faults_of_a_manifest_have_no_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    for name in ("foo\\e[31m\\e]0;title\\a", "foo\\nvalid: ε 0.1", "foo\\u2028valid: ε 0.1"):
        path.write_text(
            f'apiVersion: tensafe.io/v1alpha1\nkind: TenSafeTrainingJob\nmetadata: {{name: a}}\nspec: {{"{name}": 1}}\n'
        )
        assert call("validate", str(path)) == 2
        errors = capsys.readouterr().err
        assert "spec.foo" in errors and errors.replace("\n", "").isprintable()
        assert not any(line.startswith("valid") for line in errors.splitlines())


@pytest.mark.slow
def test_validate_warns_of_missing_resources_and_of_a_weak_epsilon(
    write_manifest: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = (os.cpu_count() or 1) + 1
    if workers > MAX_WORKERS:
        pytest.skip("this machine has the CPUs for all workers that a manifest may have")
    assert call("validate", write_manifest(cluster__workers=workers, privacy__targetEpsilon="50")) == 0
    warnings = capsys.readouterr().err
    assert "would refuse it on this machine: spec.cluster.workers" in warnings
    assert "ε = 50 protects little" in warnings


@pytest.mark.slow
def test_validate_prints_the_completed_manifest(write_manifest: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("validate", write_manifest(), "-o", "json") == 0
    spec = json.loads(capsys.readouterr().out)["spec"]
    assert float(spec["privacy"]["noiseMultiplier"]) > 0.3
    assert spec["privacy"]["targetDelta"] == "0.0000166"
    assert spec["checkpoint"]["everySteps"] == 2


INIT_FROM = {
    "uri": "final",
    "earlierSteps": [{"sampleRate": "0.064", "noiseMultiplier": "0.643715", "steps": 40}],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        pytest.param(
            {},
            (
                "steps 100 24 in each epoch, 3 for warm-up",
                "checkpoint every 2 steps and at the end; after a crash the steps since the last one are charged again",
                "charged in advance 1 step at a time; so many at most are lost in a crash",
                "reserve 9 steps that can be charged again; then the run ends before its last step",
                "longest record 512 tokens longer ones are cut; `tensafe inspect` counts them",
            ),
            id="defaults",
        ),
        pytest.param({"dataset__overLength": "Drop"}, ("longer ones are dropped",), id="longer records dropped"),
        pytest.param(
            {"privacy__reserveSteps": 1},
            ("if the reserved step is charged as well",),
            id="one reserved step",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"lora__initFrom": INIT_FROM, "privacy__targetEpsilon": "12", "privacy__targetDelta": "0.000025"},
            (
                "ε before this job 7.726 of the trainings in spec.lora.initFrom, which every ε here counts",
                "of 100 steps and 40 earlier ones to sign off; target 12",
            ),
            id="an earlier adapter",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_validate_explains_the_figures(
    changes: dict[str, Any], rows: tuple[str, ...], write_manifest: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("validate", write_manifest(**changes)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for row in rows:
        assert row in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "code"), [("Succeeded", 0), ("Failed", 1), ("BudgetExhausted", 3), ("Suspended", 130)]
)
def test_run_returns_the_exit_code_of_the_phase_and_prints_only_the_job(
    phase: str, code: int, runner: Any, write_manifest: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.phase, runner.exit_code = phase, code
    assert call("run", write_manifest(), "--output-dir", str(tmp_path / "out")) == code
    shown = capsys.readouterr()
    job = yaml.safe_load(shown.out)
    assert (job["kind"], job["status"]["phase"]) == ("TenSafeTrainingJob", phase)
    assert "a library prints this" not in shown.out
    assert (tmp_path / "out" / "report.png").stat().st_size > 10_000
    if code == 130:
        assert "--resume" in shown.err
    if code == 0:
        assert "PeftModel" in shown.err


@pytest.mark.slow
def test_address_is_that_of_the_run_and_of_the_command_that_resumes_it(
    runner: Any, write_manifest: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.phase, runner.exit_code = "Suspended", 130
    output = str(tmp_path / "out")
    assert call("run", write_manifest(), "--output-dir", output, "--address", "10.0.0.1:6379") == 130
    assert runner.calls[-1]["address"] == "10.0.0.1:6379"
    shown = "".join(capsys.readouterr().err.split())
    assert f"job.yaml--address10.0.0.1:6379--output-dir{output}--resume" in shown


@pytest.mark.slow
@pytest.mark.parametrize("given", ["option", "variable"])
def test_signing_key_is_a_path_or_a_uri_and_the_resume_command_repeats_it(
    given: str,
    runner: Any,
    write_manifest: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    runner.phase, runner.exit_code = "Suspended", 130
    uri = "pkcs11:token=release;object=adapters?module-path=/usr/lib/hsm//module.so&pin-source=file:///etc/pin"
    for key, expected, out in ((uri, uri, "a"), ("keys/key.pem", str(tmp_path / "keys/key.pem"), "b")):
        arguments = ["--signing-key", key] if given == "option" else []
        monkeypatch.setenv("TENSAFE_SIGNING_KEY", key if given == "variable" else "elsewhere.pem")
        assert call("run", write_manifest(), "--output-dir", str(tmp_path / out), *arguments) == 130
        assert runner.calls[-1]["signing_key"] == expected
        shown = "".join(capsys.readouterr().err.split())
        quoted = f"'{expected}'" if expected == uri else expected
        assert (f"--signing-key{quoted}--output-dir" in shown) == (given == "option")


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--signing-key", "--identity"])
def test_key_file_that_other_users_can_read_is_warned_of(
    option: str, runner: Any, write_manifest: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    key.write_text("a secret")
    for mode, warned in ((0o644, True), (0o640, True), (0o600, False)):
        key.chmod(mode)
        call("run", write_manifest(), "--output-dir", str(tmp_path / f"{mode:o}"), option, str(key))
        warning = f"warning: other users can read the key file {key} (mode {mode:o}): chmod 600 {key}\n"
        assert (warning in capsys.readouterr().err) == warned


@pytest.mark.parametrize("given", ["option", "variable"])
def test_pin_in_the_uri_of_the_signing_key_is_refused_before_anything_starts(
    given: str,
    runner: Any,
    write_manifest: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uri = "pkcs11:token=release;object=adapters?module-path=/m.so&pin-value=zq9-secret"
    if given == "variable":
        monkeypatch.setenv("TENSAFE_SIGNING_KEY", uri)
    arguments = ["--signing-key", uri] if given == "option" else []
    assert call("run", write_manifest(), "--output-dir", str(tmp_path / "out"), *arguments) == 2
    assert not runner.calls
    shown = capsys.readouterr()
    assert "write the PIN into a file" in " ".join(shown.err.split())
    assert "zq9-secret" not in shown.out + shown.err


@pytest.mark.slow
def test_summary_is_printed_after_the_job(
    runner: Any, write_manifest: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    call("run", write_manifest(), "--output-dir", str(tmp_path / "out"))
    shown = terminal.getvalue()
    assert 0 < shown.index("kind: TenSafeTrainingJob") < shown.index("Load the adapter")


def test_resume_with_an_edited_ledger_fails_with_exit_code_1(
    write_manifest: Write, write_ledger: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_manifest(cluster__workers=1)
    file = write_ledger(path, tmp_path / "out", charged=10)
    file.write_text(file.read_text().replace('"steps":10', '"steps":1'))
    assert call("run", path, "--output-dir", str(tmp_path / "out"), "--resume") == 1
    assert "was edited" in capsys.readouterr().err


def test_refused_run_prints_one_sentence_and_exits_with_2(
    runner: Any, write_manifest: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.refusal = ("spec.cluster.workers", "2 workers of 8 CPUs need 16, and this machine has 2; lower it")
    assert call("run", write_manifest(), "--output-dir", str(tmp_path / "out")) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert "this machine has 2; lower it" in shown.err


@pytest.mark.slow
def test_ledger_prints_a_run_as_json(
    runner: Any, write_manifest: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("run", write_manifest(), "--output-dir", str(tmp_path / "out"))
    capsys.readouterr()
    assert call("ledger", str(tmp_path / "out"), "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stepsCharged"] == 105
    assert [charge["steps"] for charge in found["charges"]] == [105]
    assert 1 < found["epsilonSpent"] <= found["epsilonClaimed"]


def test_truncated_ledger_is_refused(
    runner: Any, write_manifest: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("run", write_manifest(), "--output-dir", str(tmp_path / "out"))
    path = tmp_path / "out" / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    capsys.readouterr()
    assert call("ledger", str(tmp_path / "out")) == 1
    shown = capsys.readouterr()
    assert not shown.out
    assert "records 105: entries were removed" in shown.err


def test_ledger_and_log_cut_after_a_checkpoint_are_refused(
    write_manifest: Write, write_ledger: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint that cannot be read comes first, and does not hide the other one."""
    out = tmp_path / "out"
    manifest = write_manifest(checkpoint__uri=str(out / "checkpoints"))
    path = write_ledger(manifest, out, charged=10)
    shutil.copy(manifest, out / "job.yaml")
    RunLog(out / "events.jsonl").close()
    state = FileLedger(out).read()
    saved = TrainerState(state.spec.job_uid, 10, 1, 1, state.head, state.length)
    store = CheckpointStore(str(out / "checkpoints"))
    store.write("step-000005", {"trainer_state.json": b"?"})
    store.write("step-000010", {"trainer_state.json": saved.dump()})
    assert call("ledger", str(out)) == 0
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    capsys.readouterr()
    assert call("ledger", str(out)) == 1
    shown = capsys.readouterr()
    assert not shown.out
    assert "the ledger is shorter than it was when file://" in shown.err


@pytest.mark.slow
def test_tables_show_each_epsilon_with_its_steps(
    write_manifest: Write, write_ledger: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_manifest(privacy__noiseMultiplier="0.6")  # the budget allows fewer than the planned 100 steps
    write_ledger(path, tmp_path / "out", charged=10)
    RunLog(tmp_path / "out" / "events.jsonl").close()
    assert call("validate", path) == 0
    validated = " ".join(capsys.readouterr().out.split())
    assert call("ledger", str(tmp_path / "out"), "-o", "json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert call("ledger", str(tmp_path / "out")) == 0
    shown = " ".join(capsys.readouterr().out.split())
    claimed = figures["stepsClaimed"]
    assert 10 < claimed < 100
    assert figures["epsilonClaimed"] > figures["epsilonSpent"]
    epsilon = format_epsilon(figures["epsilonClaimed"])
    assert f"ε spent {format_epsilon(figures['epsilonSpent'])} of 10 charged steps" in shown
    for text in (validated, shown):
        assert f"ε claimed {epsilon} of {claimed} steps to sign off" in text


@pytest.mark.slow
def test_ledger_without_its_run_log_is_refused(
    runner: Any, write_manifest: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("run", write_manifest(), "--output-dir", str(tmp_path / "out"))
    (tmp_path / "out" / "events.jsonl").unlink()
    capsys.readouterr()
    assert call("ledger", str(tmp_path / "out")) == 1
    assert "events.jsonl is missing" in capsys.readouterr().err


def test_status_in_a_manifest_is_ignored(write_manifest: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(write_manifest())
    path.write_text(path.read_text() + 'status: {phase: Succeeded, privacy: {epsilonSpent: "0"}}\n')
    assert call("validate", str(path), "-o", "json") == 0
    assert "status" not in json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_fields_without_effect_in_a_local_run_are_named(
    write_manifest: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"retry__maxAttempts": 1, "cluster__worker": {"memory": "1Gi"}, "storage": {"region": "eu-1"}}
    assert call("validate", write_manifest(**changes)) == 0
    warnings = capsys.readouterr().err
    for field in ("spec.retry.maxAttempts", "spec.cluster.worker.memory", "spec.storage.region"):
        assert field in warnings


def test_cpus_are_a_quantity(write_manifest: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("validate", write_manifest(cluster__worker={"cpus": "1.5m"})) == 0


@pytest.mark.slow
def test_ledger_exits_with_1_if_edited_and_2_if_missing(
    runner: Any, write_manifest: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("ledger", str(tmp_path)) == 2
    call("run", write_manifest(), "--output-dir", str(tmp_path / "out"))
    path = tmp_path / "out" / "ledger.jsonl"
    path.write_text(path.read_text().replace("claims-triage", "claims-other"))
    capsys.readouterr()
    assert call("ledger", str(tmp_path / "out")) == 1
    assert "was edited" in capsys.readouterr().err


def test_text_in_a_ledger_imitates_no_line_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = {"kind": "open", "number": 1, "previous": "0" * 64, "spec": {"jobName": "x\x1b[2K\nforged"}}
    entry = {**body, "hash": hashlib.sha256(canonical_json(body)).hexdigest()}
    (tmp_path / "ledger.jsonl").write_bytes(canonical_json(entry) + b"\n")
    assert call("ledger", str(tmp_path)) == 1
    printed = capsys.readouterr().err
    assert "forged" in printed and printed.count("\n") == 1 and "\x1b" not in printed


def test_help_needs_neither_torch_nor_ray() -> None:
    code = (
        "import sys\nfrom tensorguard.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "sys.exit(bool({'torch', 'ray', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("verb", ["run", "validate", "inspect", "account", "ledger", "keygen", "verify"])
def test_help_of_a_verb_explains_every_option_with_examples(verb: str) -> None:
    [subparsers] = [action.choices for action in command_parser()._actions if isinstance(action.choices, dict)]
    parser = subparsers[verb]
    assert all(action.help for action in parser._actions)
    assert parser.description
    assert "examples:" in parser.epilog
    assert f"  tensafe {verb} " in parser.epilog
    assert "Exit codes: 0 " in parser.epilog
