"""`tensafe verify`: check a published checkpoint, or an audit log, on any machine, without the job that made it.

In: a folder or URI, the signer's key, and the ledger and the audit log, where there are any. Out: what was checked and
what was not, or the one reason why it is not verified and the file that shows it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorguard.cli.arguments import Subparsers, identity_file
from tensorguard.cli.exit_codes import FAILED, INVALID, SUCCEEDED, CommandError
from tensorguard.cli.wording import steps_text
from tensorguard.signing.keys import IDENTITY_VARIABLE

if TYPE_CHECKING:
    from tensorguard.signing.trust import Trust
    from tensorguard.verification.audit_logs import AuditReport
    from tensorguard.verification.checkpoint import Report
    from tensorguard.verification.ledgers import LedgerHistory

_EPILOG = """\
examples:
  tensafe verify adapter --public-key signer.pub.pem
  tensafe verify s3://models/claims/final --public-key signer.pub.pem
  tensafe verify s3://models/claims/final --public-key signer.pub.pem --output-dir claims
  tensafe verify adapter --certificate-chain authority.pem
  tensafe verify adapter --certificate-identity release@clinic.example \\
      --certificate-oidc-issuer https://login.clinic.example --trust-config sigstore.json
  tensafe verify runs/first/checkpoints/final --ledger runs/first
  tensafe verify s3://models/claims/final --public-key signer.pub.pem --ledger kubernetes -n clinic
  tensafe verify adapter --public-key signer.pub.pem --identity age-identity.txt     its weights are encrypted
  tensafe verify adapter --public-key signer.pub.pem -o json | jq .epsilon
  tensafe verify --audit-log runs/first --ledger runs/first
  tensafe verify s3://models/claims/final --public-key signer.pub.pem --audit-log s3://models/claims/audit-UID

What is checked: each file against its digest, and that no file was added or is missing; the signature over all files;
that the statement is about this adapter; every ε in it, computed again by dp-accounting; with --ledger the chain of the
ledger, and that it records this checkpoint, as the newest of its name, with all of its charges. With --audit-log each
line follows from the one before; with --ledger too, the log has every write of the ledger, in order, and no other; with
DIR too, the statement names a line of the log, and a later line records the publication.

Encrypted weights are checked as they are stored. With --identity they are also decrypted, in memory only, and compared
with the statement.

Take the public key from the signer, not from the place of the adapter. Without a key, the signature shows only that
nothing was changed since some key signed it. The first line is then "consistent, but nothing shows who made it", and
the exit code is 0 all the same: a script passes a key. What was not checked is printed.

A file in a bucket may be replaced after it was verified. --output-dir writes the verified bytes into a new folder, or
nothing where a check fails: load that folder. It is left as it is where it has exactly these files already; any other
content is an error (exit code 2). A key accepts every checkpoint that its owner signed; --digest accepts one alone.

`model_signing verify key --signature DIR/model.sig --public_key signer.pub.pem DIR` checks the files alone, without
this project. In S3, the credentials and the endpoint come from the environment (AWS_ENDPOINT_URL_S3).

Exit codes: 0 no check failed; 1 not verified: the reason is printed, with the file or the line; 2 no verdict: an
argument is wrong, a key or the storage cannot be read, or --output-dir cannot be written.
"""
_KUBERNETES = "kubernetes"
_NO_TRUST = "consistent, but nothing shows who made it"


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "verify",
        help="check an adapter: its files, who signed it, its ε, its audit log",
        description="Check a published checkpoint: its files, signature, privacy claim, ledger and audit log.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "place",
        metavar="DIR|URI",
        nargs="?",
        help="the folder of the checkpoint, such as s3://models/claims/final; without it, --audit-log alone is checked",
    )
    signer = parser.add_mutually_exclusive_group()
    signer.add_argument(
        "--public-key", metavar="FILE", type=Path, help="the signer's public key (signing-key.pub.pem), which you trust"
    )
    signer.add_argument(
        "--certificate-chain",
        metavar="FILE",
        type=Path,
        help="certificates that you trust, as PEM: one of them must vouch for the signer's certificate",
    )
    signer.add_argument(
        "--certificate-identity",
        metavar="NAME",
        help="the e-mail address or URI of the signer, who signed with Sigstore: needs --certificate-oidc-issuer and "
        "--trust-config",
    )
    parser.add_argument(
        "--certificate-oidc-issuer", metavar="URL", help="the OpenID provider that vouches for --certificate-identity"
    )
    parser.add_argument(
        "--trust-config",
        metavar="FILE",
        type=Path,
        help="the trust configuration (JSON) of the Sigstore instance that issued the signer's certificate",
    )
    parser.add_argument(
        "--digest",
        metavar="sha256:HEX",
        type=_digest,
        help="accept only the checkpoint with this digest, which `tensafe verify` prints",
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        type=Path,
        help="write the verified bytes into this new folder, once every check has succeeded",
    )
    parser.add_argument(
        "--ledger",
        metavar=f"DIR|{_KUBERNETES}",
        help="compare with the ledger in this folder of a run, or with the PrivacyLedger in the cluster",
    )
    parser.add_argument(
        "--audit-log",
        metavar="FILE|URI",
        help="check this audit log: the audit.jsonl of a run's folder, or audit-UID beside the checkpoints",
    )
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        help=f"namespace of the ledger, with --ledger {_KUBERNETES} (default: that of the current context)",
    )
    parser.add_argument(
        "--identity",
        metavar="FILE",
        type=Path,
        help="decrypt encrypted weights with this identity, and compare them with the statement (default: "
        f"{IDENTITY_VARIABLE}, else they are not decrypted)",
    )
    parser.add_argument(
        "-o", dest="output", choices=("text", "json"), default="text", help="text (default), or json for programs"
    )
    parser.set_defaults(handler=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from tensafe_api.sanitize import clean
    from tensorguard.audit_log.line_files import AuditLogUnwritable
    from tensorguard.checkpoint.encryption import read_identities
    from tensorguard.checkpoint.store import CheckpointError
    from tensorguard.signing.base import KeyUnusable
    from tensorguard.storage import without_a_job
    from tensorguard.verification.audit_logs import verify_audit_log
    from tensorguard.verification.checkpoint import verify_checkpoint
    from tensorguard.verification.errors import NotVerified

    _check_arguments(arguments)
    try:
        trust, ledger, log = _trust(arguments), _ledger(arguments), arguments.audit_log
        identity = identity_file(arguments)
        identities = read_identities(identity) if identity is not None else None
        report = None if arguments.place is None else verify_checkpoint(arguments.place, trust, ledger, identities)
        if report is not None:
            _check_digest(report, arguments.digest)
        audit = None if log is None else verify_audit_log(log, ledger, report)
    except NotVerified as error:
        if arguments.output == "json":
            print(json.dumps({"verified": False, "file": error.file, "reason": error.problem}, indent=2))
        print(clean(f"not verified: {error}"), file=sys.stderr)
        return FAILED
    except (AuditLogUnwritable, CheckpointError, KeyUnusable, ImportError, ValueError) as error:
        raise CommandError(clean(f"tensafe verify: {without_a_job(error)}"), INVALID) from error
    if arguments.output_dir is not None and report is not None:
        _write_copy(arguments.output_dir, report)
    if arguments.output == "json":
        figures = {"verified": True, **(_figures(report, arguments) if report else {})}
        figures |= {"auditLog": _audit_figures(audit)} if audit else {}
        print(json.dumps(figures, indent=2))
    else:
        lines = [*(_as_text(report, arguments) if report else ()), *(_audit_as_text(audit) if audit else ())]
        print("\n".join(clean(line) for line in lines))
    return SUCCEEDED


def _check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse options that would have no effect beside the others, and a copy in the checkpoint itself."""
    if arguments.namespace is not None and arguments.ledger != _KUBERNETES:
        raise CommandError(f"tensafe verify: -n names the namespace of a ledger: add --ledger {_KUBERNETES}", INVALID)
    if arguments.place is not None:
        copy: Path | None = arguments.output_dir
        local = "://" not in arguments.place
        if local and copy is not None and Path(arguments.place).resolve() in copy.resolve().parents:
            raise CommandError(f"tensafe verify: {copy} is in the checkpoint: choose a folder outside", INVALID)
        return
    if arguments.audit_log is None:
        raise CommandError("tensafe verify: name the folder of a checkpoint, or an --audit-log", INVALID)
    for name in ("public_key", "certificate_chain", "certificate_identity", "digest", "output_dir", "identity"):
        if getattr(arguments, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise CommandError(f"tensafe verify: {option} is about a checkpoint: name its folder", INVALID)


def _digest(text: str) -> str:
    if not re.fullmatch("sha256:[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(
            f'"{text}" is not a digest: copy the line "digest" that `tensafe verify` prints'
        )
    return text


def _write_copy(directory: Path, report: Report) -> None:
    from tensorguard.verification.verified_copy import write_copy

    try:
        write_copy(directory, report.files)
    except OSError as error:
        raise CommandError(f"tensafe verify: {directory} is not written: {error.strerror}", INVALID) from error


def _check_digest(report: Report, expected: str | None) -> None:
    """Refuse another checkpoint than the expected one; None: any."""
    from tensorguard.checkpoint.store import MANIFEST
    from tensorguard.verification.errors import NotVerified

    if expected is None:
        return
    if report.digest != expected:
        raise NotVerified(MANIFEST, f"has the digest {report.digest}: this is not the checkpoint that --digest names")
    report.checked.append("its digest is that of --digest")


def _trust(arguments: argparse.Namespace) -> Trust:
    from tensorguard.signing.keys import read_certificates, read_public_key
    from tensorguard.signing.trust import TrustedCertificates, TrustedIdentity, TrustedKey

    rest = (arguments.certificate_oidc_issuer, arguments.trust_config)
    if arguments.certificate_identity is None and any(rest):
        raise ValueError("--certificate-oidc-issuer and --trust-config need --certificate-identity")
    if arguments.public_key is not None:
        return TrustedKey(read_public_key(arguments.public_key))
    if arguments.certificate_chain is not None:
        read_certificates(arguments.certificate_chain)
        return TrustedCertificates(arguments.certificate_chain)
    if arguments.certificate_identity is not None:
        from tensorguard.signing.sigstore import read_instance

        if not all(rest):
            raise ValueError("--certificate-identity needs --certificate-oidc-issuer and --trust-config")
        read_instance(arguments.trust_config)
        return TrustedIdentity(arguments.certificate_identity, *rest)
    return None


def _ledger(arguments: argparse.Namespace) -> Callable[[str], LedgerHistory] | None:
    """How to find the ledger of a job by its UID; None where none is compared."""
    from tensorguard.verification.ledgers import find_cluster_ledger, read_file_ledger

    if arguments.ledger is None:
        return None
    if arguments.ledger != _KUBERNETES:
        return lambda uid: read_file_ledger(Path(arguments.ledger))
    try:
        from kubernetes import client, config
    except ImportError:
        raise ValueError(f"--ledger {_KUBERNETES}: the package kubernetes is missing: pip install kubernetes") from None
    try:
        config.load_kube_config()
        _, context = config.list_kube_config_contexts()
    except config.ConfigException as error:
        raise ValueError(f"--ledger {_KUBERNETES}: {error}") from error
    namespace = arguments.namespace or context["context"].get("namespace") or "default"
    return lambda uid: find_cluster_ledger(client.CustomObjectsApi(), namespace, uid)


def _figures(report: Report, arguments: argparse.Namespace) -> dict[str, Any]:
    claim, job = report.statement["claim"], report.statement["job"]
    return {
        "uri": report.uri,
        "checkpoint": report.name,
        "digest": report.digest,
        "copy": None if arguments.output_dir is None else str(arguments.output_dir),
        "signer": report.signer,
        "signerTrusted": report.trusted,
        "job": job["name"],
        "jobUID": job["uid"],
        "step": job["step"],
        "stepsPlanned": report.statement["spent"]["stepsPlanned"],
        "epsilon": claim["epsilon"],
        "delta": claim["delta"],
        "epsilonSpent": report.statement["spent"]["epsilon"],
        "unit": claim["unit"],
        "adjacency": claim["adjacency"],
        "checked": report.checked,
        "notChecked": report.not_checked,
    }


def _audit_figures(audit: AuditReport) -> dict[str, Any]:
    return {
        "place": audit.name,
        "job": audit.job,
        "jobUID": audit.job_uid,
        "entries": audit.entries,
        "head": audit.head,
        "stepsCharged": audit.steps_charged,
        "checked": audit.checked,
        "notChecked": audit.not_checked,
    }


def _as_text(report: Report, arguments: argparse.Namespace) -> list[str]:
    figures = _figures(report, arguments)
    head = (
        f"{'verified' if report.trusted else _NO_TRUST}: {figures['job']}, "
        f"step {figures['step']} of {figures['stepsPlanned']}, "
        f"({figures['epsilon']}, {figures['delta']})-differential privacy of each {figures['unit'].lower()}"
    )
    signer = "not signed" if report.signer is None else report.signer + ("" if report.trusted else " (not checked)")
    claim, spent = report.statement["claim"], report.statement["spent"]
    earlier = sum(each["steps"] for each in report.statement["mechanism"].get("earlierSteps", ()))
    figures_of_claim = (
        f"  claim   ε {claim['epsilon']} at δ {claim['delta']}, of {steps_text(claim['steps'], '', earlier)}; "
        f"ε {spent['epsilon']} spent, of {steps_text(spent['stepsCharged'], 'charged', earlier)}"
    )
    lines = [head, figures_of_claim]
    lines += [f"  place   {report.uri}", f"  digest  {report.digest}", f"  signer  {signer}"]
    lines += [f"  copy    {figures['copy']}"] if figures["copy"] else []
    return [*lines, *_checks(report.checked, report.not_checked)]


def _audit_as_text(audit: AuditReport) -> list[str]:
    head = (
        f"verified: the audit log of {audit.job}, {audit.entries} lines, {steps_text(audit.steps_charged, 'charged')}"
    )
    lines = [head, f"  place   {audit.name}", f"  head    {audit.head}"]
    return [*lines, *_checks(audit.checked, audit.not_checked)]


def _checks(checked: list[str], not_checked: list[str]) -> list[str]:
    lines = ["checked:", *(f"  - {each}" for each in checked)]
    return lines + (["not checked:", *(f"  - {each}" for each in not_checked)] if not_checked else [])
