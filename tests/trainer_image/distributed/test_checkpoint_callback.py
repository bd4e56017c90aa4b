"""`TSSPCheckpointCallback`, a signing key, and encryption, from Python."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorguard.audit_log.places import AUDIT_LOG
from tensorguard.cli.main import main
from tensorguard.distributed import (
    ConfigurationError,
    DistributedDPConfig,
    TenSafeCallback,
    TenSafeTrainer,
    TenSafeTrainingConfig,
    TSSPCheckpointCallback,
)
from tensorguard.signing import keys
from tests.support.trainer.rank_harness import make_model, records

RECORDS = [{"text": f"note {number}", "label": number % 2} for number in range(200)]
Make = Callable[..., TenSafeTrainingConfig]


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(keys.SIGNING_KEY_VARIABLE, raising=False)
    private, public, _ = keys.new_signing_key()
    keys.write_new(tmp_path / "keys", {keys.SIGNING_KEY: (private, 0o600), keys.PUBLIC_KEY: (public.encode(), 0o644)})
    return tmp_path / "keys" / keys.SIGNING_KEY


def test_signing_key_reaches_the_workers(fake: Any, config: Make, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    TenSafeTrainer(config(signing_key=str(key))).fit(RECORDS)
    assert fake.calls[-1]["signing_key"] == key


@pytest.mark.parametrize("uri", ["pkcs11:token=a;object=b?module-path=/usr//m.so", "sigstore:trust-config.json"])
def test_signing_key_may_be_in_a_token_or_an_identity(fake: Any, config: Make, uri: str) -> None:
    TenSafeTrainer(config(signing_key=uri)).fit(RECORDS)
    assert fake.calls[-1]["signing_key"] == uri


def test_environment_names_the_signing_key(fake: Any, config: Make, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(keys.SIGNING_KEY_VARIABLE, str(key))
    TenSafeTrainer(config()).fit(RECORDS)
    assert fake.calls[-1]["signing_key"] == key


def test_callback_asks_for_a_key(config: Make, key: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="sign_checkpoints: there is no key: pass signing_key, or set TENSAFE"):
        TenSafeTrainer(config(), [TSSPCheckpointCallback(tmp_path / "out")])
    trainer = TenSafeTrainer(config(), [TSSPCheckpointCallback(tmp_path / "out", signing_key=key)])
    assert trainer.config == config(signing_key=key)
    unsigned = TenSafeTrainer(config(), [TSSPCheckpointCallback(tmp_path / "out", sign_checkpoints=False)])
    assert unsigned.config == config()


def test_encryption_needs_recipients(config: Make, tmp_path: Path) -> None:
    callback = TSSPCheckpointCallback(tmp_path / "out", sign_checkpoints=False, encrypt_weights=True)
    with pytest.raises(ConfigurationError, match=r"encrypt_weights: .*pass recipients"):
        TenSafeTrainer(config(), [callback])
    with pytest.raises(ConfigurationError, match="must be a list of recipients"):
        config(encryption_recipients="age1abc")


def test_recipients_are_part_of_the_job_and_the_identity_reaches_a_resume(
    fake: Any, config: Make, tmp_path: Path
) -> None:
    content, recipient = keys.new_identity()
    identity = tmp_path / "identity.txt"
    identity.write_bytes(content)
    callback = TSSPCheckpointCallback(
        tmp_path / "out", sign_checkpoints=False, encrypt_weights=True, recipients=[recipient]
    )
    assert tuple(TenSafeTrainer(config(), [callback]).config.encryption_recipients) == (recipient,)
    TenSafeTrainer(config(encryption_recipients=[recipient], identity=str(identity))).fit(RECORDS)
    assert fake.calls[-1]["job"].spec.checkpoint.encryption.recipients == (recipient,)
    assert fake.calls[-1]["identity"] == identity


def test_environment_names_the_identity(
    fake: Any, config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSAFE_IDENTITY", str(tmp_path / "identity.txt"))
    TenSafeTrainer(config()).fit(RECORDS)
    assert fake.calls[-1]["identity"] == tmp_path / "identity.txt"


def test_recipient_that_is_none_is_refused_with_the_name_of_the_field(config: Make) -> None:
    with pytest.raises(ConfigurationError, match="encryption_recipients"):
        TenSafeTrainer(config(encryption_recipients=["age1abc"])).fit(RECORDS)


@pytest.mark.parametrize("changes", [{"sign_checkpoints": 1}, {"encrypt_weights": "yes"}])
def test_arguments_of_another_type_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(changes))}: must be True or False"):
        TSSPCheckpointCallback(tmp_path, **changes)


def test_folder_with_checkpoints_of_another_run_is_refused(fake: Any, config: Make, tmp_path: Path) -> None:
    (tmp_path / "out" / "final").mkdir(parents=True)
    (tmp_path / "out" / "final" / "manifest.json").write_text('{"files":{}}')
    fake.starts = False
    callback = TSSPCheckpointCallback(tmp_path / "out", sign_checkpoints=False)
    with pytest.raises(ConfigurationError, match="is the checkpoint of another run: choose another folder"):
        TenSafeTrainer(config(), [callback]).fit(RECORDS)


class StopAtStep(TenSafeCallback):
    def __init__(self, step: int) -> None:
        self._at = step

    def on_step(self, trainer, step):
        if step == self._at:
            trainer.stop()


@pytest.mark.ray
@pytest.mark.nightly
def test_checkpoints_of_the_guide_are_signed_copied_and_verified(
    tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With real Ray: a run that is stopped and resumed; then its folders are given to a stranger."""
    monkeypatch.setenv(keys.SIGNING_KEY_VARIABLE, str(key))
    make_model(tmp_path / "model")
    config = TenSafeTrainingConfig(
        model_name=str(tmp_path / "model"),
        num_labels=2,
        checkpoint_dir=tmp_path / "checkpoints",
        checkpoint_frequency=2,
        max_seq_length=16,
        unit_at_least=240,
        per_device_batch_size=10,
        gradient_accumulation_steps=1,
        num_epochs=1,
        dp_config=DistributedDPConfig(target_epsilon=8.0),
    )

    def fit(*callbacks: TenSafeCallback, resume: bool = False) -> Any:
        tssp = TSSPCheckpointCallback(output_dir=tmp_path / "tssp", sign_checkpoints=True)
        trainer = TenSafeTrainer(config=config, callbacks=[tssp, *callbacks])
        return trainer.fit(records(240), resume_from_checkpoint=resume)

    assert fit(StopAtStep(5)).phase == "Suspended"
    result = fit(resume=True)
    assert result.phase == "Succeeded"
    copied = {path.name for path in (tmp_path / "tssp").iterdir()}
    assert "final" in copied and len(copied) > 3
    public = str(key.with_name(keys.PUBLIC_KEY))
    log = result.output_dir / AUDIT_LOG
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events.count("KeyAgreement") == 2 and "Interruption" in events and events[-1] == "End"
    run = shutil.copytree(result.output_dir, tmp_path / "received")
    for name in sorted(copied):
        arguments = ["verify", str(tmp_path / "tssp" / name), "--public-key", public]
        assert main([*arguments, "--ledger", str(run), "--audit-log", str(run / AUDIT_LOG)]) == 0
    assert "not checked" not in capsys.readouterr().out
    assert dataclasses.is_dataclass(config) and config.signing_key is None, "the caller's configuration stays as it was"
