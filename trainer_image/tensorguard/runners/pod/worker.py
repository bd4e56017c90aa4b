"""One worker pod of one attempt: from what is mounted there to the end of the training.

    the mounted files ─► this rank's shard ─► the data set's digest, of all ranks' ─► `training.worker`

Each incarnation prepares anew: the pod may be another one, and a data set that changed meanwhile shows by its digest.
Ranks may need unequal time for it, so they meet outside the process group first, which waits only some minutes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tensafe_api.manifest import dump_manifest
from tensafe_api.reasons import Reason
from tensorguard.aggregation.channel import Channel, ProcessGroupChannel
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.data import keys
from tensorguard.data.partition import why_no_record_is_usable
from tensorguard.data.pod_shard import PodShard, prepare_pod_evaluation, prepare_pod_shard
from tensorguard.data.recipe import Recipe
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import task_of
from tensorguard.models.tokenizer import load_tokenizer
from tensorguard.runners.pod.log import PodLog
from tensorguard.runners.pod.pod_files import PodFiles
from tensorguard.runners.preflight import check_evaluation_is_public, cpus_per_worker
from tensorguard.runners.run_folder import WORK_FOLDER, hold_run_lock
from tensorguard.training.collective_errors import AttemptFailed, run_on_all_ranks
from tensorguard.training.config import RUN_LOG, TRACEBACKS, WorkerConfig, append_traceback
from tensorguard.training.run_log import Ended, RunLog
from tensorguard.training.worker import train

Barrier = Callable[[], None]
"""Returns once all ranks have called it, however long that takes."""


def run_pod_rank(loop: dict[str, Any]) -> None:
    """What Ray Train calls in each worker pod, once the process group stands."""
    from ray.train.collective import barrier
    from ray.train.torch import get_device

    device = get_device()
    train_in_pod(PodFiles.here(), ProcessGroupChannel(device), device, barrier)


def train_in_pod(mounted: PodFiles, channel: Channel, device: torch.device, meet: Barrier) -> None:
    """Take part in one attempt until it ends; rank 0 has told its pod's event log how. (Where it cannot begin, as
    attempt 0: the number may be what could not be read.)

    Raises:
        Exception: whatever a restart may mend, as `training.worker.train`.
    """
    mounted.run.mkdir(parents=True, exist_ok=True)
    with _spoken(mounted, channel.rank) as said:
        try:
            config = configure(mounted, channel, meet)
        except AttemptFailed as failure:
            if failure.__cause__ is not None:
                append_traceback(mounted.run / TRACEBACKS.format(process=f"rank{channel.rank}"), 0)
            if channel.rank == 0:
                ended = Ended(time.time(), 0, failure.reason.value, str(failure))
                log = RunLog(mounted.run / RUN_LOG)
                log.write(ended)
                log.close()
                said.write_record(ended)
            return
        hold_run_lock(mounted.run)  # until Ray Train has heard of this rank's end, and ends the process
        train(config, channel, device, said.write_record)


@contextmanager
def _spoken(mounted: PodFiles, rank: int) -> Iterator[PodLog]:
    """The pod's log, which also has our warnings meanwhile, and the error that may leave the with block."""
    said = PodLog(rank, mounted.output)
    logger = logging.getLogger("tensorguard")
    logger.addHandler(said)
    try:
        yield said
    except Exception as error:
        said.write_failure(error)
        raise
    finally:
        logger.removeHandler(said)
        said.close()


def configure(mounted: PodFiles, channel: Channel, meet: Barrier) -> WorkerConfig:
    """This rank's part of the attempt, its data prepared. All ranks call this.

    Raises:
        AttemptFailed: on every rank, where any cannot begin.
    """
    prepared = run_on_all_ranks(channel, lambda: _met(mounted, channel, meet))
    found = channel.all_gather(bytes([prepared.own.empty]) + prepared.own.total.to_bytes(keys.WIDTH, "big"))
    if all(message[0] for message in found):
        spec = mounted.job().spec
        sentence = f"spec.dataset: no record is usable: {why_no_record_is_usable(Recipe.from_spec(spec))}"
        raise AttemptFailed(Reason.DATASET_UNSUITABLE, sentence)
    job = mounted.job()
    place, attempt = mounted.place()
    return WorkerConfig(
        job=dump_manifest(job, format="json"),
        job_uid=job.metadata.uid or "",
        attempt=attempt,
        run_directory=str(mounted.run),
        shards=prepared.shards(channel),
        evaluation=str(prepared.public) if prepared.public else None,
        dataset_digest=keys.dataset_digest(mounted.key(), (int.from_bytes(message[1:], "big") for message in found)),
        threads=max(1, int(cpus_per_worker(job))),
        ledger_location=place,
        key_file=str(mounted.key_file),
        mounts=str(mounted.mounts),
    )


@dataclass(frozen=True)
class _Prepared:
    own: PodShard
    public: Path | None

    def shards(self, channel: Channel) -> tuple[str, ...]:
        """By rank; a pod knows of its own alone."""
        return tuple(str(self.own.shard) if rank == channel.rank else "" for rank in range(channel.size))


def _met(mounted: PodFiles, channel: Channel, meet: Barrier) -> _Prepared:
    """As `_prepare`, returning or raising once every rank has done either."""
    try:
        return _prepare(mounted, channel)
    finally:
        meet()


def _prepare(mounted: PodFiles, channel: Channel) -> _Prepared:
    job, key = mounted.job(), mounted.key()
    mounted.place()
    spec, directory = job.spec, mounted.run / WORK_FOLDER
    check_evaluation_is_public(job)
    if channel.rank == 0:
        CheckpointStore.for_job(job).check_writable(wait=True)  # a restart may fall into an outage
    source = resolve_model(spec.model.name, spec.model.revision)
    tokenizer = load_tokenizer(
        source, chat_template=spec.model.chat_template, trust_remote_code=spec.model.trust_remote_code
    )
    tokenise = task_of(spec).tokeniser(tokenizer, Recipe.from_spec(spec))
    own = prepare_pod_shard(spec, tokenise, rank=channel.rank, workers=channel.size, key=key, directory=directory)
    return _Prepared(own, prepare_pod_evaluation(spec, tokenise, rank=channel.rank, directory=directory))
