"""Nothing that a run on a laptop prints or leaves behind has a record, a key or a token.

Two places may have them, and are private: the run's private folder, and its working folder there with the shards.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tensorguard.cli.main import main
from tensorguard.signing.keys import new_signing_key, read_signing_key
from tests.support.planted_secrets import PlantedSecrets
from tests.support.soft_hsm import SoftHSM
from tests.support.trainer.command import TIMEOUT_SECONDS, RunCommand, write_job

pytestmark = pytest.mark.ray

TOKENS = ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "MLFLOW_TRACKING_TOKEN", "RAY_AUTH_TOKEN", "WANDB_API_KEY")


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlantedSecrets:
    """A job in `tmp_path`, and secrets in its records (also in unusable ones), its signing key and the environment."""
    write_job(tmp_path)
    manifest = tmp_path / "job.yaml"
    manifest.write_text(manifest.read_text().replace("  dataset:\n", "  dataset:\n    unusable: Skip\n"))
    planted = PlantedSecrets({"a record": "zq9patientkx", "an unusable record": "zq9brokenkx0"})
    data = tmp_path / "data.jsonl"
    notes = [json.loads(line) for line in data.read_text().splitlines()]
    marked = [{**note, "text": f"zq9patientkx {note['text']}"} for note in notes]
    marked += [{"text": "zq9brokenkx0", "label": "zq9brokenkx0"}, {"text": ["zq9brokenkx0"], "label": 1}]
    data.write_text("".join(f"{json.dumps(each)}\n" for each in marked))
    private, _, _ = new_signing_key()
    key = tmp_path / "signing-key.pem"
    key.write_bytes(private)
    key.chmod(0o600)
    monkeypatch.setenv("TENSAFE_SIGNING_KEY", str(key))
    number = load_pem_private_key(private, None).private_numbers().private_value  # type: ignore[union-attr]
    planted.add("the signing key", number.to_bytes(32, "big"))
    for line in private.decode().splitlines()[1:-1]:
        planted.add("the signing key", line)
    for name in TOKENS:
        value = f"zq9{name.lower()}kx{'0' * 40}"
        planted.add(f"the token {name}", value)
        monkeypatch.setenv(name, value)
    return planted


def test_run_leaves_no_secret_in_output_logs_or_files(
    secrets: PlantedSecrets, tmp_path: Path, temporary: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = RunCommand(tmp_path, temporary, resume=False)
    command.wait_for_steps(14)
    out = command.output
    (key,) = Path(f"{out}.private").glob("job-*.key")
    secrets.add("the job key", key.read_bytes())

    # While it trains: Ray's session is there, with the logs of all its processes.
    session = [path for path in temporary.rglob("*") if path.is_file()]
    assert any(path.name.startswith("worker-") for path in session), "the logs of Ray's workers"
    assert secrets.found_below(temporary) == []
    limits = [(Path(f"/proc/{each}") / "limits").read_text() for each in ray_processes(temporary)]
    assert limits
    assert all(re.search(r"Max core file size +0 +0 ", each) for each in limits), "core dumps are switched off"

    # After Ctrl-C: what it printed, the run's folder, and the checkpoints with their statements.
    code, printed = command.interrupt()
    assert code == 130, command.stderr_text()
    (checkpoint,) = sorted((tmp_path / "checkpoints").glob("step-*"))[-1:]
    assert (checkpoint / "model.sig").exists()
    page = out / "statement.html"
    assert main(["statement", str(checkpoint), "--format", "html", "-o", str(page)]) == 0
    assert main(["verify", str(checkpoint), "--ledger", str(out), "-o", "json"]) == 0
    assert main(["ledger", str(out)]) == 0
    shown = capfd.readouterr()
    found = [
        *secrets.found_in("stdout of the run", printed),
        *secrets.found_in("stderr of the run", Path(command.stderr.name).read_bytes()),
        *secrets.found_in("output of the other verbs", shown.out + shown.err),
        *secrets.found_below(out),
        *secrets.found_below(tmp_path / "checkpoints"),
        *secrets.found_below(temporary),
    ]
    assert found == []


def test_run_with_a_key_in_a_token_shows_the_pin_nowhere_and_resumes(
    soft_hsm: SoftHSM,
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    write_job(tmp_path)
    soft_hsm.add_key()
    planted = PlantedSecrets({"the PIN": SoftHSM.PIN})
    monkeypatch.setenv("TENSAFE_SIGNING_KEY", soft_hsm.uri())
    command = RunCommand(tmp_path, temporary, resume=False)
    command.wait_for_steps(14)
    code, printed = command.interrupt()
    assert code == 130, command.stderr_text()

    resumed = RunCommand(tmp_path, temporary, resume=True)
    job, _ = resumed.process.communicate(timeout=TIMEOUT_SECONDS)
    assert resumed.process.returncode == 0, resumed.stderr_text()
    checkpoints = json.loads(job)["status"]["checkpoints"]
    assert len(checkpoints) > 1
    assert all(each["signed"] for each in checkpoints)

    public = tmp_path / "signer.pub.pem"
    public.write_text(read_signing_key(soft_hsm.uri()).public_pem)
    final = str(tmp_path / "checkpoints" / "final")
    assert main(["verify", final, "--public-key", str(public), "--ledger", str(command.output)]) == 0
    shown = capfd.readouterr()
    found = [
        *planted.found_in("stdout of the run", printed),
        *planted.found_in("stdout of the resumed run", job),
        *planted.found_in("stderr of both", Path(command.stderr.name).read_bytes()),
        *planted.found_in("output of verify", shown.out + shown.err),
        *planted.found_below(command.output),
        *planted.found_below(Path(f"{command.output}.private")),
        *planted.found_below(tmp_path / "checkpoints"),
        *planted.found_below(temporary),
    ]
    assert found == []


def test_search_finds_what_is_planted(secrets: PlantedSecrets, tmp_path: Path) -> None:
    assert secrets.found_below(tmp_path / "nowhere") == []
    found = secrets.found_below(tmp_path)
    assert {line.split(" is in ")[0] for line in found} == {"a record", "an unusable record", "the signing key"}


def ray_processes(temporary: Path) -> list[int]:
    """The processes of Ray with a session in this folder: its servers, and the workers that they started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"TMPDIR={temporary}\0".encode() in environment:
            found.append(int(entry.name))
    return found
