"""Verifies an audit log: its chain, and that it agrees with the ledger and with a checkpoint.

In: a file, a run's folder, or a folder of objects; the ledger and a verified checkpoint, where there are any. Out: what
was checked, or `NotVerified` with the first line that is wrong. The chain shows a change within the log. Only the
ledger, or a checkpoint, shows that lines are missing at its end, or that all of it was replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensorguard.audit_log.entries import COMMON, NO_HASH, Entry, Event, LineInvalid, check_fields, read_line
from tensorguard.audit_log.ledger_events import Position, missing_entries
from tensorguard.audit_log.line_files import LineFile
from tensorguard.audit_log.line_objects import LineObjects
from tensorguard.audit_log.places import AUDIT_LOG
from tensorguard.storage import filesystem_options
from tensorguard.verification.checkpoint import Report
from tensorguard.verification.errors import NotVerified, job_text
from tensorguard.verification.ledgers import LedgerHistory

NOT_ANCHORED = (
    "that no line was cut off at the end, and that the log was not replaced as a whole: pass --ledger, or the newest "
    "checkpoint"
)
AFTER_CHECKPOINT = "that no line was cut off after the publication of this checkpoint: pass --ledger"
NO_OLD_WRITES = "each old write: a cluster's ledger keeps only its last head, and the sums of its charges"


_LINE_NAME = re.compile(r"\d{8}\.json")
"""The name of an object with one line (`LineObjects`)."""


@dataclass
class AuditReport:
    """A verified audit log.

    Attributes:
        name: its place.
        job, job_uid: the job that it belongs to.
        entries: number of its lines.
        head: hash of the last one.
        steps_charged: the steps of all its charges.
        checked: what was checked, in words.
        not_checked: what was not checked, and what to pass to check it.
    """

    name: str
    job: str
    job_uid: str
    entries: int
    head: str
    steps_charged: int
    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)


def verify_audit_log(
    place: str,
    find_ledger: Callable[[str], LedgerHistory] | None = None,
    checkpoint: Report | None = None,
) -> AuditReport:
    """Verify the audit log at `place`.

    Args:
        place: the file, the folder of a run, or the folder or URI of its objects.
        find_ledger: from the UID of the job, its ledger; None: no ledger is compared.
        checkpoint: a checkpoint of the same job, which was verified; None: none is compared.

    Raises:
        NotVerified: names the line.
        ValueError: there is no audit log.
        AuditLogUnwritable: the storage cannot be read.
    """
    # The ledger is read last: an entry follows its write, so a log that is still written never seems to be ahead.
    name, lines = _read(place)
    try:
        entries = list(_entries(lines))
        position, first = _position(entries), entries[0]
    except LineInvalid as error:
        raise NotVerified(name, str(error)) from error
    report = AuditReport(
        name,
        str(first.values["job"]),
        str(first.values["jobUID"]),
        len(entries),
        entries[-1].hash,
        position.steps_charged,
    )
    report.checked.append(f"{len(entries)} lines follow from each other, and are all of the job {report.job}")
    try:
        if checkpoint is not None:
            _check_checkpoint(entries, report, checkpoint)
        if find_ledger is not None:
            _check_ledger(entries, position, report, find_ledger(report.job_uid))
    except LineInvalid as error:
        raise NotVerified(name, str(error)) from error
    if find_ledger is None:
        report.not_checked.append(NOT_ANCHORED if checkpoint is None else AFTER_CHECKPOINT)
    return report


def _read(place: str) -> tuple[str, list[bytes]]:
    """The place of the log, and its lines. A cut last line is one of them."""
    if "://" not in place:
        path = Path(place)
        path = path / AUDIT_LOG if (path / AUDIT_LOG).is_file() else path
        if path.is_file():
            file = LineFile(path)
            return str(path), [*file.read_new(), *([torn] if (torn := file.torn_line()) else [])]
        if not path.is_dir():
            raise ValueError(f"{place}: there is no audit log; pass the {AUDIT_LOG} of a run's folder")
    store = LineObjects(place, filesystem_options(place, None)[1])
    lines = store.read_new()
    try:
        names = store.names()
    except FileNotFoundError:
        names = []
    if not any(_LINE_NAME.fullmatch(name) for name in names):
        raise ValueError(
            f"{place}: there is no audit log; pass the {AUDIT_LOG} of a run that kept one, or the folder audit-UID "
            "beside the checkpoints"
        )
    if len(names) > len(lines):
        raise NotVerified(place, f"line {len(lines) + 1} is missing, and there are objects after it ({names[-1]})")
    return place, lines


def _entries(lines: Sequence[bytes]) -> Iterator[Entry]:
    """The entries of a chain. Raises LineInvalid."""
    if not lines:
        raise LineInvalid(1, "is missing: the log is empty")
    previous, job = NO_HASH, None
    for number, line in enumerate(lines, start=1):
        entry = read_line(line, number, previous)
        check_fields(entry)
        mine = entry.values.get("job"), entry.values.get("jobUID")
        job = job or mine
        if None in mine or mine != job:
            raise LineInvalid(number, f"is of another job ({mine[0]}) than the first line")
        yield entry
        previous = entry.hash


def _position(entries: Sequence[Entry]) -> Position:
    """What the log says of the ledger, after a check that the entries do not contradict each other."""
    position = Position()
    for entry in entries:
        before = position
        try:
            position = position.after(entry)
            total = entry.values.get("stepsCharged", position.steps_charged)
        except (KeyError, TypeError) as error:
            raise LineInvalid(entry.number, f"lacks a field of {entry.event} ({error})") from None
        if position.length < before.length:
            raise LineInvalid(entry.number, "names an older entry of the ledger than the lines before it")
        if total != position.steps_charged:
            raise LineInvalid(
                entry.number,
                f"states {total} charged steps, and the charges up to it add up to {position.steps_charged}",
            )
    return position


def _check_ledger(entries: Sequence[Entry], position: Position, report: AuditReport, ledger: LedgerHistory) -> None:
    """Check that each write of the ledger is in the log, in order, and no other."""
    last = ledger.last
    if last.spec.job_uid != report.job_uid:
        own, other = job_text(last.spec.job_name, last.spec.job_uid), job_text(report.job, report.job_uid)
        raise NotVerified("ledger", f"is that of the job {own}, and the log is of {other}")
    if ledger.states[0].length > 1:
        _check_last_state(entries, position, ledger)
        report.not_checked.append(NO_OLD_WRITES)
    else:
        _check_each_write(entries, ledger)
    report.checked.append(
        f"the ledger {ledger.name} has the same {last.steps_charged} charged steps, and all of its writes are logged"
    )


def _check_each_write(entries: Sequence[Entry], ledger: LedgerHistory) -> None:
    logged = iter([entry for entry in entries if entry.ledger_length is not None])
    position = Position()
    for state in ledger.states:
        for event, values in missing_entries(position, state):
            entry = next(logged, None)
            if entry is None:
                raise _ends_early(entries, f"entry {state.length} of the ledger ({event}) is not logged")
            expected = {name: value for name, value in values.items() if value is not None}
            found = {name: value for name, value in entry.values.items() if name not in COMMON}
            if (entry.event, found) != (event, expected):
                raise LineInvalid(
                    entry.number, f"({entry.event}) is not what the ledger has as its entry {state.length} ({event})"
                )
            position = position.after(entry)
    if (extra := next(logged, None)) is not None:
        raise LineInvalid(
            extra.number, f"({extra.event}) is not in the ledger, which ends before it: entries of the ledger are gone"
        )


def _check_last_state(entries: Sequence[Entry], position: Position, ledger: LedgerHistory) -> None:
    state = ledger.last
    if position.length > state.length or position.steps_charged > state.steps_charged:
        raise LineInvalid(
            entries[-1].number, "comes after writes that the ledger lacks: entries of the ledger are gone"
        )
    if position.length < state.length or missing_entries(position, state):
        raise _ends_early(
            entries, f"the ledger has {state.length} entries and {state.steps_charged} charged steps by now"
        )
    newest = next(entry for entry in reversed(entries) if entry.ledger_length is not None)
    if position.head != state.head:
        raise LineInvalid(newest.number, "names another head of the ledger than the ledger has")
    published = [entry for entry in entries if entry.event == Event.PUBLICATION]
    if len(published) > len(state.checkpoints):
        raise LineInvalid(published[len(state.checkpoints)].number, "names a checkpoint that the ledger lacks")
    for entry, checkpoint in zip(published, state.checkpoints, strict=True):
        if (entry.values.get("uri"), entry.values.get("digest")) != (checkpoint.uri, checkpoint.digest):
            raise LineInvalid(entry.number, f"names another checkpoint than the ledger, which has {checkpoint.uri}")


def _ends_early(entries: Sequence[Entry], what: str) -> LineInvalid:
    return LineInvalid(
        entries[-1].number,
        f"is the last one, but {what}: lines were cut off, or the run was killed (then a resume adds them) or still "
        "writes",
    )


def _check_checkpoint(entries: Sequence[Entry], report: AuditReport, checkpoint: Report) -> None:
    """Check that the log has the line that a checkpoint names, and its publication after that."""
    job, hashes = checkpoint.statement["job"], checkpoint.statement["hashes"]
    if job["uid"] != report.job_uid:
        own, other = job_text(report.job, report.job_uid), job_text(job["name"], job["uid"])
        raise NotVerified(report.name, f"is of the job {own}, and the checkpoint is of {other}")
    length, head = hashes.get("auditLogLength"), hashes.get("auditLogHead")
    if length is None or head is None:
        raise NotVerified(report.name, "is not named by this checkpoint: the job kept no audit log when it was written")
    if not 0 < length <= len(entries):
        raise _ends_early(entries, f"the checkpoint was written after line {length}")
    if entries[length - 1].hash != head:
        raise LineInvalid(length, "is not the line that the checkpoint names: the log was replaced")
    published = [
        entry
        for entry in entries[length:]
        if entry.event == Event.PUBLICATION and entry.values.get("digest") == checkpoint.digest
    ]
    if not published:
        raise _ends_early(entries, "no line records that this checkpoint was published")
    report.checked.append(f"the statement names line {length}, and line {published[0].number} records its publication")
