"""`tensafe verify`: check a published checkpoint on any machine, without the job that made it.

In: a folder or URI, the signer's key, and the ledger, where there is one. Out: what was checked and what was not, or
the one reason why it is not verified and the file that shows it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorguard.cli.arguments import Subparsers
from tensorguard.cli.exit_codes import FAILED, INVALID, SUCCEEDED, CommandError

if TYPE_CHECKING:
    from tensorguard.signing.signer import Trust
    from tensorguard.verification.checkpoint import Report
    from tensorguard.verification.ledgers import LedgerHistory

_EPILOG = """\
examples:
  tensafe verify adapter --public-key signer.pub.pem
  tensafe verify s3://models/claims/final --public-key signer.pub.pem
  tensafe verify s3://models/claims/final --public-key signer.pub.pem --output-dir claims
  tensafe verify adapter --certificate-chain authority.pem
  tensafe verify runs/first/checkpoints/final --ledger runs/first
  tensafe verify s3://models/claims/final --public-key signer.pub.pem --ledger kubernetes -n clinic
  tensafe verify adapter --public-key signer.pub.pem -o json | jq .epsilon

What is checked: each file against its digest, and that no file was added or is missing; the signature over all files;
that the statement is about this adapter; every ε in it, computed again by dp-accounting; with --ledger the chain of the
ledger, and that it records this checkpoint, as the newest of its name, with all of its charges.

Take the public key from the signer, not from the place of the adapter. Without a key, the signature shows only that
nothing was changed since some key signed it. What was not checked is printed.

A file in a bucket may be replaced after it was verified. --output-dir writes the verified bytes into a new folder, or
nothing where a check fails: load that folder. It is left as it is where it has exactly these files already; any other
content is an error (exit code 2). A key accepts every checkpoint that its owner signed; --digest accepts one alone.

`model_signing verify key --signature DIR/model.sig --public_key signer.pub.pem DIR` checks the files alone, without
this project. In S3, the credentials and the endpoint come from the environment (AWS_ENDPOINT_URL_S3).

Exit codes: 0 verified; 1 not verified: the reason and the file are printed; 2 there is no such folder, or the key
cannot be read.
"""
_KUBERNETES = "kubernetes"


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "verify",
        help="check an adapter: its files, who signed it, its ε",
        description="Check a published checkpoint: its files, its signature, its privacy claim, its ledger.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "place", metavar="DIR|URI", help="the folder of the checkpoint, such as s3://models/claims/final"
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
        "-n",
        "--namespace",
        metavar="NAME",
        help=f"namespace of the ledger, with --ledger {_KUBERNETES} (default: that of the current context)",
    )
    parser.add_argument(
        "-o", dest="output", choices=("text", "json"), default="text", help="text (default), or json for programs"
    )
    parser.set_defaults(handler=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from tensorguard.checkpoint.store import CheckpointError
    from tensorguard.signing.keys import KeyUnusable
    from tensorguard.verification.checkpoint import verify_checkpoint
    from tensorguard.verification.errors import NotVerified

    try:
        trust = _trust(arguments)
        report = verify_checkpoint(arguments.place, trust, _ledger(arguments))
        _check_digest(report, arguments.digest)
    except NotVerified as error:
        if arguments.output == "json":
            print(json.dumps({"verified": False, "file": error.file, "reason": error.problem}, indent=2))
        print(f"not verified: {error}", file=sys.stderr)
        return FAILED
    except (CheckpointError, KeyUnusable, ImportError, ValueError) as error:
        raise CommandError(f"tensafe verify: {error}", INVALID) from error
    if arguments.output_dir is not None:
        _write_copy(arguments.output_dir, report)
    print(_as_json(report, arguments) if arguments.output == "json" else _as_text(report, arguments))
    return SUCCEEDED


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
    from tensorguard.signing.signer import TrustedCertificates, TrustedKey

    if arguments.public_key is not None:
        return TrustedKey(read_public_key(arguments.public_key))
    if arguments.certificate_chain is not None:
        read_certificates(arguments.certificate_chain)
        return TrustedCertificates(arguments.certificate_chain)
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
        "verified": True,
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
        "unit": claim["unit"],
        "adjacency": claim["adjacency"],
        "checked": report.checked,
        "notChecked": report.not_checked,
    }


def _as_json(report: Report, arguments: argparse.Namespace) -> str:
    return json.dumps(_figures(report, arguments), indent=2, ensure_ascii=False)


def _as_text(report: Report, arguments: argparse.Namespace) -> str:
    figures = _figures(report, arguments)
    head = (
        f"verified: {figures['job']}, step {figures['step']} of {figures['stepsPlanned']}, "
        f"({figures['epsilon']}, {figures['delta']})-differential privacy of each {figures['unit'].lower()}"
    )
    signer = "not signed" if report.signer is None else report.signer + ("" if report.trusted else " (not checked)")
    lines = [head, f"  place   {report.uri}", f"  digest  {report.digest}", f"  signer  {signer}"]
    lines += [f"  copy    {figures['copy']}"] if figures["copy"] else []
    lines.append("checked:")
    lines += [f"  - {each}" for each in report.checked]
    if report.not_checked:
        lines += ["not checked:", *(f"  - {each}" for each in report.not_checked)]
    return "\n".join(lines)
