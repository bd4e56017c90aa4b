"""One job on this machine, from its manifest to its status: what `tensafe run` and the Python API both call.

    resolve the manifest ─► check the machine ─► read, tokenise and shard the data ─► open the ledger ─► train ─► fold
    the status

The run's folder holds what must outlive the process: the ledger, the job key, the event log, the completed manifest.
Nothing is spent before the workers charge the ledger, so whatever fails before that costs nothing and leaves no ledger
behind.

The work runs on a background thread (`run_in_background`). In a cluster the operator does the first half of this, and
`runners.pod.attempt` does the rest.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensafe_api.manifest import dump_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resolve import Plan, ledger_spec, resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.ledger import LedgerSpec
from tensorguard.ledger.contract import LedgerCorrupt, LedgerError, LedgerState
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.background import run_in_background
from tensorguard.runners.local.ray_cluster import local_ray, run_local_rank
from tensorguard.runners.local.status import exit_code_of, fold_status
from tensorguard.runners.preflight import (
    RunRefused,
    changed_fields,
    check_evaluation_is_public,
    check_local_resources,
    cpus_per_worker,
    with_absolute_paths,
)
from tensorguard.runners.run_folder import (
    RAY_TRAIN_FOLDER,
    WORK_FOLDER,
    RunFolderError,
    lock_run_folder,
    write_owner_only,
)
from tensorguard.runners.worker_group import WorkerGroup, run_workers
from tensorguard.training.collective_errors import describe_error
from tensorguard.training.config import JOB_KEY, RUN_LOG, TRACEBACKS, WorkerConfig, append_traceback
from tensorguard.training.rollback_check import check_run_log
from tensorguard.training.run_log import Ended, Listener, Preparing, RunLog, RunLogReader, steps_charged_in
from tensorguard.training.stop_signal import StopSignal

MANIFEST = "job.yaml"


@dataclass(frozen=True)
class RunResult:
    """The job with its status, and what the command returns: 0 succeeded, 1 failed, 3 budget exhausted, 130
    interrupted.
    """

    job: TenSafeTrainingJob
    exit_code: int


@dataclass(frozen=True)
class InMemoryData:
    """Data that is in memory instead of at the manifest's URIs (the Python API): anything that `data.read.from_memory`
    takes.
    """

    train: Any = None
    evaluation: Any = None


def run(
    job: TenSafeTrainingJob,
    *,
    output_dir: Path,
    base_dir: Path,
    resume: bool,
    listener: Listener,
    stop: StopSignal,
    sources: InMemoryData | None = None,
    timeout: float | None = None,
) -> RunResult:
    """Train `job` and return it with its status.

    Args:
        job: as loaded; defaults are filled in here.
        output_dir: the run's folder; made where it does not exist.
        base_dir: where relative paths in the manifest begin.
        resume: go on with the run in `output_dir`; without it, a folder whose ledger was charged is refused.
        listener: called with each event, on this thread.
        stop: raised by whoever wants to stop (signal handlers call `stop.request()`).
        sources: data in memory.
        timeout: seconds that workers may wait for each other.

    Raises:
        ManifestError: where the manifest does not resolve.
        RunRefused: where the run cannot begin as asked; nothing was changed or spent.
    """
    completed, plan = resolve_job(with_absolute_paths(job, base_dir))
    check_local_resources(completed)
    if sources is None:
        check_evaluation_is_public(completed)
    with _alone_in(output_dir):
        one = _Run(completed, plan, output_dir, sources or InMemoryData(), stop, timeout)
        one.admit(resume)
        reader = RunLogReader(output_dir / RUN_LOG, from_end=True)

        def listen() -> None:
            for event in reader.read():
                listener(event)

        run_in_background(one.work, meanwhile=listen)
        return one.result()


@dataclass
class _Run:
    """One call of `run`. `admit` on the caller's thread, `work` on its own, `result` after it."""

    job: TenSafeTrainingJob
    plan: Plan
    directory: Path
    sources: InMemoryData
    stop: StopSignal
    timeout: float | None
    attempt: int = 1
    ended: Ended | None = None
    ledger_spec: LedgerSpec | None = None
    _log: RunLog = field(init=False)
    _since: RunLogReader = field(init=False)
    """Reads the events of this call alone: an attempt that never claimed the ledger leaves its number to the next."""

    def admit(self, resume: bool) -> None:
        """Refuse what cannot begin; look at an earlier run in the folder; make the key and the event log."""
        from tensorguard.checkpoint.store import CheckpointError, CheckpointStore

        earlier = self._earlier(resume)
        try:
            store = CheckpointStore.for_job(self.job)
            store.check_writable()
        except (CheckpointError, ImportError, ValueError) as error:
            raise RunRefused("spec.checkpoint.uri", str(error)) from error
        if earlier is None and (others := store.names()):
            raise RunRefused(
                "spec.checkpoint.uri",
                f"{store.uri(others[0])} is another run's checkpoint, which this run could overwrite; "
                "name another place, or move it away",
            )
        uid = earlier.spec.job_uid if earlier else str(uuid.uuid4())
        self.ledger_spec = ledger_spec(self.job, self.plan, uid)
        if earlier is not None:
            self._check_same(earlier)
            self.attempt = earlier.attempt + 1
        else:
            for leftover in (LEDGER, RUN_LOG, JOB_KEY):
                (self.directory / leftover).unlink(missing_ok=True)
            write_owner_only(self.directory / JOB_KEY, secrets.token_bytes(32))
        if not (self.directory / JOB_KEY).exists():
            raise RunRefused(
                "",
                f"{self.directory / JOB_KEY} is gone; put it back, or the data cannot be checked to be the same",
            )
        metadata = self.job.metadata.model_copy(update={"uid": uid})
        self.job = self.job.model_copy(update={"metadata": metadata})
        (self.directory / MANIFEST).unlink(missing_ok=True)
        write_owner_only(self.directory / MANIFEST, dump_manifest(self.job).encode())
        self.stop.bind(self.directory)
        self._since = RunLogReader(self.directory / RUN_LOG, from_end=True)
        self._log = RunLog(self.directory / RUN_LOG)

    def work(self) -> None:
        """Prepare the data, open the ledger, train; whatever happens ends in `ended`."""
        work = self.directory / WORK_FOLDER
        try:
            self._tell("Starting Ray")
            cpus = math.ceil(self.job.spec.cluster.workers * cpus_per_worker(self.job))
            gpus = self.job.spec.cluster.workers * self.job.spec.cluster.worker.gpus
            with local_ray(self.directory, cpus=cpus, gpus=gpus):
                config = self._prepare(work)
                if self.stop:
                    self.ended = self._ending(Reason.INTERRUPTED, "stopped on request before the first step")
                    return
                self._open_ledger()
                self._tell("Starting the workers")
                run_workers(
                    run_local_rank,
                    config.pack(),
                    WorkerGroup.of(self.job, timeout=self.timeout),
                    work / RAY_TRAIN_FOLDER,
                )
            self.ended = self._told_end() or self._ending(
                Reason.WORKER_LOST, "the workers ended without a word; see their log"
            )
        except Exception as error:
            if not hasattr(error, "reason"):
                append_traceback(self.directory / TRACEBACKS.format(process="driver"), self.attempt)
            self.ended = self._told_end() or self._ending(*describe_error(error))
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def result(self) -> RunResult:
        """The job with its status, folded from the ledger and the events."""
        ended = self.ended or self._ending(Reason.INTERNAL_ERROR, "the run ended without a reason")
        events = list(RunLogReader(self.directory / RUN_LOG).read())
        try:
            ledger = self._read_ledger()
        except LedgerError as error:
            ledger, ended = None, self._ending(*describe_error(error))
        self._log.close()
        status = fold_status(self.job, self.plan, ledger, events, ended)
        job = self.job.model_copy(update={"status": status})
        return RunResult(job, exit_code_of(Reason(ended.reason)))

    def _earlier(self, resume: bool) -> LedgerState | None:
        """The state of the run that `directory` holds, if it may and must be gone on with."""
        ledger = FileLedger(self.directory, lock_wait_seconds=30.0 if resume else 0.0)
        if not os.path.lexists(self.directory / LEDGER):
            if charged := steps_charged_in(self.directory / RUN_LOG):
                raise RunRefused(
                    "",
                    f"{self.directory / LEDGER} is missing, and {RUN_LOG} records {charged} charged steps; "
                    "put the ledger back, or name another --output-dir",
                )
            # A run that ended before its workers began has no ledger: nothing was spent, and a resume begins it.
            if resume and not (self.directory / MANIFEST).exists():
                raise RunRefused("", f"{self.directory} holds no run to resume; leave out --resume to begin one")
            return None
        try:
            ledger.wait_until_free()
            state = ledger.read()
            check_run_log(self.directory / RUN_LOG, state)
        except LedgerError as error:
            raise RunRefused("", str(error)) from error
        if not resume:
            if state.steps_charged == 0:
                return None  # nothing was spent under it
            raise RunRefused(
                "",
                f"{self.directory} holds the ledger of a run that was charged {state.steps_charged} steps; "
                "go on with it by --resume, or name another --output-dir",
            )
        if state.outcome in ("Completed", "BudgetExhausted"):
            raise RunRefused(
                "", f"the run in {self.directory} is over ({state.outcome}); name another --output-dir to train again"
            )
        return state

    def _check_same(self, earlier: LedgerState) -> None:
        """A resume under other privacy values would make the ledger's ε a lie."""
        assert self.ledger_spec is not None
        changed = changed_fields(
            earlier.spec.model_dump(by_alias=True, mode="json"), self.ledger_spec.model_dump(by_alias=True, mode="json")
        )
        if changed:
            raise RunRefused(
                "",
                f"the ledger in {self.directory} was opened with other values ({'; '.join(changed)}); "
                f"resume with the manifest {self.directory / MANIFEST}, or name another --output-dir",
            )

    def _open_ledger(self) -> None:
        assert self.ledger_spec is not None
        if not (self.directory / LEDGER).exists():
            FileLedger.create(self.directory, self.ledger_spec)

    def _prepare(self, work: Path) -> WorkerConfig:
        """Read, tokenise and shard, before the workers take the CPUs."""
        from tensorguard.data.read import from_memory, read
        from tensorguard.data.recipe import Recipe, columns_of
        from tensorguard.data.shards import prepare, prepare_public
        from tensorguard.models.source import resolve_model
        from tensorguard.models.tasks import task_of
        from tensorguard.models.tokenizer import load_tokenizer

        spec = self.job.spec
        source = resolve_model(spec.model.name, spec.model.revision)
        tokenizer = load_tokenizer(
            source, chat_template=spec.model.chat_template, trust_remote_code=spec.model.trust_remote_code
        )
        tokenise = task_of(spec).tokeniser(tokenizer, Recipe.from_spec(spec))
        self._tell("Reading and tokenising the data set")
        if self.sources.train is not None:
            dataset = from_memory(self.sources.train, columns_of(spec))
        else:
            dataset = read(spec.dataset.uri, columns_of(spec), format=spec.dataset.format, storage=spec.storage)
        key = (self.directory / JOB_KEY).read_bytes()
        prepared = prepare(dataset, spec, tokenise, workers=spec.cluster.workers, key=key, directory=work)
        public = None
        if spec.evaluation is not None:
            columns = Recipe.from_spec(spec).columns
            if self.sources.evaluation is not None:
                examples = from_memory(self.sources.evaluation, columns, where="eval_dataset")
            else:
                uri = spec.evaluation.uri
                examples = read(
                    uri, columns, format=spec.evaluation.format, storage=spec.storage, where="spec.evaluation"
                )
            public = prepare_public(examples, spec, tokenise, directory=work)
        return WorkerConfig(
            job=dump_manifest(self.job, format="json"),
            job_uid=self.job.metadata.uid or "",
            attempt=self.attempt,
            run_directory=str(self.directory.absolute()),
            shards=tuple(str(path.absolute()) for path in prepared.shards),
            evaluation=str(public.absolute()) if public else None,
            dataset_digest=prepared.digest,
            threads=max(1, int(cpus_per_worker(self.job))),
        )

    def _read_ledger(self) -> LedgerState | None:
        """The ledger at the run's end, None where nothing was spent.

        Raises:
            LedgerError: where it cannot be believed.
        """
        if not (self.directory / LEDGER).exists():
            if steps_charged_in(self.directory / RUN_LOG):
                raise LedgerCorrupt(f"{self.directory / LEDGER} is gone: what was spent is not known")
            return None
        ledger = FileLedger(self.directory).read()
        check_run_log(self.directory / RUN_LOG, ledger)
        return ledger

    def _told_end(self) -> Ended | None:
        """How rank 0 said that this attempt ended."""
        return next((event for event in self._since.read() if isinstance(event, Ended)), None)

    def _ending(self, reason: Reason, message: str) -> Ended:
        ended = Ended(time.time(), self.attempt, reason.value, message)
        self._log.write(ended)
        return ended

    def _tell(self, what: str) -> None:
        self._log.write(Preparing(time.time(), what))


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    try:
        with lock_run_folder(directory):
            yield
    except RunFolderError as error:
        raise RunRefused("", str(error)) from error
