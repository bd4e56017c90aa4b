"""Runs one job on this machine, from its manifest to its status. `tensafe run` and the Python API both call `run`.

    resolve the manifest ─► check the machine ─► read, tokenise and shard the data ─► open the ledger ─► train ─► fold
    the status

The run's folder holds what must survive the process: the ledger, the run log, the completed manifest. The job key is in
the run's private folder (`private_folder`), and is deleted when no resume can need it. Only the workers charge the
ledger, so a failure before they start costs nothing and leaves no ledger behind.

Where the process has joined a Ray cluster of several machines, the workers read the data themselves and find the key
in a file of their node (`runners.nodes`); the rest is the same.

The work runs on a background thread (`run_in_background`). In a cluster the operator does the first half of this, and
`runners.pod.attempt` does the rest.
"""

from __future__ import annotations

import math
import secrets
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tensafe_api.manifest.text import dump_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resolve import Claim, Plan, ledger_spec, resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.ledger import FINAL_OUTCOMES, LedgerSpec
from tensafe_api.resources.model import commit_of
from tensorguard.audit_log.places import AUDIT_LOG
from tensorguard.disk_full import describe_full_disk, names_file
from tensorguard.ledger.contract import LedgerError, LedgerState
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.background import run_in_background
from tensorguard.runners.local.audit import check_audit_log, log_failure
from tensorguard.runners.local.data_preparation import InMemoryData, prepare_data
from tensorguard.runners.local.driver_log import DriverLog
from tensorguard.runners.local.earlier_run import (
    MANIFEST,
    check_same_values,
    find_earlier_run,
    read_ledger,
    refuse_foreign_files,
    uid_of_manifest,
)
from tensorguard.runners.local.encryption import check_encryption, check_recipients
from tensorguard.runners.local.private_folder import PrivateFolder
from tensorguard.runners.local.ray_cluster import local_ray, run_local_rank, run_node_rank
from tensorguard.runners.local.signing import check_signing
from tensorguard.runners.local.status import exit_code_of, status_from_run
from tensorguard.runners.nodes.checks import check_nodes
from tensorguard.runners.nodes.cluster import call_on_nodes, has_other_nodes, joined_cluster, nodes_with
from tensorguard.runners.nodes.node_files import SALT_FILE, NodeFiles, remove_scratch
from tensorguard.runners.preflight import (
    RunRefused,
    check_absolute_paths,
    check_evaluation_is_public,
    check_folders_are_outside_data,
    check_local_resources,
    cpus_per_rank,
    cpus_per_worker,
    with_absolute_paths,
)
from tensorguard.runners.run_folder import (
    RAY_TRAIN_FOLDER,
    WORK_FOLDER,
    RunFolderError,
    lock_run_folder,
    replace_owner_only,
    write_owner_only,
)
from tensorguard.runners.worker_group import RankFunction, WorkerGroup, run_workers
from tensorguard.signing.keys import key_location
from tensorguard.training.collective_errors import describe_error
from tensorguard.training.config import RUN_LOG, TRACEBACKS, WorkerConfig, append_traceback, tracebacks_of
from tensorguard.training.rollback_check import check_same_job
from tensorguard.training.run_log import Ended, Listener, RunLogReader
from tensorguard.training.stop_signal import StopSignal


@dataclass(frozen=True)
class RunResult:
    """The job with its status, and the exit code: 0 succeeded, 1 failed, 3 budget exhausted, 130 interrupted."""

    job: TenSafeTrainingJob
    exit_code: int


def run(
    job: TenSafeTrainingJob,
    *,
    output_dir: Path,
    base_dir: Path,
    resume: bool,
    listener: Listener,
    stop: StopSignal,
    data: InMemoryData | None = None,
    timeout: float | None = None,
    admitted: Callable[[], None] = lambda: None,
    address: str | None = None,
    signing_key: str | Path | None = None,
    identity: Path | None = None,
    rank_function: RankFunction = run_local_rank,
) -> RunResult:
    """Train `job` and return it with its status.

    Args:
        job: as loaded from the manifest; this function fills in the defaults.
        output_dir: the run's folder; created if it does not exist.
        base_dir: the folder to which relative paths in the manifest refer.
        resume: continue the run in `output_dir`. Without it, a folder whose ledger was charged is refused.
        listener: called with each log record, on this thread.
        stop: requests that the run stops; signal handlers call `stop.request()`.
        data: data in memory, used in place of the URIs.
        timeout: seconds that workers may wait for each other.
        admitted: called on this thread when the run is accepted. If it requests a stop, nothing starts.
        address: of the Ray cluster to join; None: what RAY_ADDRESS names. Where neither does, or the address is
            "local", and this process has joined no cluster, the run starts one on this machine.
        signing_key: path or PKCS #11 URI of the key that signs the checkpoints; None: they are not signed.
        identity: file of the age identity that decrypts a checkpoint to resume or to start from; None: there is none.
        rank_function: what each worker on this machine calls; an audit has its own.

    Raises:
        ManifestError: the manifest does not resolve.
        RunRefused: the run cannot start as requested; nothing was changed or spent.
        Exception: whatever `listener` raised, after the charged steps were finished and a checkpoint was saved.
    """
    completed, plan = resolve_job(with_absolute_paths(job, base_dir))
    data = data or InMemoryData()
    if data.train is None and data.evaluation is None:
        check_evaluation_is_public(completed)
    with joined_cluster(address, lambda: stop.requested):
        check_local_resources(completed)
        on_nodes = has_other_nodes()
        if on_nodes:
            data.refuse_on_nodes()
        with _locked(output_dir), ExitStack() as locks:
            one = _Run(
                completed, plan, output_dir, data, stop, timeout, locks, on_nodes, signing_key, identity, rank_function
            )
            one.admit_or_log(resume)
            admitted()
            reader = RunLogReader(output_dir / RUN_LOG, from_end=True)
            failures: list[Exception] = []

            def listen() -> None:
                try:
                    for record in () if failures else reader.read():
                        listener(record)
                except Exception as error:  # the workers would train on without a driver, and without its locks
                    failures.append(error)
                    stop.request(after_charged_steps=True)

            run_in_background(one.work, meanwhile=listen)
            result = one.result()
            if failures:
                raise failures[0]
            return result


@dataclass
class _Run:
    """One call of `run`: `admit` runs on the caller's thread, `work` on the background thread, `result` after it."""

    job: TenSafeTrainingJob
    plan: Plan
    directory: Path
    data: InMemoryData
    stop: StopSignal
    timeout: float | None
    locks: ExitStack
    """Holds the lock of the private folder, which runs in different folders may share, until the run has ended."""
    on_nodes: bool = False
    """Whether workers may run on other machines: then each prepares its data itself, and has the key in a file."""
    signing_key: str | Path | None = None
    identity: Path | None = None
    rank_function: RankFunction = run_local_rank
    attempt: int = 1
    ended: Ended | None = None
    ledger_spec: LedgerSpec | None = None
    _salt: str = field(init=False, default_factory=lambda: secrets.token_hex(16))
    _key_digest: str = ""
    _private: PrivateFolder = field(init=False)
    _log: DriverLog = field(init=False)

    def admit_or_log(self, resume: bool) -> None:
        """As `admit`. The audit log of an earlier run in the folder records that this one was refused."""
        try:
            self.admit(resume)
        except RunRefused as refusal:
            if (uid := uid_of_manifest(self.directory)) and (self.directory / AUDIT_LOG).exists():
                log_failure(self._with_uid(uid), self.directory, None, refusal.reason, str(refusal))
            raise
        except OSError as error:
            if full := describe_full_disk(error):
                raise RunRefused("", f"{full}: free space there, or choose another --output-dir") from error
            raise

    def admit(self, resume: bool) -> None:
        """Refuse a run that cannot start, and create the job key, the manifest copy and the run log."""
        earlier = find_earlier_run(self.directory, resume=resume)
        if earlier is None:
            refuse_foreign_files(self.directory)
        self._private = PrivateFolder.of(self.directory, self.job.spec.checkpoint.uri)
        check_folders_are_outside_data(self.job, self.directory, self._private.path)
        check_absolute_paths(self.job)
        if earlier is not None and self._is_over(earlier):
            self._private.delete_secrets(earlier.spec.job_uid)  # the run may have been killed before it did so
            how = earlier.outcome or Reason.PRIVACY_BUDGET_EXCEEDED
            raise RunRefused(
                "", f"the run in {self.directory} is over ({how}); choose another --output-dir to train again"
            )
        check_signing(self.job, earlier, self.signing_key, on_nodes=self.on_nodes)
        if earlier is not None:
            check_audit_log(self.job, self.directory)
        check_recipients(self.job)
        self._check_checkpoint_place(earlier)
        if self.on_nodes:
            self._check_nodes()
        uid = earlier.spec.job_uid if earlier else str(uuid.uuid4())
        self.ledger_spec = ledger_spec(self.job, self.plan, uid)
        if earlier is not None:
            self._resume(earlier, self.ledger_spec)
        else:
            self._start_first(uid)
        self.job = self._with_uid(uid)
        replace_owner_only(self.directory / MANIFEST, dump_manifest(self.job).encode())
        self.stop.bind(self.directory)
        self._log = DriverLog(self.job, self.directory, self.attempt)

    def _check_checkpoint_place(self, earlier: LedgerState | None) -> None:
        """Refuse a place that cannot be written, or that has the checkpoints of another run."""
        from tensorguard.checkpoint.store import CheckpointError, CheckpointStore

        try:
            store = CheckpointStore.for_job(self.job)
            store.check_writable()
            check_encryption(self.job, store, earlier, self.identity, on_nodes=self.on_nodes)
        except (CheckpointError, ImportError, ValueError) as error:
            raise RunRefused("spec.checkpoint.uri", str(error)) from error
        if earlier is None and (others := store.names()):
            raise RunRefused(
                "spec.checkpoint.uri",
                f"{store.uri(others[0])} is another run's checkpoint, which this run could overwrite; "
                "choose another location, or move that checkpoint away",
            )

    def _resume(self, earlier: LedgerState, spec: LedgerSpec) -> None:
        """Continue the earlier run in the folder with its job key and its commit of the model."""
        check_same_values(self.directory, earlier, spec)
        if not self.on_nodes:
            self._private.check_key(spec.job_uid)
        self._open_private()
        self.attempt = earlier.attempt + 1
        self.job = self.job.model_copy(update={"spec": self.job.spec.at_commit(commit_of(earlier.model_weights))})

    def _start_first(self, uid: str) -> None:
        """Create the job key, after what is left of a run that never charged a step is deleted."""
        if never_charged := uid_of_manifest(self.directory):
            self._private.delete_key(never_charged)
        self._open_private()
        for leftover in (LEDGER, RUN_LOG, AUDIT_LOG):
            (self.directory / leftover).unlink(missing_ok=True)
        if not self.on_nodes:
            self._private.create_key(uid)

    def _with_uid(self, uid: str) -> TenSafeTrainingJob:
        metadata = self.job.metadata.model_copy(update={"uid": uid})
        return self.job.model_copy(update={"metadata": metadata})

    def _is_over(self, ledger: LedgerState) -> bool:
        """Whether no resume can train a further step, or write a final checkpoint."""
        if ledger.outcome in FINAL_OUTCOMES:
            return True
        if self.job.spec.privacy.on_budget_exhausted == "Stop" or any(each.final for each in ledger.checkpoints):
            return False
        return not Claim.of(ledger.spec).affordable_steps(ledger.steps_charged, 1)

    def _open_private(self) -> None:
        self._private.open()
        self.locks.enter_context(lock_run_folder(self._private.path))

    def work(self) -> None:
        """Prepare the data, open the ledger, train. It raises nothing: every outcome is stored in `ended`."""
        work = self._private.path / WORK_FOLDER
        try:
            if self._stopped():
                return
            self._log.write_stage("Starting Ray")
            cpus = math.ceil(self.job.spec.cluster.workers * cpus_per_worker(self.job))
            gpus = self.job.spec.cluster.workers * self.job.spec.cluster.worker.gpus
            with local_ray(self.directory, cpus=cpus, gpus=gpus):
                config = self._node_files() if self.on_nodes else self._prepare(work)
                if self._stopped():
                    return
                self._open_ledger()
                self._log.write_stage("Starting the workers")
                run_workers(
                    run_node_rank if self.on_nodes else self.rank_function,
                    config.pack(),
                    WorkerGroup.of(self.job, timeout=self.timeout),
                    work / RAY_TRAIN_FOLDER,
                )
            self.ended = self._log.logged_end() or self._log.write_end(
                Reason.WORKER_LOST, "the workers ended without logging a reason; see their log"
            )
        except Exception as error:
            reason, sentence = describe_error(error)
            if not hasattr(error, "reason"):
                sentence += append_traceback(self._private.path / TRACEBACKS.format(process="driver"), self.attempt)
            elif reason is Reason.WORKER_LOST and (files := tracebacks_of(self._private.path, self.attempt)):
                sentence += f" (tracebacks: {', '.join(map(str, files))})"
            self.ended = self._log.logged_end() or self._log.write_end(reason, sentence)
        finally:
            shutil.rmtree(work, ignore_errors=True)
            if self.on_nodes:
                (self.directory / SALT_FILE).unlink(missing_ok=True)
                with suppress(Exception):  # the cluster may have ended
                    call_on_nodes(nodes_with({}), remove_scratch, self.job.metadata.uid)

    def result(self) -> RunResult:
        """The job with its status, computed from ledger and run log. Deletes the secrets of a run that is over."""
        ended = self.ended or self._log.write_end(Reason.INTERNAL_ERROR, "the run ended without a reason")
        records = list(RunLogReader(self.directory / RUN_LOG).read())
        try:
            ledger = read_ledger(self.directory)
            if ledger is not None and self.ledger_spec is not None:
                check_same_job(ledger, self.ledger_spec)
            uid = self.job.metadata.uid or ""
            if ledger is None:  # nothing was spent: the next run in this folder is a new one
                self._private.delete_key(uid)
            elif self._is_over(ledger):
                self._private.delete_secrets(uid)
        except LedgerError as error:
            ledger, ended = None, self._log.write_end(*describe_error(error))
        self._log.close()
        status = status_from_run(self.job, self.plan, ledger, records, ended)
        job = self.job.model_copy(update={"status": status})
        return RunResult(job, exit_code_of(Reason(ended.reason)))

    def _stopped(self) -> bool:
        """Whether a stop was requested before the workers start. It is then the end of the run."""
        if self.stop.requested:
            self.ended = self._log.write_end(Reason.INTERRUPTED, "stopped on request before the first step")
        return self.stop.requested

    def _open_ledger(self) -> None:
        assert self.ledger_spec is not None
        if not (self.directory / LEDGER).exists():
            FileLedger.create(self.directory, self.ledger_spec)

    def _check_nodes(self) -> None:
        """Check that the workers on other machines share the run's folders, and have the same job key."""
        self._private.open()
        checkpoints = self.job.spec.checkpoint.uri.removeprefix("file://")
        folders = [self.directory, self._private.path, *([] if "://" in checkpoints else [Path(checkpoints)])]
        nodes = nodes_with(WorkerGroup.of(self.job).resources)
        self._key_digest = check_nodes(nodes, folders, self._salt)

    def _node_files(self) -> NodeFiles:
        """The parameters of the workers on other machines. Nothing in them is secret."""
        (self.directory / SALT_FILE).unlink(missing_ok=True)
        write_owner_only(self.directory / SALT_FILE, self._salt.encode())
        return NodeFiles(
            text=dump_manifest(self.job, format="json"),
            attempt=self.attempt,
            run_directory=str(self.directory.absolute()),
            private_directory=str(self._private.path),
            salt=self._salt,
            key_digest=self._key_digest,
        )

    def _prepare(self, work: Path) -> WorkerConfig:
        """The parameters of the workers, after their data was prepared in `work`."""
        with names_file(work / "shards"):
            prepared = prepare_data(self.job, self.data, self._key_file, work, self._log.write_stage)
        return WorkerConfig(
            job=dump_manifest(self.job, format="json"),
            job_uid=self.job.metadata.uid or "",
            attempt=self.attempt,
            place="OneMachine",
            run_directory=str(self.directory.absolute()),
            private_directory=str(self._private.path),
            key_file=str(self._key_file),
            shards=prepared.shards,
            evaluation=prepared.evaluation,
            dataset_digest=prepared.digest,
            threads=max(1, int(cpus_per_rank(self.job))),
            signing_key=key_location(str(self.signing_key)) if self.signing_key else None,
            identity_file=str(self.identity.absolute()) if self.identity else None,
        )

    @property
    def _key_file(self) -> Path:
        return self._private.key_file(self.job.metadata.uid or "")


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        with lock_run_folder(directory):
            yield
    except RunFolderError as error:
        raise RunRefused("", str(error)) from error
