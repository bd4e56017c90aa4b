"""`tensafe ledger`: the ε that a run has spent, read from its ledger.

In: the folder of a run. Out: the charges of each attempt, their ε, and the published checkpoints. The figures are
computed from the charges; no stored ε is used. Each ε is shown with the number of steps that it covers. Reading takes
no lock, so the command works while the job runs.
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorguard.cli.arguments import Subparsers
from tensorguard.cli.exit_codes import FAILED, INVALID, SUCCEEDED, CommandError
from tensorguard.cli.wording import ADJACENCY_TEXT, steps_text

if TYPE_CHECKING:
    from tensorguard.ledger.contract import LedgerState
    from tensorguard.ledger.file import FileLedger

_EPILOG = """\
examples:
  tensafe ledger tensafe-runs/claims-triage
  tensafe ledger tensafe-runs/claims-triage -o json | jq .epsilonSpent

ε spent is the ε of the charged steps. ε claimed is the figure to sign off: it covers the planned steps even if fewer
were charged, because the decision to stop a run early may have depended on its results.

Exit codes: 0 read, 1 the ledger was edited or is damaged, is that of another run, or has fewer entries than the run's
log or its checkpoints on this machine record, 2 there is no ledger.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "ledger",
        help="show the ε that a run has spent",
        description="Show the ε that a run has spent, the charges of each attempt, and the published checkpoints.",
        epilog=_EPILOG,
    )
    parser.add_argument("directory", metavar="DIR", help="the run's folder: the --output-dir of `tensafe run`")
    parser.add_argument(
        "-o", dest="output", choices=("text", "json"), default="text", help="text (default), or json in full precision"
    )
    parser.set_defaults(handler=_ledger)


def _ledger(arguments: argparse.Namespace) -> int:
    state = _read(Path(arguments.directory))
    figures = _figures(state)
    if arguments.output == "json":
        print(json.dumps(figures, indent=2, ensure_ascii=False))
        return SUCCEEDED
    _show(state, figures)
    return SUCCEEDED


def _read(directory: Path) -> LedgerState:
    from tensafe_api.sanitize import clean
    from tensorguard.ledger.contract import LedgerCorrupt, LedgerMissing
    from tensorguard.ledger.file import FileLedger
    from tensorguard.training.config import RUN_LOG
    from tensorguard.training.rollback_check import read_checked

    ledger = FileLedger(directory)
    try:
        state = read_checked(ledger, directory / RUN_LOG)
        _check_against_job(directory, ledger, state)
        return state
    except LedgerMissing as error:
        raise CommandError(f"tensafe ledger: {error}: pass the folder of a run (its --output-dir)", INVALID) from error
    except LedgerCorrupt as error:
        raise CommandError(clean(f"tensafe ledger: {error}"), FAILED) from error  # it may quote the file
    except OSError as error:
        raise CommandError(
            f"tensafe ledger: {directory} cannot be read ({error.strerror}): pass the folder of a run", INVALID
        ) from error


def _check_against_job(directory: Path, ledger: FileLedger, state: LedgerState) -> None:
    """Compare the ledger with the manifest of its run, and with the run's checkpoints if they are on this machine.

    A checkpoint that cannot be read is ignored here: it says nothing about the ledger, and a running job removes some.
    """
    from tensafe_api.manifest.text import ManifestError, load_manifest
    from tensafe_api.resolve import ledger_spec, resolve_job
    from tensorguard.checkpoint.store import CheckpointError, CheckpointStore
    from tensorguard.runners.local.earlier_run import MANIFEST
    from tensorguard.training.rollback_check import check_checkpoint, check_same_job

    try:
        job, plan = resolve_job(load_manifest(directory / MANIFEST))
    except (ManifestError, OSError):
        return
    if job.metadata.uid:  # a run has written it
        check_same_job(state, ledger_spec(job, plan, job.metadata.uid))
    if "://" in job.spec.checkpoint.uri.removeprefix("file://"):
        return
    store = CheckpointStore.for_job(job)
    for name in store.names():
        with suppress(CheckpointError):
            check_checkpoint(store, name, ledger, state.spec.job_uid)


def _figures(state: LedgerState) -> dict[str, Any]:
    """The content of the ledger and the figures that follow from it, as JSON. Each ε is a float in full precision."""
    from tensafe_api.resolve import Claim

    spec, charged = state.spec, state.steps_charged
    claim = Claim.of(spec)
    return {
        "job": spec.job_name,
        "uid": spec.job_uid,
        "epsilonSpent": claim.epsilon(charged),
        "epsilonClaimed": claim.epsilon_claimed(charged),
        "targetEpsilon": float(spec.target_epsilon),
        "delta": float(spec.delta),
        "accountant": spec.accountant,
        "mechanism": spec.mechanism.model_dump(by_alias=True, mode="json"),
        "stepsClaimed": claim.claimed_steps(charged),
        "stepsCharged": charged,
        "stepsRecharged": state.steps_recharged,
        "stepsPlanned": spec.planned_steps,
        "stepsReserved": spec.reserve_steps,
        "charges": [
            {
                "attempt": charge.attempt,
                "steps": charge.steps,
                "incarnation": charge.incarnation,
                "holder": charge.holder,
            }
            for charge in state.charges
        ],
        "releases": [
            {
                "step": release.step,
                "attempt": release.attempt,
                "uri": release.uri,
                "digest": release.digest,
                "statementDigest": release.statement_digest,
                "final": release.final,
                "signer": release.signer,
            }
            for release in state.checkpoints
        ],
        "outcome": state.outcome,
        "datasetDigest": state.dataset_digest,
        "head": state.head,
        "length": state.length,
    }


def _show(state: LedgerState, figures: dict[str, Any]) -> None:
    from tensafe_api.accounting.composition import format_epsilon
    from tensorguard.cli.tables import PUBLISHED, print_facts, print_table, published_rows

    spec = state.spec
    before = spec.mechanism.steps_before
    outcome = state.outcome or "none yet: the job is running, or was interrupted"
    print_facts(
        [
            (
                "ε spent",
                format_epsilon(figures["epsilonSpent"]),
                f"of {steps_text(state.steps_charged, 'charged', before)}; target {spec.target_epsilon}",
            ),
            (
                "ε claimed",
                format_epsilon(figures["epsilonClaimed"]),
                f"of {steps_text(figures['stepsClaimed'], before=before)} to sign off",
            ),
            ("δ", spec.delta, ""),
            ("unit", spec.mechanism.unit, ADJACENCY_TEXT[spec.mechanism.adjacency]),
            ("noise multiplier σ", spec.mechanism.noise_multiplier, f"sample rate q {spec.mechanism.sample_rate}"),
            ("accountant", spec.accountant, ""),
            ("charged again", f"{state.steps_recharged:,}", "steps that ran again after a crash"),
            ("outcome", outcome, ""),
            ("head", state.head[:16], f"of {state.length:,} entries"),
        ],
        spec.job_name,
    )
    if state.charges:
        print()
        print_table(
            ("ATTEMPT", "STEPS CHARGED", "INCARNATIONS", "HOLDER"),
            [
                (str(charge.attempt), f"{charge.steps:,}", str(charge.incarnation), charge.holder)
                for charge in state.charges
            ],
        )
    if state.checkpoints:
        print()
        print_table(PUBLISHED, published_rows(state.checkpoints))
