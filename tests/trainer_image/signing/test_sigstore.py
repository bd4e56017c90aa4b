"""Checkpoints that an identity signs, with the services of a private Sigstore instance."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensafe_api.statement.contents import canonical_json, digest
from tensorguard.signing import signer
from tensorguard.signing.base import KeyUnavailable, KeyUnusable
from tensorguard.signing.keys import key_location, read_signing_key
from tensorguard.signing.signer import (
    ATTESTATION,
    SIGNATURE,
    SignatureInvalid,
    check_signature,
    sign_checkpoint,
    signer_in,
)
from tensorguard.signing.trust import Trust, TrustedCertificates, TrustedIdentity
from tests.support.programs.sigstore import IDENTITY, Sigstore
from tests.support.trainer.signed_files import DIGESTS, FILES, STATEMENT

pytestmark = pytest.mark.nightly


def location(instance: Sigstore) -> str:
    return f"sigstore:{instance.trust_config}"


def trusted(instance: Sigstore, name: str = IDENTITY, issuer: str = "") -> TrustedIdentity:
    return TrustedIdentity(name, issuer or instance.provider.url, instance.trust_config)


def check(files: dict[str, bytes], trust: Trust, **changed: str) -> str:
    return check_signature({**DIGESTS, **changed}, STATEMENT, files, trust).fingerprint


@pytest.fixture(scope="module")
def signed(sigstore_instance: Sigstore) -> dict[str, bytes]:
    """The two files of a checkpoint that the usual identity has signed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIGSTORE_ID_TOKEN", sigstore_instance.provider.token())
        return sign_checkpoint(read_signing_key(location(sigstore_instance)), "final", DIGESTS, STATEMENT)


def test_identity_that_signed_is_trusted_and_no_other(sigstore_instance: Sigstore, signed: dict[str, bytes]) -> None:
    assert check(signed, trusted(sigstore_instance)) == signer_in(signed)
    for trust in (
        trusted(sigstore_instance, name="other@clinic.example"),
        trusted(sigstore_instance, issuer="http://other.example"),
    ):
        with pytest.raises(SignatureInvalid, match=f"does not show that {trust.name} signed it") as error:
            check(signed, trust)
        assert error.value.file == SIGNATURE


def test_identity_of_another_instance_is_not_trusted(
    sigstore_instance: Sigstore, signed: dict[str, bytes], tmp_path: Path
) -> None:
    """It differs from ours in one part at a time: the authority, the certificate log, the log, the time stamps."""
    ours = json.loads(sigstore_instance.trust_config.read_text())
    for part in ("certificateAuthorities", "ctlogs", "tlogs", "timestampAuthorities"):
        root = dict(ours["trustedRoot"])
        if "Authorities" in part:
            other = {"certificateAuthorities", "timestampAuthorities"} - {part}
            root[part] = root[other.pop()]
        else:
            (other_log,) = {"ctlogs", "tlogs"} - {part}
            root[part] = root[other_log]
        path = tmp_path / f"{part}.json"
        path.write_text(json.dumps({**ours, "trustedRoot": root}))
        with pytest.raises(SignatureInvalid, match="does not show that"):
            check(signed, TrustedIdentity(IDENTITY, sigstore_instance.provider.url, path))


def test_changed_files_and_an_exchanged_claim_are_refused(
    sigstore_instance: Sigstore, signed: dict[str, bytes], identity: Sigstore
) -> None:
    trust = trusted(sigstore_instance)
    with pytest.raises(SignatureInvalid, match="is not what was signed"):
        check(signed, trust, **{"manifest.json": digest(b"other")})
    again = sign_checkpoint(read_signing_key(location(identity)), "final", DIGESTS, STATEMENT)
    assert signer_in(again) != signer_in(signed), "each checkpoint has a key of its own"
    for file in (ATTESTATION, SIGNATURE):
        with pytest.raises(SignatureInvalid):
            check({**signed, file: again[file]}, trust)


def test_changed_bytes_of_the_signature_are_noticed(sigstore_instance: Sigstore, signed: dict[str, bytes]) -> None:
    """Sigstore compares neither the name of the log's key nor most of its number, nor some fields of time stamps."""
    content = signed[SIGNATURE]
    material = json.loads(content)["verificationMaterial"]
    (entry,) = material["tlogEntries"]
    (stamp,) = material["timestampVerificationData"]["rfc3161Timestamps"]

    def within(text: str) -> range:
        start = content.index(text.encode())
        return range(start, start + len(text.encode()))

    key = within(entry["logId"]["keyId"]), within("rekor.clinic.example " + entry["logId"]["keyId"][:5])
    unnoticed = []
    for position in range(0, len(content), 7):
        changed = bytearray(content)
        changed[position] ^= 1
        try:
            check({**signed, SIGNATURE: bytes(changed)}, trusted(sigstore_instance))
            unnoticed.append(position)
        except SignatureInvalid:
            pass
    others = [each for each in unnoticed if not any(each in part for part in key)]
    assert all(each in within(stamp["signedTimestamp"]) for each in others)
    assert len(others) <= 8, "of 220 bytes of the time stamp"


@pytest.mark.parametrize(
    "change",
    [
        lambda bundle: bundle["verificationMaterial"].pop("timestampVerificationData"),
        lambda bundle: bundle["verificationMaterial"].update(tlogEntries=[]),
        lambda bundle: bundle["verificationMaterial"]["tlogEntries"][0].update(logIndex="7"),
        lambda bundle: bundle["verificationMaterial"]["tlogEntries"][0].update(integratedTime="1"),
        lambda bundle: bundle.update(more=1),
    ],
    ids=["no time stamp", "no log entry", "another number", "a time", "a field"],
)
def test_signature_in_another_form_is_refused(
    change: Any, sigstore_instance: Sigstore, signed: dict[str, bytes]
) -> None:
    bundle = json.loads(signed[SIGNATURE])
    change(bundle)
    for trust in (None, trusted(sigstore_instance)):
        with pytest.raises(SignatureInvalid, match="was changed"):
            check({**signed, SIGNATURE: canonical_json(bundle)}, trust)


def test_without_an_identity_the_signer_is_not_checked(
    signed: dict[str, bytes], authority: Any, sigstore_instance: Sigstore
) -> None:
    check(signed, None)
    with pytest.raises(SignatureInvalid, match="no certificate of"):
        check(signed, TrustedCertificates(authority.root_file))


def test_key_in_a_file_is_no_identity(sigstore_instance: Sigstore, make_key: Any) -> None:
    files = sign_checkpoint(read_signing_key(make_key() / "signing-key.pem"), "final", DIGESTS, STATEMENT)
    with pytest.raises(SignatureInvalid, match="made with a key, not by an identity"):
        check(files, trusted(sigstore_instance))


def test_command_of_model_signing_verifies_the_folder(
    sigstore_instance: Sigstore, signed: dict[str, bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    for name, content in {**FILES, **signed}.items():
        (folder / name).write_bytes(content)
    command = [Path(sys.executable).with_name("model_signing"), "verify", "sigstore", "--signature", folder / SIGNATURE]
    command += ["--identity", IDENTITY, "--identity_provider", sigstore_instance.provider.url]
    command += ["--trust_config", sigstore_instance.trust_config, folder]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout == "Verification succeeded\n", found.stderr


def test_token_is_read_from_the_environment_as_on_github(
    sigstore_instance: Sigstore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"{sigstore_instance.provider.url}/github?a=b")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "secret")
    assert read_signing_key(location(sigstore_instance)).trust == trusted(sigstore_instance)


def test_what_is_wrong_with_a_token_is_one_sentence_without_it(
    sigstore_instance: Sigstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = sigstore_instance.provider
    forged = f"{provider.token().rpartition('.')[0]}.{provider.token('x@y.example').rpartition('.')[2]}"
    for token, problem, kind in (
        (provider.token(seconds=-60), "the identity token is expired", KeyUnavailable),
        (
            provider.token(audience="other"),
            "the identity token is expired, or not one for the audience",
            KeyUnavailable,
        ),
        ("no token", "the identity token is expired, or not", KeyUnavailable),
        (forged, "the instance did not sign", KeyUnavailable),
        ("", "there is no identity token: set SIGSTORE_ID_TOKEN_FILE", KeyUnusable),
    ):
        monkeypatch.setenv("SIGSTORE_ID_TOKEN", token)
        with pytest.raises(kind) as error:
            read_signing_key(location(sigstore_instance))
        assert problem in str(error.value)
        assert not token or token not in str(error.value)
        assert "\n" not in str(error.value)
    monkeypatch.setenv("SIGSTORE_ID_TOKEN_FILE", str(tmp_path / "absent"))
    with pytest.raises(KeyUnavailable, match="absent, which cannot be read"):
        read_signing_key(location(sigstore_instance))


def test_trust_configuration_must_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert key_location("sigstore:file.json") == f"sigstore:{tmp_path}/file.json"
    with pytest.raises(KeyUnusable, match="cannot be read"):
        read_signing_key(f"sigstore:{tmp_path}/file.json")
    (tmp_path / "file.json").write_text("{}")
    with pytest.raises(KeyUnusable, match="is no trust configuration"):
        read_signing_key(f"sigstore:{tmp_path}/file.json")


def test_log_of_another_version_is_refused(sigstore_instance: Sigstore, tmp_path: Path) -> None:
    found = json.loads(sigstore_instance.trust_config.read_text())
    found["signingConfig"]["rekorTlogUrls"][0]["majorApiVersion"] = 1
    (tmp_path / "old.json").write_text(json.dumps(found))
    with pytest.raises(KeyUnusable, match="it needs Fulcio and a log of Rekor version 2"):
        read_signing_key(f"sigstore:{tmp_path}/old.json")


@pytest.mark.parametrize(
    ("stamps", "problem"),
    [("none", "the instance did not sign"), ("of others", "the new signature cannot be verified")],
)
def test_signature_that_nothing_could_verify_is_not_written(
    stamps: str, problem: str, identity: Sigstore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = json.loads(identity.trust_config.read_text())
    if stamps == "none":
        found["signingConfig"]["tsaUrls"] = []
    else:
        found["trustedRoot"]["timestampAuthorities"] = found["trustedRoot"]["certificateAuthorities"]
    (tmp_path / "other.json").write_text(json.dumps(found))
    key = read_signing_key(f"sigstore:{tmp_path}/other.json")
    monkeypatch.setattr(signer, "RETRY_SECONDS", 0)
    with pytest.raises(KeyUnavailable, match=problem) as error:
        sign_checkpoint(key, "final", DIGESTS, STATEMENT)
    assert error.value.reason is Reason.CHECKPOINT_UNWRITABLE


def test_token_of_another_identity_signs_nothing(identity: Sigstore, monkeypatch: pytest.MonkeyPatch) -> None:
    key = read_signing_key(location(identity))
    monkeypatch.setenv("SIGSTORE_ID_TOKEN", identity.provider.token("other@clinic.example"))
    with pytest.raises(KeyUnusable, match=f"is not that of {IDENTITY}"):
        sign_checkpoint(key, "final", DIGESTS, STATEMENT)
