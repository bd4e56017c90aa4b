"""`tensafe run`: train a manifest's job on this machine, or on a Ray cluster that it joins.

In: a manifest, and a folder for the run. Out: the job with its status on standard output, and nothing else there. This
module serves the user at a terminal: progress, signals, and a summary of the results.
`tensorguard.runners.local.driver` runs the training and returns the exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorguard.cli.arguments import Subparsers, add_manifest_arguments, identity_file, warn_of_readers
from tensorguard.cli.exit_codes import FAILED, INTERRUPTED, INVALID, CommandError
from tensorguard.cli.standard_output import only_results_on_stdout
from tensorguard.signing.keys import IDENTITY_VARIABLE, SIGNING_KEY_VARIABLE

if TYPE_CHECKING:
    from tensafe_api.resolve import Plan
    from tensafe_api.resources.job import TenSafeTrainingJob
    from tensorguard.cli.signals import StopOnSignal
    from tensorguard.runners.local.driver import RunResult

_EPILOG = """\
examples:
  tensafe run job.yaml
  tensafe run job.yaml --set spec.training.steps=20 --set spec.privacy.targetEpsilon=4 --output-dir runs/short
  tensafe run runs/short/job.yaml --output-dir runs/short --resume      continue after Ctrl-C or a crash
  tensafe run job.yaml --address auto --output-dir /shared/run          on the machines of a Ray cluster
  tensafe run job.yaml --signing-key ~/keys/signing-key.pem             sign the checkpoints (`tensafe keygen`)
  tensafe run job.yaml --signing-key 'pkcs11:token=release;object=adapters?module-path=/path/of/module.so&\
pin-source=file:/path/of/pin'                                           sign them with a key in an HSM
  tensafe run job.yaml --signing-key sigstore:trust-config.json         sign them as an identity, without a key
  tensafe run runs/first/job.yaml --identity ~/keys/age-identity.txt --output-dir runs/first --resume
                                                                        resume from an encrypted checkpoint
  tensafe run job.yaml -o json | jq .status.privacy                     the figures alone, for a script

The run's folder holds the ledger (the steps charged), job.yaml (the manifest with all defaults), checkpoints, the log
of the run and a picture. A folder that holds a ledger is refused without --resume: charged steps stay charged.
The folder DIR.private beside it holds the key of the run, which a resume needs, and tracebacks. Never publish it. The
key is deleted when the run has succeeded or its budget has ended.

With --address, on a cluster of several machines: each worker reads the data itself, so the URIs are ones that every
node can read. --output-dir is in storage that all nodes mount. Each node has the job key in a file of mode 600, which
the variable TENSAFE_JOB_KEY_FILE of `ray start` names. docs/how-to/ray-cluster.md shows all of it.

Exit codes: 0 succeeded; 1 failed, or the ledger was edited; 2 invalid manifest or arguments; 3 the budget ended before
the planned steps; 130 stopped by Ctrl-C or SIGTERM (a checkpoint was saved, and the command to resume is printed).
"""

MANIFEST_COPY = "job.yaml"
"""The completed manifest in a run's folder, with absolute paths: a resume reads it."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "run",
        help="train a manifest's job on this machine",
        description="Train a manifest's job on this machine, or on a Ray cluster, and print the job with its status.",
        epilog=_EPILOG,
    )
    add_manifest_arguments(parser)
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        type=Path,
        help="the run's folder, also for checkpoints (default: tensafe-runs/ and the job's name)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue the run in this folder from its last checkpoint"
    )
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="join the Ray cluster at this address, such as auto on one of its nodes (default: RAY_ADDRESS, else "
        "local: start a Ray cluster on this machine for the run)",
    )
    parser.add_argument(
        "--signing-key",
        metavar="KEY",
        type=_key_location,
        help="sign the checkpoints with this key, and resume only from one that it signed: a file, the pkcs11: URI of "
        "a key in a token, or sigstore: and the trust configuration of a Sigstore instance (default: "
        f"{SIGNING_KEY_VARIABLE}, else they are not signed)",
    )
    parser.add_argument(
        "--audit-log",
        action="store_true",
        help="log each charge, checkpoint, refusal and end in audit.jsonl in the run's folder, as with "
        "spec.observability.auditLog: Enabled (see `tensafe verify`)",
    )
    parser.add_argument(
        "--identity",
        metavar="FILE",
        type=Path,
        help="decrypt the checkpoint to resume or to start from with this age identity (default: "
        f"{IDENTITY_VARIABLE}); spec.checkpoint.encryption encrypts without one",
    )
    parser.add_argument(
        "-o",
        dest="output",
        choices=("yaml", "json"),
        default="yaml",
        help="format of the printed job: yaml (default) or json",
    )
    parser.set_defaults(handler=_run)


def _run(arguments: argparse.Namespace) -> int:
    from tensorguard.cli.signals import StopOnSignal

    signals = StopOnSignal()
    with signals.installed():
        from tensafe_api.manifest.text import dump_manifest
        from tensorguard.cli import report, summary
        from tensorguard.cli.job_loading import load_job, local_warnings

        loaded = load_job(arguments.manifest, arguments.overrides)
        for warning in local_warnings(loaded):
            print(f"warning: {warning}", file=sys.stderr)
        given: Path | None = arguments.output_dir
        output_dir = (given or Path("tensafe-runs") / loaded.job.metadata.name).absolute()
        base_dir = Path(arguments.manifest).absolute().parent
        job = _with_audit_log(loaded.job) if arguments.audit_log else loaded.job
        signing_key: str | None = arguments.signing_key or _key_of_environment()
        if signing_key is not None:
            warn_of_readers(Path(signing_key))  # a URI is no file, and has no readers
        options = summary.RunOptions(arguments.address, arguments.signing_key, arguments.identity)
        if given is not None and base_dir / Path(arguments.manifest).name != output_dir / MANIFEST_COPY:
            job = _with_checkpoints_in(output_dir, job, arguments.overrides)
        try:
            with only_results_on_stdout():
                result = _train(
                    job,
                    loaded.plan,
                    output_dir,
                    base_dir,
                    resume=arguments.resume,
                    address=arguments.address,
                    signals=signals,
                    signing_key=signing_key,
                    identity=identity_file(arguments),
                )
        except KeyboardInterrupt:
            summary.print_aborted(output_dir, options)
            return INTERRUPTED
        picture = report.write_report(output_dir, loaded.plan, result.job)
        try:
            print(dump_manifest(result.job, arguments.output), end="", flush=True)
        finally:  # last, so that on a terminal the printed job does not scroll the summary away
            summary.print_summary(result.job, loaded.plan, output_dir, picture, options)
        return result.exit_code


def _train(
    job: TenSafeTrainingJob,
    plan: Plan,
    output_dir: Path,
    base_dir: Path,
    *,
    resume: bool,
    address: str | None,
    signals: StopOnSignal,
    signing_key: str | None,
    identity: Path | None,
) -> RunResult:
    """Train `job` and show its progress. Raises CommandError if the local runner refuses the job."""
    from tensafe_api.manifest.text import ManifestError
    from tensorguard.cli.display import display_for
    from tensorguard.ledger.contract import LedgerCorrupt
    from tensorguard.training.run_log import Preparing

    with display_for(plan) as display:
        display.show(Preparing(time.time(), "Loading PyTorch and Ray"))
        from tensorguard.runners.local import driver
        from tensorguard.runners.preflight import RunRefused
        from tensorguard.training.stop_signal import StopSignal

        stop = StopSignal()
        try:
            with signals.requesting(stop, display.print_line):
                return driver.run(
                    job,
                    output_dir=output_dir,
                    base_dir=base_dir,
                    resume=resume,
                    listener=display.show,
                    stop=stop,
                    address=address,
                    signing_key=signing_key,
                    identity=identity,
                )
        except RunRefused as refusal:
            edited = isinstance(refusal.__cause__, LedgerCorrupt)
            message = str(refusal) if refusal.path else f"tensafe run: {refusal}"
            raise CommandError(message, FAILED if edited else INVALID) from refusal
        except ManifestError as error:
            raise CommandError(str(error)) from error


def _with_audit_log(job: TenSafeTrainingJob) -> TenSafeTrainingJob:
    observability = job.spec.observability.model_copy(update={"audit_log": "Enabled"})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"observability": observability})})


def _key_location(text: str) -> str:
    """The type of --signing-key. argparse prints the message of its errors, and here not the argument."""
    from tensorguard.signing.base import KeyUnusable
    from tensorguard.signing.keys import key_location

    try:
        return key_location(text)
    except KeyUnusable as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _key_of_environment() -> str | None:
    from tensorguard.signing.base import KeyUnusable
    from tensorguard.signing.keys import key_location

    variable = os.environ.get(SIGNING_KEY_VARIABLE)
    try:
        return key_location(variable) if variable else None
    except KeyUnusable as error:
        raise CommandError(f"{SIGNING_KEY_VARIABLE}: {error}", INVALID) from None


def _with_checkpoints_in(output_dir: Path, job: TenSafeTrainingJob, overrides: Sequence[str]) -> TenSafeTrainingJob:
    """The job with its checkpoints in the run's folder, unless they are in an object store or `--set` names a place."""
    uri = job.spec.checkpoint.uri
    local = "://" not in uri or uri.startswith("file://")
    placed = any(change.split("=", 1)[0] in ("spec.checkpoint.uri", "spec.checkpoint") for change in overrides)
    if placed or not local:
        return job
    new = str(output_dir / "checkpoints")
    print(f"spec.checkpoint.uri: {uri} is replaced by {new}, because of --output-dir", file=sys.stderr)
    checkpoint = job.spec.checkpoint.model_copy(update={"uri": new})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"checkpoint": checkpoint})})
