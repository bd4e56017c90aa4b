"""`tensafe inspect`: what a job would train, for the eyes of the data's owner.

In: a manifest. Out: exact counts of its records and units, what would refuse a run, and values that fit the data
better: as text, JSON or a page. All of it is private. Nothing is trained or spent, and no weights are read.
`tensorguard.inspection` makes the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tensafe_api.sanitize import clean
from tensorguard.cli.arguments import Subparsers, add_manifest_arguments
from tensorguard.cli.exit_codes import FAILED, SUCCEEDED, CommandError

if TYPE_CHECKING:
    from rich.progress import Progress

    from tensafe_api.resources.job import TenSafeTrainingJob
    from tensorguard.inspection.inspection import Inspection

_EPILOG = """\
examples:
  tensafe inspect job.yaml                        records, units, labels, lengths, and what would refuse a run
  tensafe inspect job.yaml --html page.html       the same as a page with pictures
  tensafe inspect job.yaml --show-records         also three records as the model reads them, and ids that look alike
  tensafe inspect job.yaml --set spec.training.maxLength=128
                                                  with another value
  tensafe inspect job.yaml -o json | jq '.unusable[] | [.kind, .count, .first]'
                                                  for a script

The figures are exact, and the privacy claim does not cover them: do not publish the output. Without --show-records it
has no content of a record and no id.

The data is read in this process, without Ray. Of the model, only the tokenizer is read, from the hub if it is not on
this machine.

Exit codes: 0 a run would accept the data; 1 it would refuse them, for the reasons that are printed last, or the
tokenizer cannot be loaded; 2 invalid manifest or arguments.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "inspect",
        help="show what a job would train: records, units, labels, lengths, and faults in the data",
        description="Show what a job would train: records, units, labels, lengths, and faults in the data.\n"
        "Nothing is trained or spent. The output is private.",
        epilog=_EPILOG,
    )
    add_manifest_arguments(parser)
    parser.add_argument(
        "--show-records",
        action="store_true",
        help="also show content: three records with the tokens that are learned, ids that look alike, and labels that "
        "are no class",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page, which only you can read")
    parser.add_argument("-o", dest="output", choices=("text", "json"), default="text", help="text (default) or json")
    parser.set_defaults(handler=_inspect)


def _inspect(arguments: argparse.Namespace) -> int:
    from tensorguard.cli.job_loading import load_job

    job = load_job(arguments.manifest, arguments.overrides).completed
    found = _inspection(job, Path(arguments.manifest).absolute().parent, arguments.show_records)
    if arguments.output == "json":
        print(json.dumps(found.to_json(), indent=2))
    else:
        from tensorguard.inspection.text import text_of

        print(text_of(found, refusals=False), end="")
    sys.stdout.flush()
    if arguments.html is not None:
        _write(found.html(), arguments.html)
    for refusal in found.refusals:
        print(f"a run would be refused: {clean(refusal)}", file=sys.stderr)
    return FAILED if found.refusals else SUCCEEDED


def _inspection(job: TenSafeTrainingJob, base_dir: Path, show_records: bool) -> Inspection:
    """Inspect the job and show the progress. Raises CommandError if its tokenizer cannot be loaded."""
    from tensorguard.cli.standard_output import only_results_on_stdout

    with only_results_on_stdout(), _Progress() as progress:
        progress.stage("Loading the libraries")
        from tensorguard.data.errors import DataError
        from tensorguard.inspection.job import inspect_job
        from tensorguard.models.source import ModelNotFoundError
        from tensorguard.models.unsupported import UnsupportedModelError
        from tensorguard.runners.preflight import with_absolute_paths

        try:
            return inspect_job(with_absolute_paths(job, base_dir), show_records=show_records, watcher=progress)
        except (DataError, ModelNotFoundError, UnsupportedModelError) as error:
            raise CommandError(str(error), FAILED) from error


def _write(page: str, path: Path) -> None:
    from tensorguard.runners.run_folder import replace_owner_only

    try:
        replace_owner_only(path, page.encode())
    except OSError as error:
        raise CommandError(
            f"tensafe inspect: --html {path} cannot be written: {error.strerror}: name a file in a folder that exists",
            FAILED,
        ) from error
    print(f"written to {path}", file=sys.stderr)


class _Progress:
    """Shows how far an inspection is: a bar on a terminal, and a line for each stage elsewhere. A `Watcher`."""

    def __init__(self) -> None:
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True, highlight=False)
        if console.is_terminal and not console.is_dumb_terminal:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[records]:,} records"),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, sentence: str) -> None:
        if self._bar is None:
            print(sentence, file=sys.stderr, flush=True)
            return
        for each in self._bar.task_ids:
            self._bar.remove_task(each)
        self._bar.add_task(clean(sentence), total=None, records=0)

    def read(self, records: int, done: int, total: int) -> None:
        if self._bar is not None:
            [task] = self._bar.task_ids
            self._bar.update(task, completed=done, total=total if done else None, records=records)
