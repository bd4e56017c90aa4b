"""`tensafe run`: train what a manifest asks for, on a Ray cluster on this machine.

In: a manifest and a folder for the run. Out: the job with its status on standard output, and nothing else there. This
module does what belongs to a person at a terminal (progress, signals, where things were put);
`tensorguard.runners.local.driver` does the training, and says how it ended by the exit code that is returned here.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorguard.cli.arguments import Verbs, add_manifest
from tensorguard.cli.exit_codes import FAILED, INTERRUPTED, INVALID, Refused

if TYPE_CHECKING:
    from tensafe_api.resolve import Plan
    from tensafe_api.resources.job import TenSafeTrainingJob
    from tensorguard.cli.signals import Interrupts
    from tensorguard.runners.local.driver import RunResult

_EPILOG = """\
examples:
  tensafe run job.yaml
  tensafe run job.yaml --set spec.training.steps=20 --set spec.privacy.targetEpsilon=4 --output-dir runs/short
  tensafe run runs/short/job.yaml --output-dir runs/short --resume      go on after Ctrl-C or a crash

The folder of a run holds its ledger (what was spent), job.yaml (the manifest with every default), checkpoints, events
and a picture. A folder that holds a ledger is refused without --resume: what was spent stays spent.

Exit codes: 0 succeeded, 1 failed (or the ledger was edited), 2 wrong manifest or arguments, 3 the budget ended before
the planned steps, 130 stopped by Ctrl-C or SIGTERM (a checkpoint was sealed, and the command to go on is printed).
"""

MANIFEST_COPY = "job.yaml"
"""The completed manifest in a run's folder, with absolute paths: what a resume reads."""


def add(verbs: Verbs) -> None:
    """Describe the verb to the command line."""
    parser = verbs.add_parser(
        "run",
        help="train what a manifest asks for, on this machine",
        description="Train what a manifest asks for on this machine, and print the job with its status.",
        epilog=_EPILOG,
    )
    add_manifest(parser)
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        type=Path,
        help="the run's folder, checkpoints included (default: tensafe-runs/ and the job's name)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in this folder, from its last checkpoint"
    )
    parser.add_argument(
        "-o",
        dest="output",
        choices=("yaml", "json"),
        default="yaml",
        help="how the job is printed: yaml (default) or json",
    )
    parser.set_defaults(act=_run)


def _run(arguments: argparse.Namespace) -> int:
    from tensorguard.cli.signals import Interrupts

    interrupts = Interrupts()
    with interrupts.caught():
        from tensafe_api.manifest import dump_manifest
        from tensorguard.cli import report, summary
        from tensorguard.cli.job_loading import load, warnings

        loaded = load(arguments.manifest, arguments.overrides)
        for warning in warnings(loaded):
            print(f"warning: {warning}", file=sys.stderr)
        given: Path | None = arguments.output_dir
        output_dir = (given or Path("tensafe-runs") / loaded.job.metadata.name).absolute()
        base_dir = Path(arguments.manifest).absolute().parent
        job = loaded.job
        if given is not None and base_dir / Path(arguments.manifest).name != output_dir / MANIFEST_COPY:
            job = _with_checkpoints_in(output_dir, job, arguments.overrides)
        try:
            with _only_results_on_stdout():
                result = _train(job, loaded.plan, output_dir, base_dir, resume=arguments.resume, interrupts=interrupts)
        except KeyboardInterrupt:
            summary.tell_aborted(output_dir)
            return INTERRUPTED
        picture = report.write(output_dir, loaded.plan, result.job)
        try:
            print(dump_manifest(result.job, arguments.output), end="", flush=True)
        finally:  # last, so that on a terminal the job does not scroll it away
            summary.tell(result.job, loaded.plan, output_dir, picture)
        return result.exit_code


def _train(
    job: TenSafeTrainingJob, plan: Plan, output_dir: Path, base_dir: Path, *, resume: bool, interrupts: Interrupts
) -> RunResult:
    """Let the engine train `job`, and show how it goes on. Raises Refused where the engine will not begin."""
    from tensafe_api.manifest import ManifestError
    from tensorguard.cli.display import display_for
    from tensorguard.ledger.contract import LedgerCorrupt
    from tensorguard.training.run_log import Preparing

    with display_for(plan) as display:
        display.hear(Preparing(time.time(), "Loading PyTorch and Ray"))
        from tensorguard.runners.local import driver as engine
        from tensorguard.training.stop_signal import StopSignal

        stop = StopSignal()
        try:
            with interrupts.stopping(stop, display.say):
                return engine.run(
                    job, output_dir=output_dir, base_dir=base_dir, resume=resume, listener=display.hear, stop=stop
                )
        except engine.RunRefused as refusal:
            edited = isinstance(refusal.__cause__, LedgerCorrupt)
            message = str(refusal) if refusal.path else f"tensafe run: {refusal}"
            raise Refused(message, FAILED if edited else INVALID) from refusal
        except ManifestError as error:
            raise Refused(str(error)) from error


def _with_checkpoints_in(output_dir: Path, job: TenSafeTrainingJob, overrides: Sequence[str]) -> TenSafeTrainingJob:
    """The job with its checkpoints in the run's folder, unless they go to an object store or were placed by `--set`."""
    uri = job.spec.checkpoint.uri
    local = "://" not in uri or uri.startswith("file://")
    placed = any(change.split("=", 1)[0] in ("spec.checkpoint.uri", "spec.checkpoint") for change in overrides)
    if placed or not local:
        return job
    new = str(output_dir / "checkpoints")
    print(f"spec.checkpoint.uri: {uri} becomes {new}, because of --output-dir", file=sys.stderr)
    checkpoint = job.spec.checkpoint.model_copy(update={"uri": new})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"checkpoint": checkpoint})})


@contextlib.contextmanager
def _only_results_on_stdout() -> Iterator[None]:
    """Send to standard error whatever libraries, and the processes that they start, print meanwhile."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
