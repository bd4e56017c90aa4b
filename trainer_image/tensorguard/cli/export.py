"""`tensafe export`: send the public figures of a run to an experiment tracker.

In: the folder of a run, or a job with its status. Out: a run of W&B, MLflow or TensorBoard. The callbacks of
`tensorguard.integrations` start this command beside a training. `tensorguard.trackers` does the work.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tensorguard.cli.arguments import Subparsers
from tensorguard.cli.exit_codes import FAILED, SUCCEEDED, CommandError

if TYPE_CHECKING:
    from tensorguard.trackers.history import History

_EPILOG = """\
examples:
  tensafe export runs/first --to tensorboard                 then: tensorboard --logdir runs/first/tensorboard
  MLFLOW_TRACKING_URI=http://127.0.0.1:5000 tensafe export runs/first --to mlflow
  WANDB_PROJECT=notes tensafe export runs/first --to wandb --follow     beside `tensafe run`, until it has ended
  kubectl get tsj triage -o yaml | tensafe export - --to mlflow         a job of a cluster

What is sent: step, epoch, learning rate, ε, the public evaluation, the public part of the configuration, and the
privacy statement of the final checkpoint. Nothing else is: no training loss, no batch size, no console, no code, no
statistics of the system. A second export sends only what is new, to the same run of the tracker.

The tracker is configured by the environment variables of Hugging Face's callbacks:
  wandb        WANDB_PROJECT, WANDB_NAME, WANDB_MODE, WANDB_LOG_MODEL (end, checkpoint or false), WANDB_RUN_ID,
               WANDB_DISABLED; and what the library reads, such as WANDB_API_KEY
  mlflow       MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_NAME, MLFLOW_RUN_ID, MLFLOW_TAGS (a JSON object),
               HF_MLFLOW_LOG_ARTIFACTS (1: adapters), DISABLE_MLFLOW_INTEGRATION
  tensorboard  TENSORBOARD_LOGGING_DIR (default: tensorboard in the run's folder)

Exit codes: 0 exported, 1 the tracker failed or the ledger was edited (run the command again), 2 there is no such run.
"""
_APPEARS_SECONDS = 60.0
"""How long `--follow` waits for the folder of a run that is starting."""
_NICENESS = 10
"""The export that runs beside a training gives way to it."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    from tensorguard.trackers.registry import TRACKERS

    parser = subparsers.add_parser(
        "export",
        help="send the public figures of a run to W&B, MLflow or TensorBoard",
        description="Send the public figures of a run to an experiment tracker.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "source",
        metavar="RUN",
        help="the run's folder (its --output-dir), or the file of a job with its status; - reads standard input",
    )
    parser.add_argument("--to", dest="tracker", choices=tuple(TRACKERS), required=True, help="the tracker")
    parser.add_argument(
        "--follow", action="store_true", help="wait for the run in this folder, and continue until it has ended"
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        type=Path,
        help="for a job: the folder that remembers what was sent (default: tensafe-runs/ and the job's name)",
    )
    parser.set_defaults(handler=_export)


def _export(arguments: argparse.Namespace) -> int:
    from tensorguard.ledger.contract import LedgerError
    from tensorguard.trackers.export import Export, first_line
    from tensorguard.trackers.registry import TRACKERS
    from tensorguard.trackers.sent import SentFile
    from tensorguard.trackers.tracker import TrackerError

    kind = TRACKERS[arguments.tracker]
    if off := kind.switched_off_by(os.environ):
        print(f"tensafe export: nothing is sent to {kind.name}, because {off}", file=sys.stderr)
        return SUCCEEDED
    if arguments.follow:
        os.nice(_NICENESS)
    try:
        kind.check_installed()
        history, directory = _history(arguments)
        tracker = kind.create(os.environ, directory)
        with contextlib.redirect_stdout(sys.stderr):  # trackers' libraries print addresses
            Export(history, tracker, SentFile(directory, kind.name), _report).run(follow=arguments.follow)
    except TrackerError as error:
        raise CommandError(f"tensafe export: {error}") from error
    except LedgerError as error:
        raise CommandError(f"tensafe export: {error}", FAILED) from error
    except CommandError:
        raise
    except Exception as error:  # each tracker's library has its own error classes
        raise CommandError(f"tensafe export: {kind.name}: {first_line(error)}", FAILED) from error
    print(f"exported to {kind.name}: {tracker.destination}", file=sys.stderr)
    return SUCCEEDED


def _history(arguments: argparse.Namespace) -> tuple[History, Path]:
    """What to export, and the folder that remembers what was sent."""
    from tensafe_api.manifest.text import ManifestError, load_manifest
    from tensorguard.runners.local.earlier_run import MANIFEST
    from tensorguard.trackers.history import JobStatus, RunFolder

    source, output_dir = arguments.source, arguments.output_dir
    if arguments.follow and source != "-":
        _wait_for(Path(source) / MANIFEST)
    if source != "-" and not Path(source).exists():
        raise CommandError(
            f"tensafe export: there is no {source}: pass the --output-dir of `tensafe run`, or the YAML file of a job"
        )
    try:
        if Path(source).is_dir():
            if not (Path(source) / MANIFEST).exists():
                raise CommandError(f"tensafe export: {source} has no run: pass the --output-dir of `tensafe run`")
            if output_dir is not None:
                raise CommandError(
                    "tensafe export: --output-dir is for a job, and this is a run's folder: leave it out"
                )
            return RunFolder(Path(source)), Path(source)
        if arguments.follow:
            raise CommandError(
                "tensafe export: --follow needs the folder of a run: export a job again when it has ended"
            )
        job = load_manifest(sys.stdin.read() if source == "-" else Path(source))
        return JobStatus(job), output_dir or Path("tensafe-runs") / job.metadata.name
    except ManifestError as error:
        raise CommandError(f"tensafe export: {error}") from error
    except ValueError as error:
        raise CommandError(f"tensafe export: {source}: {error}") from error


def _wait_for(manifest: Path) -> None:
    """Wait until the run, which may have been started at the same time, has created its folder."""
    if manifest.exists() or manifest.parent.is_file():
        return
    _report(f"waiting for the run in {manifest.parent}")
    deadline = time.monotonic() + _APPEARS_SECONDS
    while not manifest.exists() and time.monotonic() < deadline:
        time.sleep(0.2)


def _report(line: str) -> None:
    print(f"tensafe export: {line}", file=sys.stderr, flush=True)
