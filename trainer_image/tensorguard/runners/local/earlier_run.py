"""Reads the earlier run in a run's folder, and decides whether a new call may resume it or start over.

In come the folder and `--resume`; out comes the ledger of the run to resume, None for a new run, or `RunRefused` with
the fix. The same checks protect the ledger at the end of a run (`read_ledger`). Nothing is written here.
"""

from __future__ import annotations

import os
from pathlib import Path

from tensafe_api.manifest.text import ManifestError, load_manifest
from tensafe_api.resources.ledger import LedgerSpec
from tensorguard.ledger.contract import LedgerCorrupt, LedgerError, LedgerState
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.preflight import RunRefused, changed_fields
from tensorguard.training.config import RUN_LOG
from tensorguard.training.rollback_check import read_checked
from tensorguard.training.run_log import steps_charged_in

MANIFEST = "job.yaml"
"""The completed manifest in the run's folder."""
_RESUME_LOCK_WAIT_SECONDS = 30.0


def find_earlier_run(directory: Path, *, resume: bool) -> LedgerState | None:
    """The ledger of the run to resume, or None where a new run starts.

    A folder whose run was never charged can be used again with and without `resume`.

    Raises:
        RunRefused: the folder has a run that was charged and `resume` is not set; there is no run to resume; the
            ledger is missing, or cannot be trusted.
    """
    if not os.path.lexists(directory / LEDGER):
        _check_never_charged(directory, resume)
        return None
    ledger = FileLedger(directory, lock_wait_seconds=_RESUME_LOCK_WAIT_SECONDS if resume else 0.0)
    try:
        ledger.wait_until_free()
        state = read_checked(ledger, directory / RUN_LOG)
    except LedgerError as error:
        raise RunRefused("", str(error)) from error
    if not resume:
        if state.steps_charged == 0:
            return None
        raise RunRefused(
            "",
            f"{directory} has the ledger of a run that was charged {state.steps_charged} steps; "
            "resume it with --resume, or choose another --output-dir",
        )
    return state


def uid_of_manifest(directory: Path) -> str | None:
    """The UID of the run whose completed manifest is in the folder; None without a readable one."""
    try:
        return load_manifest(directory / MANIFEST).metadata.uid
    except (ManifestError, OSError):
        return None


def refuse_foreign_files(directory: Path) -> None:
    """Refuse a folder in which a new run would replace files that no run has written.

    Raises:
        RunRefused: it names the file.
    """
    if uid_of_manifest(directory) is None:
        for name in (MANIFEST, RUN_LOG):
            if os.path.lexists(directory / name):
                raise RunRefused(
                    "", f"{directory / name} would be replaced, and no run has written it; choose another --output-dir"
                )


def _check_never_charged(directory: Path, resume: bool) -> None:
    """Refuse a folder whose ledger was removed. A run that ended before its workers started never had one."""
    if charged := steps_charged_in(directory / RUN_LOG):
        raise RunRefused(
            "",
            f"{directory / LEDGER} is missing, but {RUN_LOG} records {charged} charged steps; "
            "restore the ledger, or choose another --output-dir",
        )
    if resume and not (directory / MANIFEST).exists():
        raise RunRefused("", f"{directory} has no run to resume; leave out --resume to start one")


def check_same_values(directory: Path, earlier: LedgerState, spec: LedgerSpec) -> None:
    """Refuse to resume with other privacy values than the ledger was opened with: its ε would be wrong.

    Raises:
        RunRefused: with each value that differs.
    """
    before, now = (each.model_dump(by_alias=True, mode="json") for each in (earlier.spec, spec))
    if changed := changed_fields(before, now):
        raise RunRefused(
            "",
            f"the ledger in {directory} was opened with other values ({'; '.join(changed)}); "
            f"resume with the manifest {directory / MANIFEST}, or choose another --output-dir",
        )


def read_ledger(directory: Path) -> LedgerState | None:
    """The ledger at the end of a run; None where nothing was spent.

    Raises:
        LedgerError: the ledger is missing although steps were charged, or it cannot be trusted.
    """
    if not (directory / LEDGER).exists():
        if steps_charged_in(directory / RUN_LOG):
            raise LedgerCorrupt(f"{directory / LEDGER} is missing: it is not known what was spent")
        return None
    return read_checked(FileLedger(directory), directory / RUN_LOG)
