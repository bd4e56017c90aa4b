"""Runs one rank in its worker pod, from the mounted files to the end of the training.

    the mounted files ─► the shard of this rank ─► the data set's digest, equal on all ranks ─► `training.worker`

Each incarnation prepares the data again: the pod may be a new one, and a data set that has changed is detected by its
digest. Ranks may need very different times for this. So they first wait for each other outside the process group,
whose collectives time out after some minutes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from tensafe_api.manifest.text import ManifestError, dump_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resolve import resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.statement.contents import Place
from tensorguard.aggregation.channel import Channel, ProcessGroupChannel
from tensorguard.audit_log.places import LOGGER as AUDIT_LOGGER
from tensorguard.audit_log.places import audit_log_of
from tensorguard.checkpoint.encryption import check_identity, read_identities, recipients_of
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.data.errors import DataError
from tensorguard.data.partition import NO_RECORD
from tensorguard.data.pod_shard import PodShard, prepare_pod_evaluation, prepare_pod_shard
from tensorguard.ledger.backends import LedgerLocation
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import tokeniser_of
from tensorguard.runners.pod.log import PodLog
from tensorguard.runners.pod.pod_files import PodFiles
from tensorguard.runners.preflight import check_evaluation_is_public, cpus_per_rank
from tensorguard.runners.run_folder import hold_run_lock
from tensorguard.training.audit_trail import AuditTrail
from tensorguard.training.collective_errors import AttemptFailed, run_on_all_ranks
from tensorguard.training.config import RUN_LOG, TRACEBACKS, WorkerConfig, append_traceback
from tensorguard.training.run_log import Ended, Listener, LogRecord, Preparing, RunLog
from tensorguard.training.worker import train


class RankFiles(Protocol):
    """What a rank is given before it trains: `PodFiles` in a pod, `NodeFiles` on a node of another Ray cluster."""

    @property
    def place(self) -> Place:
        """Where the workers run."""

    @property
    def run(self) -> Path:
        """The run's folder: run log and stop flag."""

    @property
    def private(self) -> Path:
        """The folder of tracebacks and private metrics."""

    @property
    def work(self) -> Path:
        """The folder of the rank's shard, on its own disk."""

    @property
    def key_file(self) -> Path:
        """The file of the job key."""

    @property
    def signing_key_file(self) -> Path | None:
        """The file of the signing key, on rank 0 of a job that signs its checkpoints."""

    @property
    def recipients_file(self) -> Path | None:
        """The file with the recipients of a ConfigMap, where the job may name one."""

    def identity_file(self, job: TenSafeTrainingJob) -> Path | None:
        """The file of the identity that decrypts checkpoints, if there is one."""

    @property
    def mounts(self) -> Path | None:
        """The folder in which PVCs are mounted, if any are."""

    def job(self) -> TenSafeTrainingJob:
        """The job. Values that follow from others may be absent."""

    def ledger_location(self) -> tuple[LedgerLocation | None, int]:
        """Where the ledger is (None: in the run's folder), and the number of the attempt."""

    def key(self) -> bytes:
        """The job key, after a check that it is that of the job."""


Barrier = Callable[[], None]
"""Returns once all ranks have called it, without a time limit."""


def run_pod_rank(values: dict[str, Any]) -> None:
    """The function of each worker pod, which runs inside the process group. `values` has at most `last_failure`."""
    from ray.train.collective import barrier
    from ray.train.torch import get_device

    device = get_device()
    last_failure = values.get("last_failure", "")
    train_in_pod(PodFiles.here(), ProcessGroupChannel(device), device, barrier, last_failure)


def train_in_pod(
    files: PodFiles, channel: Channel, device: torch.device, barrier: Barrier, last_failure: str = ""
) -> None:
    """Take part in one attempt until it ends; rank 0 writes to the run log of its pod how it ended.

    If the attempt cannot start, its end is logged as that of attempt 0, because the number may be what was unreadable.
    `last_failure` is that of `WorkerConfig`.

    Raises:
        Exception: an error that a restart may fix, as in `training.worker.train`.
    """
    files.run.mkdir(parents=True, exist_ok=True)
    with _pod_log(files, channel.rank) as log:
        try:
            config = configure(files, channel, barrier, log.write_record)
        except AttemptFailed as failure:
            record_failed_start(files, channel.rank, 0, failure, log.write_record)
            return
        if channel.rank % files.job().spec.cluster.ranks_per_worker == 0:  # the others of this pod end with it
            hold_run_lock(files.run)  # until Ray Train has received the result of this rank, and ends the process
        train(replace(config, last_failure=last_failure), channel, device, log.write_record)


def record_failed_start(
    files: RankFiles, rank: int, attempt: int, failure: AttemptFailed, listener: Listener | None = None
) -> None:
    """Write the traceback of an attempt that could not start, and on rank 0 its end to the run log and `listener`."""
    if failure.__cause__ is not None:
        append_traceback(files.private / TRACEBACKS.format(process=f"rank{rank}"), attempt)
    if rank == 0:
        ended = Ended(time.time(), attempt, failure.reason.value, str(failure))
        _write_record(files, ended, listener)
        _log_refusal(files, attempt or None, failure)


def _write_record(files: RankFiles, record: LogRecord, listener: Listener | None) -> None:
    """Write a record to the run log before the worker opens it, and pass it to `listener`."""
    run_log = RunLog(files.run / RUN_LOG)
    run_log.write(record)
    run_log.close()
    if listener is not None:
        listener(record)


def _log_refusal(files: RankFiles, attempt: int | None, failure: AttemptFailed) -> None:
    """Write to the audit log why an attempt could not start. The job itself may be what is unreadable."""
    with suppress(Exception):
        job, (location, number) = files.job(), files.ledger_location()
        uid = job.metadata.uid or ""
        found = audit_log_of(job, uid, files.run, in_pod=location is not None, process="rank 0")
        AuditTrail(found, attempt or number).log_failure(failure.reason, str(failure))


@contextmanager
def _pod_log(files: PodFiles, rank: int) -> Iterator[PodLog]:
    """The pod's log. Inside the with block it receives the warnings of this project, the lines of the audit log, and an
    error that leaves it.
    """
    log = PodLog(rank, files.output)
    loggers = logging.getLogger("tensorguard"), AUDIT_LOGGER
    for logger in loggers:
        logger.addHandler(log)
    try:
        yield log
    except Exception as error:
        log.write_failure(error)
        raise
    finally:
        for logger in loggers:
            logger.removeHandler(log)
        log.close()


def configure(files: RankFiles, channel: Channel, barrier: Barrier, listener: Listener | None = None) -> WorkerConfig:
    """Prepare this rank's data, and return the parameters of its worker. Every rank calls this.

    Rank 0 writes to the run log and `listener` which files are read, and which ones are left out.

    Raises:
        AttemptFailed: on every rank, if any of them cannot start.
    """
    prepared = run_on_all_ranks(channel, lambda: _prepare_together(files, channel, barrier, listener))
    job, shard = prepared.job, prepared.shard
    received = channel.all_gather(bytes([shard.empty]) + shard.digest.encode())
    if any(each[1:] != received[0][1:] for each in received):
        message = "spec.dataset: the workers read different records: do not change the data while the job runs"
        raise AttemptFailed(Reason.DATASET_UNREADABLE, message)
    if all(each[0] for each in received):
        raise AttemptFailed(Reason.DATASET_UNSUITABLE, f"spec.dataset: {NO_RECORD}")
    location, attempt = files.ledger_location()
    signing = job.spec.checkpoint.signing is not None
    identity = files.identity_file(job)
    return WorkerConfig(
        job=dump_manifest(job, format="json"),
        job_uid=job.metadata.uid or "",
        attempt=attempt,
        place=files.place,
        run_directory=str(files.run),
        private_directory=str(files.private),
        key_file=str(files.key_file),
        shards=prepared.shards(channel),
        evaluation=str(prepared.evaluation) if prepared.evaluation else None,
        dataset_digest=shard.digest,
        threads=max(1, int(cpus_per_rank(job))),
        ledger_location=location,
        signing_key=str(files.signing_key_file) if signing and files.signing_key_file else None,
        recipients_file=str(files.recipients_file) if files.recipients_file else None,
        identity_file=str(identity) if identity else None,
        mounts=str(files.mounts) if files.mounts else None,
    )


@dataclass(frozen=True)
class _Prepared:
    job: TenSafeTrainingJob
    shard: PodShard
    evaluation: Path | None

    def shards(self, channel: Channel) -> tuple[str, ...]:
        """Paths of the shards by rank. A pod has its own shard only; the others are empty strings."""
        return tuple(str(self.shard.shard) if rank == channel.rank else "" for rank in range(channel.size))


def _prepare_together(files: RankFiles, channel: Channel, barrier: Barrier, listener: Listener | None) -> _Prepared:
    """Call `_prepare`, and wait until it has returned or raised on every rank.

    The private cause of unusable data goes to the rank's private log.
    """
    try:
        return _prepare(files, channel, listener)
    except DataError as error:
        if error.__cause__ is not None:
            append_traceback(
                files.private / TRACEBACKS.format(process=f"rank{channel.rank}"), files.ledger_location()[1]
            )
        raise
    finally:
        barrier()


def _prepare(files: RankFiles, channel: Channel, listener: Listener | None) -> _Prepared:
    def report(what: str) -> None:
        if channel.rank == 0:
            _write_record(files, Preparing(time.time(), what), listener)

    job, key = _completed(files.job()), files.key()
    files.ledger_location()  # checked before the data is read
    spec, directory = job.spec, files.work
    check_evaluation_is_public(job)
    if channel.rank == 0:
        _check_encryption(files, job)
        CheckpointStore.for_job(job).check_writable(wait=True)  # a restart may happen during an outage
    tokenise = tokeniser_of(spec, resolve_model(spec.model.name, spec.model.revision))
    evaluation = prepare_pod_evaluation(spec, tokenise, rank=channel.rank, directory=directory, report=report)
    public = evaluation if spec.evaluation and spec.evaluation.visibility == "Public" else None
    shard = prepare_pod_shard(
        spec,
        tokenise,
        rank=channel.rank,
        workers=channel.size,
        key=key,
        directory=directory,
        public=public,
        report=report,
    )
    return _Prepared(job, shard, evaluation)


def _check_encryption(files: RankFiles, job: TenSafeTrainingJob) -> None:
    """Check that checkpoints can be encrypted, and decrypted again, before the data is read."""
    recipients, identity = recipients_of(job, files.recipients_file), files.identity_file(job)
    if recipients is not None and identity is not None:
        check_identity(job, recipients, read_identities(identity))


def _completed(job: TenSafeTrainingJob) -> TenSafeTrainingJob:
    """The job with every default of this release. The operator may be of another one, and writes only what was asked
    for and what the ledger fixes.
    """
    try:
        completed, _ = resolve_job(job)
    except ManifestError as error:
        problems = "; ".join(str(problem) for problem in error.problems)
        raise AttemptFailed(Reason.INVALID_MANIFEST, problems) from error
    return completed
