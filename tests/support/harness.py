"""A job without Ray: tiny model, tiny data, one process a rank, gloo between them.

The engine needs only a channel to its peers, so everything but Ray's own restarts can be tried here in seconds: steps, checkpoints,
resumes, kills. Ranks are forked from a server that has imported everything already, since imports take longer than a whole job.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist
from tensafe_api.manifest import dump_manifest, load_manifest
from tensafe_api.resolve import Plan, resolve
from tensafe_api.resources.job import TenSafeTrainingJob
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from tensorguard.aggregation.channel import ProcessGroup
from tensorguard.data.recipe import Recipe, columns_of
from tensorguard.data.shards import merge, split_by_unit
from tensorguard.data.shard import write
from tensorguard.data.tokenise import tokeniser
from tensorguard.engine.config import EVENTS, JOB_KEY, WorkerConfig
from tensorguard.engine.events import Event, EventReader
from tensorguard.engine.worker import train
from tensorguard.ledger.contract import LedgerSpec, LedgerState
from tensorguard.ledger.file import FileLedger

WORDS = [f"w{number}" for number in range(40)]
# The fork server does not get this process's sys.path, only its environment.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["harness"])

MANIFEST = """
apiVersion: tensafe.io/v1alpha1
kind: TenSafeTrainingJob
metadata: {name: tiny}
spec:
  model: {name: MODEL, task: SequenceClassification, numLabels: 2}
  lora: {rank: 2, targetModules: [query, value]}
  dataset:
    uri: unused.jsonl
    columns: {text: text, label: label}
    unit: {kind: Example, atLeast: 200}
  training: {steps: 12, expectedBatchSize: 20, microBatchSize: 8, maxLength: 16, learningRate: "5e-3"}
  privacy: {targetEpsilon: "20", reserveSteps: 40}
  checkpoint: {uri: CHECKPOINTS, everySteps: 3}
  cluster: {workers: 2, worker: {cpus: "1"}}
"""


def make_model(directory: Path) -> None:
    """A Bert of a few thousand weights and a tokenizer of forty words."""
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(directory)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=2,
    )
    BertForSequenceClassification(config).save_pretrained(directory)


def records(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences whose label is whether words of the first half are in the majority."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        words = torch.randint(len(WORDS), (5,), generator=generator)
        found.append({"text": " ".join(WORDS[word] for word in words), "label": int((words < 20).sum() > 2)})
    return found


@dataclass
class Job:
    """One run's folder, with everything that a driver would have put there."""

    directory: Path
    job: TenSafeTrainingJob
    plan: Plan
    shards: tuple[Path, ...]
    digest: str
    attempt: int = 0

    @classmethod
    def make(cls, directory: Path, *overrides: str, rows: list[dict[str, Any]] | None = None) -> Job:
        """A new job; `overrides` are those of `--set`."""
        directory.mkdir(parents=True, exist_ok=True)
        model = directory / "model"
        make_model(model)
        text = MANIFEST.replace("MODEL", str(model)).replace("CHECKPOINTS", str(directory / "checkpoints"))
        job, plan = resolve(load_manifest(text, overrides))
        key = secrets.token_bytes(32)
        (directory / JOB_KEY).write_bytes(key)
        shards, digest = shard_records(directory, job, rows or records(240), key)
        FileLedger.create(directory, ledger_spec(job, plan))
        return cls(directory, job, plan, shards, digest)

    def config(self) -> WorkerConfig:
        return WorkerConfig(
            job=dump_manifest(self.job, format="json"),
            job_uid="tiny-uid",
            attempt=self.attempt,
            run_directory=str(self.directory),
            shards=tuple(map(str, self.shards)),
            evaluation=str(self.shards[0]) if self.job.spec.evaluation else None,
            dataset_digest=self.digest,
            threads=1,
        )

    def start(self) -> list[BaseProcess]:
        """Begin the next attempt: one process for each rank."""
        self.attempt += 1
        (self.directory / "stop").unlink(missing_ok=True)
        return self.restart()

    def restart(self) -> list[BaseProcess]:
        """Begin the next incarnation of the same attempt, as Ray would."""
        port = free_port()
        processes = [
            _FORKS.Process(
                target=main, args=(self.config(), rank, self.workers, port, self.directory / f"stderr-{rank}")
            )
            for rank in range(self.workers)
        ]
        for process in processes:
            process.start()
        return processes

    def run(self) -> list[int | None]:
        """One whole attempt; the exit codes of the ranks."""
        return join(self.start())

    @property
    def workers(self) -> int:
        return self.job.spec.cluster.workers

    def ledger(self) -> LedgerState:
        return FileLedger(self.directory).read()

    def events(self) -> list[Event]:
        return list(EventReader(self.directory / EVENTS).read())

    def errors(self) -> str:
        return "\n".join((self.directory / f"stderr-{rank}").read_text() for rank in range(self.workers))


def ledger_spec(job: TenSafeTrainingJob, plan: Plan) -> LedgerSpec:
    return LedgerSpec(
        job_name=job.metadata.name,
        job_uid="tiny-uid",
        mechanism=plan.mechanism,
        unit_at_least=job.spec.dataset.unit.at_least,
        planned_steps=plan.steps,
        reserve_steps=plan.reserve_steps,
        target_epsilon=job.spec.privacy.target_epsilon,
        delta=plan.delta,
        accountant=plan.accountant,
    )


def shard_records(
    directory: Path, job: TenSafeTrainingJob, rows: list[dict[str, Any]], key: bytes
) -> tuple[tuple[Path, ...], str]:
    """What `data.shards.prepare` does, without Ray."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(job.spec.model.name)
    split = partial(
        split_by_unit,
        columns=columns_of(job.spec),
        tokenise=tokeniser(tokenizer, Recipe.from_spec(job.spec)),
        key=key,
        workers=job.spec.cluster.workers,
    )
    paths = []
    for rank, table in enumerate(split(pa.Table.from_pylist(rows))):
        batch, _ = merge([table], job.spec.dataset.unit.max_examples_per_unit)
        paths.append(directory / f"shard-{rank}.arrow")
        write(batch, paths[-1])
    return tuple(paths), "digest-of-" + str(len(rows))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def join(processes: list[BaseProcess], timeout: float = 120) -> list[int | None]:
    """Wait for all ranks; their exit codes, negative for a signal."""
    for process in processes:
        process.join(timeout)
    return [process.exitcode for process in processes]


def main(config: WorkerConfig, rank: int, workers: int, port: int, errors: Path) -> None:
    """One rank, in a process of its own."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=workers, timeout=timedelta(seconds=60)
    )
    device = torch.device("cpu")
    train(config, ProcessGroup(device), device)
    dist.destroy_process_group()
