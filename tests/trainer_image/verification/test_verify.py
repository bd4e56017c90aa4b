"""`tensafe verify`: what a stranger is shown of a real checkpoint, and that no change of it is missed."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import known_implementations

from tensafe_api.statement.contents import digest
from tensorguard.checkpoint.store import MANIFEST, CheckpointStore
from tensorguard.cli.main import main
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.signing import keys
from tensorguard.signing.keys import read_public_key, read_signing_key
from tensorguard.signing.signer import ATTESTATION, SIGNATURE, SIGNATURE_FILES, TrustedKey
from tensorguard.storage import without_a_job
from tensorguard.verification.checkpoint import verify_checkpoint
from tensorguard.verification.errors import NotVerified
from tensorguard.verification.ledgers import check_against_ledger, read_file_ledger
from tests.support.programs.s3 import BUCKET, S3
from tests.support.trainer.releases import refused, rewrite_manifest, sign_again, trusted

PAGE = 4096

EARLIER = {"sampleRate": "0.05", "noiseMultiplier": "0.9", "steps": 50}


def test_signed_checkpoint_is_verified(published: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["verify", str(published.final), "--public-key", str(published.key), "--ledger", str(published.run)]) == 0
    )
    printed = capsys.readouterr().out
    statement = json.loads((published.final / "statement.json").read_text())
    assert printed.startswith("verified: tiny, step 4 of 4, ")
    assert f"({statement['claim']['epsilon']}, " in printed
    claim, spent = (statement[part]["epsilon"] for part in ("claim", "spent"))
    assert (
        f"  claim   ε {claim} at δ {statement['claim']['delta']}, of 4 steps; ε {spent} spent, of 4 charged" in printed
    )
    assert read_signing_key(published.private_key).fingerprint in printed
    assert "not checked" not in printed


def test_report_is_readable_by_programs(published: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(published.final), "--public-key", str(published.key), "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["verified"], report["signerTrusted"], report["checkpoint"]) == (True, True, "final")
    assert report["digest"] == digest((published.final / MANIFEST).read_bytes())
    assert [each.split()[0] for each in report["notChecked"]] == ["that"]  # the ledger


def test_folder_may_have_any_other_name(published: Any) -> None:
    moved = published.final.rename(published.final.with_name("my-adapter"))
    report = verify_checkpoint(f"{moved}/", trusted(published))
    assert (report.name, report.trusted) == ("final", True)


def test_without_a_key_the_signer_is_reported_as_not_checked(
    published: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(published.final)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("consistent, but nothing shows who made it: tiny, step 4 of 4, ")
    assert "(not checked)" in printed and "--public-key" in printed and "--certificate-chain" in printed


@pytest.mark.slow
def test_unsigned_checkpoint_is_verified_as_far_as_possible(unsigned: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(unsigned.final), "--ledger", str(unsigned.run)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("consistent, but nothing shows who made it: tiny, ")
    assert "signer  not signed" in printed and "who made it: it is not signed" in printed


def test_unsigned_checkpoint_is_refused_where_a_key_is_given(unsigned: Any) -> None:
    error = refused(unsigned.final, trusted(unsigned))
    assert (error.file, error.problem) == (ATTESTATION, "is missing, so the checkpoint is not signed")


def damages(content: bytes, generator: random.Random) -> Iterator[tuple[str, bytes]]:
    """In each page of a file: a byte with one bit flipped, a byte cut, and a byte added, at random offsets."""
    for start in range(0, len(content), PAGE):
        end = min(start + PAGE, len(content))
        flipped, cut, added = (generator.randrange(start, end) for _ in range(3))
        other = bytes([content[flipped] ^ 1 << generator.randrange(8)])
        yield f"flipped at {flipped}", content[:flipped] + other + content[flipped + 1 :]
        yield f"cut at {cut}", content[:cut] + content[cut + 1 :]
        yield f"added at {added}", content[:added] + bytes([generator.randrange(256)]) + content[added:]
    yield "cut at the end", content[:-1]
    yield "added at the end", content + b"\n"


@pytest.mark.slow
@pytest.mark.parametrize("with_key", [True, False], ids=["with the key", "without a key"])
def test_every_changed_byte_of_every_file_is_noticed(published: Any, with_key: bool) -> None:
    generator, trust = random.Random(7), trusted(published) if with_key else None
    count = 0
    for path in sorted(published.final.iterdir()):
        content = path.read_bytes()
        for what, damaged in (each for _ in range(12) for each in damages(content, generator)):
            path.write_bytes(damaged)
            with pytest.raises(NotVerified):
                verify_checkpoint(str(published.final), trust)
                pytest.fail(f"{path.name}: {what} was not noticed")
            count += 1
        path.write_bytes(content)
    verify_checkpoint(str(published.final), trust)
    assert count > 400


@pytest.mark.slow
@pytest.mark.parametrize("file", SIGNATURE_FILES)
def test_every_byte_of_a_signature_file_counts(published: Any, file: str) -> None:
    """Also those that no signature covers, such as spaces, unknown fields and unused bits of base64."""
    path, trust = published.final / file, trusted(published)
    content = path.read_bytes()
    for offset in range(len(content)):
        damaged = bytearray(content)
        damaged[offset] ^= 1 << (0, 5)[offset % 2]  # 5 changes the case of a letter
        path.write_bytes(damaged)
        with pytest.raises(NotVerified):
            verify_checkpoint(str(published.final), trust)
            pytest.fail(f"a changed bit of byte {offset} was not noticed")


def test_changed_file_is_named(published: Any) -> None:
    for path in sorted(published.final.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        error = refused(published.final, trusted(published))
        assert error.file in (path.name, SIGNATURE if path.name in (MANIFEST, ATTESTATION) else path.name)
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["extra", ".gitattributes", "adapter_model.bin", "sub/extra"])
def test_added_file_is_noticed(published: Any, name: str) -> None:
    path = published.final / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    assert refused(published.final, trusted(published)).file == name.split("/")[0]


def test_link_is_noticed(published: Any, tmp_path: Path) -> None:
    path = published.final / "adapter_model.safetensors"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert refused(published.final, trusted(published)).file == path.name


def test_missing_file_is_named(published: Any) -> None:
    for path in sorted(published.final.iterdir()):
        content = path.read_bytes()
        path.unlink()
        assert refused(published.final, trusted(published)).file == path.name
        path.write_bytes(content)


def test_checkpoint_signed_with_another_key_is_refused(published: Any, make_other_key: Callable[[], Path]) -> None:
    other = make_other_key()
    sign_again(published.final, other)
    error = refused(published.final, trusted(published))
    assert error.file == SIGNATURE and "was signed by another key" in error.problem
    verify_checkpoint(str(published.final), TrustedKey(read_public_key(other.with_name(keys.PUBLIC_KEY))))


def test_key_that_only_claims_to_be_ours_is_refused(published: Any, make_other_key: Callable[[], Path]) -> None:
    """The forger names our public key in the claim, and signs with another one."""
    from tensorguard.signing.envelope import sign_statement, statement_in

    other = read_signing_key(make_other_key())
    sign_again(published.final, published.private_key)
    claim = statement_in((published.final / ATTESTATION).read_bytes())
    (published.final / ATTESTATION).write_bytes(sign_statement(other, claim))
    refused(published.final, trusted(published))


def test_claim_that_our_key_did_not_sign_is_refused(published: Any, make_other_key: Callable[[], Path]) -> None:
    """Other tools read the claim alone, so its own signature must hold, even where ours is over all files."""
    from tensorguard.signing.envelope import sign_statement, statement_in
    from tensorguard.signing.model_signature import sign_digests

    ours = read_signing_key(published.private_key)
    claim = statement_in((published.final / ATTESTATION).read_bytes())
    forged = sign_statement(read_signing_key(make_other_key()), claim)
    (published.final / ATTESTATION).write_bytes(forged)
    store = CheckpointStore(str(published.final.parent))
    signature = sign_digests(ours, "final", {**store.listing("final"), ATTESTATION: digest(forged)})
    (published.final / SIGNATURE).write_bytes(signature)
    error = refused(published.final, trusted(published))
    assert (error.file, error.problem) == (ATTESTATION, "has a wrong signature")


def test_changed_adapter_with_the_old_signature_is_refused(published: Any) -> None:
    path = published.final / "adapter_model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    rewrite_manifest(published.final)
    assert refused(published.final, trusted(published)).file == path.name


def test_older_checkpoint_under_a_newer_name_is_refused(published: Any) -> None:
    shutil.rmtree(published.final)
    shutil.copytree(published.older, published.final)
    error = refused(published.final, trusted(published))
    assert error.problem == "this is the checkpoint step-000002-a1i1, under the name final"


def test_older_checkpoint_under_a_newer_name_shows_in_the_ledger(
    unsigned: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(unsigned.final)
    shutil.copytree(unsigned.older, unsigned.final)
    assert main(["verify", str(unsigned.final), "--ledger", str(unsigned.run)]) == 1
    assert "this is the checkpoint step-000002-a1i1, under the name final" in capsys.readouterr().err


def test_removed_signature_shows_in_the_ledger(published: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for file in SIGNATURE_FILES:
        (published.final / file).unlink()
    assert main(["verify", str(published.final)]) == 0  # nothing else records that it was signed
    assert main(["verify", str(published.final), "--ledger", str(published.run)]) == 1
    assert "and it is signed by no key" in capsys.readouterr().err


def test_one_signature_file_of_two_is_refused(published: Any) -> None:
    (published.final / SIGNATURE).unlink()
    assert refused(published.final).file == SIGNATURE


def test_edited_or_cut_ledger_is_refused(published: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = published.run / LEDGER
    lines = path.read_bytes().splitlines(keepends=True)
    for content in (
        b"".join(lines[:-3]),
        b"".join(lines).replace(b'"steps":', b'"steps": ', 1),
        b"[" * 100_000 + b"\n",
        b"",
    ):
        path.write_bytes(content)
        assert main(["verify", str(published.final), "--ledger", str(published.run)]) == 1
        assert capsys.readouterr().err.startswith("not verified: ledger: ")


def test_ledger_of_another_job_is_refused(
    published: Any, trained_unsigned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(published.final), "--ledger", str(trained_unsigned)]) == 1
    assert "not verified: ledger: " in capsys.readouterr().err


def test_jobs_of_the_same_name_are_distinguished_by_their_uid(published: Any) -> None:
    document = json.loads((published.final / "statement.json").read_text())
    document["job"]["uid"] = "other-uid"
    with pytest.raises(NotVerified, match=r"job tiny \(UID tiny-uid\), and the statement is of tiny \(UID other-uid\)"):
        check_against_ledger(read_file_ledger(published.run), document, "", "", None)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("mechanism.noiseMultiplier", "300", r"another mechanism than the ledger \(noiseMultiplier\)"),
        ("mechanism.earlierSteps", [EARLIER], r"another mechanism than the ledger \(earlierSteps\)"),
        ("job.name", "another", "job.name is another, and the ledger has tiny"),
        ("claim.delta", "0.9", "claim.delta is 0.9, and the ledger has "),
        ("claim.targetEpsilon", "100", "claim.targetEpsilon is 100, and the ledger has "),
        ("spent.stepsPlanned", 5, "spent.stepsPlanned is 5, and the ledger has 4"),
        ("accounting.accountant", "RDP", "accounting.accountant is RDP, and the ledger has PLD"),
        ("accounting.unitAtLeast", 10**9, "accounting.unitAtLeast is 1000000000, and the ledger has "),
        ("hashes.dataset", "keyed:another", "hashes.dataset is keyed:another, and the ledger has keyed:"),
        ("hashes.dataset", "not known", "hashes.dataset is not known, and the ledger has keyed:"),
    ],
)
def test_statement_with_other_facts_than_the_ledger_is_refused(
    published: Any, path: str, value: object, why: str
) -> None:
    document = json.loads((published.final / "statement.json").read_text())
    ledger = read_file_ledger(published.run)
    recorded = ledger.last.checkpoints[-1]
    record = (recorded.digest, recorded.statement_digest, recorded.signer)
    check_against_ledger(ledger, document, *record)
    block, name = path.split(".")
    document[block][name] = value
    with pytest.raises(NotVerified, match=why):
        check_against_ledger(ledger, document, *record)


def test_failure_is_readable_by_programs(published: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (published.final / "extra").write_text("x")
    assert main(["verify", str(published.final), "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "verified": False,
        "file": "extra",
        "reason": "is in no manifest: it was added",
    }


def test_arguments_that_cannot_be_used_are_no_verdict(
    published: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--public-key", "--certificate-chain"):
        assert main(["verify", str(published.final), option, str(tmp_path / "absent.pem")]) == 2
        assert "absent.pem cannot be read" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "nowhere")]) == 1
    assert "is no checkpoint" in capsys.readouterr().err


def test_wrong_paths_are_answered_with_the_right_one(
    published: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(published.run)]) == 1
    assert "pass the folder with this file, such as runs/first/checkpoints/final" in capsys.readouterr().err
    for wrong in (tmp_path / "nowhere", published.run / LEDGER):
        assert main(["verify", str(published.final), "--ledger", str(wrong)]) == 1
        assert f"{wrong} has no {LEDGER}: pass the folder of the run to --ledger" in capsys.readouterr().err


def test_storage_that_cannot_be_read_is_explained_without_a_job(
    published: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.find", refuse)
    assert main(["verify", str(published.final)]) == 2
    assert capsys.readouterr().err == f"tensafe verify: {published.final.as_uri()} cannot be read: permission denied\n"
    assert without_a_job("no answer: check spec.storage.endpoint") == "no answer: check AWS_ENDPOINT_URL"


@pytest.mark.parametrize(("protocol", "package"), [("s3", "s3fs"), ("gs", "gcsfs")])
def test_missing_package_of_a_storage_is_named(protocol: str, package: str) -> None:
    problem = without_a_job(known_implementations[protocol]["err"])
    assert problem == f"the package {package} is missing: pip install {package}, where tensafe is installed"


def test_namespace_without_a_cluster_is_refused(published: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for ledger in ([], ["--ledger", str(published.run)]):
        assert main(["verify", str(published.final), *ledger, "-n", "clinic"]) == 2
        assert "add --ledger kubernetes" in capsys.readouterr().err


@pytest.mark.slow
def test_checkpoint_in_a_bucket_is_verified_where_it_is(s3_bucket: S3, published: Any) -> None:
    files: Mapping[str, bytes] = {path.name: path.read_bytes() for path in published.final.iterdir()}
    store = CheckpointStore(f"s3://{BUCKET}/claims")
    for name, content in files.items():
        store._fs.pipe_file(f"{BUCKET}/claims/final/{name}", content)
    report = verify_checkpoint(f"s3://{BUCKET}/claims/final", trusted(published))
    assert (report.trusted, report.uri) == (True, f"s3://{BUCKET}/claims/final")
    store._fs.pipe_file(f"{BUCKET}/claims/final/sub/extra", b"x")
    with pytest.raises(NotVerified, match="sub"):
        verify_checkpoint(f"s3://{BUCKET}/claims/final", trusted(published))
