"""Runs a job without Ray: a tiny model, little data, one process per rank, gloo between them.

The trainer needs only a channel between its ranks. So tests can try everything except Ray's own restarts here, in
seconds: steps, checkpoints, resumes, kills. Ranks are forked from a server that has imported every module already,
because the imports take longer than a whole job. `fault_injection` defines what a test can do to a rank's process, such
as killing it at a named point. A journal of charges and reveals is always written.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tensafe_api.manifest.text import dump_manifest, load_manifest
from tensafe_api.resolve import Plan, ledger_spec, resolve_job
from tensafe_api.resources.job import TenSafeTrainingJob
from tensafe_api.resources.status import Status
from tensorguard.aggregation.channel import ProcessGroupChannel
from tensorguard.checkpoint.store import CheckpointStore
from tensorguard.data.keys import dataset_digest
from tensorguard.data.memory import memory_tables
from tensorguard.data.partition import merge, split_by_unit
from tensorguard.data.raw_table import Wanted
from tensorguard.data.shard import write
from tensorguard.ledger.contract import LedgerState
from tensorguard.ledger.file import FileLedger
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import tokeniser_of
from tensorguard.runners.local.private_folder import PrivateFolder
from tensorguard.runners.local.status import status_from_run
from tensorguard.training.config import RUN_LOG, TRACEBACKS, WorkerConfig
from tensorguard.training.run_log import Ended, LogRecord, RunLogReader
from tensorguard.training.worker import train
from tests.support.trainer.fault_injection import Instrument
from tests.support.trainer.recordings import Journal

WORDS = [f"w{number}" for number in range(40)]
# The fork server inherits the environment of this process, not its sys.path.
os.environ["PYTHONPATH"] = os.pathsep.join(  # an empty part would be the working folder
    filter(None, [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH")])
)
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.support.trainer.rank_harness"])

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
  privacy: {targetEpsilon: "20", noiseMultiplier: "0.8", reserveSteps: 40}
  checkpoint: {uri: CHECKPOINTS, everySteps: 3}
  cluster: {workers: 2, worker: {cpus: "1"}}
"""

CAUSAL_MANIFEST = (
    MANIFEST.replace("task: SequenceClassification, numLabels: 2", "task: CausalLM")
    .replace("{text: text, label: label}", "{prompt: prompt, completion: completion}")
    .replace("[query, value]", "[q_proj, v_proj]")
)

TAG_MANIFEST = MANIFEST.replace(
    "task: SequenceClassification, numLabels: 2",
    "task: TokenClassification, numLabels: 3, labelNames: [O, B-low, I-low]",
).replace("{text: text, label: label}", "{tokens: tokens, tags: tags}")


def make_tokenizer(directory: Path) -> int:
    """Write a tokenizer of forty words; return its number of tokens."""
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        eos_token="[SEP]",
    ).save_pretrained(directory)
    return len(vocabulary)


def make_model(directory: Path) -> None:
    """Write a BERT classifier of a few thousand weights, and its tokenizer."""
    _save(BertForSequenceClassification, _bert(directory, num_labels=2), directory)


def make_tag_model(directory: Path) -> None:
    """As `make_model`, with a class for each token."""
    _save(BertForTokenClassification, _bert(directory, num_labels=3), directory)


def _bert(directory: Path, num_labels: int) -> BertConfig:
    return BertConfig(  # type: ignore[call-arg]  # num_labels is a property with a setter
        vocab_size=make_tokenizer(directory),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=num_labels,
    )


def _save(kind: Any, config: Any, directory: Path) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kind(config).save_pretrained(directory)


def make_causal_model(directory: Path) -> None:
    """Write a Llama of a few thousand weights, and its tokenizer."""
    config = LlamaConfig(
        vocab_size=make_tokenizer(directory),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    _save(LlamaForCausalLM, config, directory)


def records(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences of five words. The label is 1 if most words are from the first half of the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(count):
        words = torch.randint(len(WORDS), (5,), generator=generator)
        found.append({"text": " ".join(WORDS[word] for word in words), "label": int((words < 20).sum() > 2)})
    return found


def completions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Prompts of a few words, each with a completion of the same words in reverse order."""
    texts = [record["text"].split() for record in records(count, seed)]
    return [{"prompt": " ".join(words), "completion": " ".join(reversed(words))} for words in texts]


def tagged(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Words with tags: a run of words of the first half is an entity."""
    found = []
    for record in records(count, seed):
        words, tags = record["text"].split(), ["O"]
        for word in words:
            low = WORDS.index(word) < 20
            tags.append("O" if not low else "B-low" if tags[-1] == "O" else "I-low")
        found.append({"tokens": words, "tags": tags[1:]})
    return found


@dataclass(frozen=True)
class JobKind:
    """What a job of one task is made of: its manifest, a maker of its model, and a maker of its records."""

    manifest: str
    make_model: Callable[[Path], None]
    rows: Callable[[int], list[dict[str, Any]]]


CLASSES = JobKind(MANIFEST, make_model, records)
CAUSAL = JobKind(CAUSAL_MANIFEST, make_causal_model, completions)
TAGS = JobKind(TAG_MANIFEST, make_tag_model, tagged)


@dataclass
class Job:
    """The folder of one run, with everything that a driver would write there."""

    directory: Path
    job: TenSafeTrainingJob
    plan: Plan
    shards: tuple[Path, ...]
    digest: str
    attempt: int = 0
    job_uid: str = "tiny-uid"
    instruments: tuple[Instrument, ...] = (Journal(),)
    signing_key: Path | str | None = None
    identity: Path | None = None

    @classmethod
    def make(
        cls, directory: Path, *overrides: str, rows: list[dict[str, Any]] | None = None, kind: JobKind = CLASSES
    ) -> Job:
        """Create a job; `overrides` are those of `--set`."""
        directory.mkdir(parents=True, exist_ok=True)
        model = directory / "model"
        kind.make_model(model)
        text = kind.manifest.replace("MODEL", str(model)).replace("CHECKPOINTS", str(directory / "checkpoints"))
        job, plan = resolve_job(load_manifest(text, overrides))
        private = PrivateFolder.of(directory, job.spec.checkpoint.uri)
        private.open()
        private.create_key("tiny-uid")
        key = private.key_file("tiny-uid").read_bytes()
        shards, digest = shard_records(directory, job, rows or kind.rows(240), key)
        FileLedger.create(directory, ledger_spec(job, plan, "tiny-uid"))
        return cls(directory, job, plan, shards, digest)

    def config(self) -> WorkerConfig:
        return WorkerConfig(
            job=dump_manifest(self.job, format="json"),
            job_uid=self.job_uid,
            attempt=self.attempt,
            place="OneMachine",
            run_directory=str(self.directory),
            private_directory=str(self.private.path),
            key_file=str(self.private.key_file("tiny-uid")),
            shards=tuple(map(str, self.shards)),
            evaluation=str(self.shards[0]) if self.job.spec.evaluation else None,
            dataset_digest=self.digest,
            threads=1,
            signing_key=str(self.signing_key) if self.signing_key else None,
            identity_file=str(self.identity) if self.identity else None,
        )

    def start(self, *instruments: Instrument) -> list[BaseProcess]:
        """Start the next attempt, with one process per rank."""
        self.attempt += 1
        (self.directory / "stop").unlink(missing_ok=True)
        return self.restart(*instruments)

    def restart(self, *instruments: Instrument) -> list[BaseProcess]:
        """Start the next incarnation of the same attempt, as Ray would."""
        meeting_point = self.directory / f"ranks-{uuid.uuid4().hex}"
        installed = (*self.instruments, *instruments)
        processes: list[BaseProcess] = [
            _FORKS.Process(target=main, args=(self.config(), rank, self.workers, meeting_point, installed))
            for rank in range(self.workers)
        ]
        for process in processes:
            process.start()
        return processes

    def run(self, *instruments: Instrument) -> list[int | None]:
        """Run one whole attempt; return the exit codes of the ranks."""
        return join(self.start(*instruments))

    def train_alone(self, *, restart: bool = False) -> None:
        """Run the next attempt (or incarnation) of a job with one worker in this process, much faster than a fork."""
        if not restart:
            self.attempt += 1
            (self.directory / "stop").unlink(missing_ok=True)
        train(self.config(), SingleRankChannel(), torch.device("cpu"))

    def status(self) -> Status:
        return status_from_run(self.job, self.plan, self.ledger(), self.records(), self.ended())

    @property
    def private(self) -> PrivateFolder:
        return PrivateFolder.of(self.directory, self.job.spec.checkpoint.uri)

    @property
    def workers(self) -> int:
        return self.job.spec.cluster.ranks

    def ledger(self) -> LedgerState:
        return FileLedger(self.directory).read()

    def records(self) -> list[LogRecord]:
        return list(RunLogReader(self.directory / RUN_LOG).read())

    def ended(self) -> Ended:
        """How the last attempt ended."""
        return next(record for record in reversed(self.records()) if isinstance(record, Ended))

    def store(self) -> CheckpointStore:
        return CheckpointStore.for_job(self.job)

    def revealed(self) -> list[int]:
        """The number of steps that each rank helped to reveal, over all incarnations.

        Asserts that no rank had ever revealed more steps than were durably charged at that time.
        """
        charged, revealed = 0, [0] * self.workers
        path = self.directory / "journal"
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, rank, steps = line.split()
            if kind == "charge":
                charged += int(steps)
            else:
                revealed[int(rank)] += int(steps)
            assert max(revealed) <= charged, f"a step was revealed before it was charged: {path.read_text()}"
        return revealed

    def errors(self) -> str:
        """The standard error and the tracebacks of all ranks."""
        paths = [*self.directory.glob("stderr-*"), *self.private.path.glob(TRACEBACKS.format(process="*"))]
        return "\n".join(path.read_text() for path in sorted(paths))


class SingleRankChannel:
    """The channel of a job with one worker, which needs no process group."""

    rank = 0
    size = 1

    def all_gather(self, message: bytes) -> list[bytes]:
        return [message]

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        return vector.copy()


def shard_records(
    directory: Path, job: TenSafeTrainingJob, rows: list[dict[str, Any]], key: bytes
) -> tuple[tuple[Path, ...], str]:
    """Do the work of `data.shards.prepare` without Ray; return the shards and the digest of the data set."""
    tokeniser = tokeniser_of(job.spec, resolve_model(job.spec.model.name))
    split = partial(
        split_by_unit,
        tokenise=tokeniser,
        key=key,
        workers=job.spec.cluster.ranks,
    )
    [table] = memory_tables(rows, Wanted.of(job.spec))
    partition, paths = split(table), []
    for rank, table in enumerate(partition.tables):
        paths.append(directory / f"shard-{rank}.arrow")
        write(merge([table], job.spec.dataset.unit.max_examples_per_unit, tokeniser.inputs), paths[-1])
    return tuple(paths), dataset_digest(key, [partition.total])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def join(processes: list[BaseProcess], timeout: float = 180) -> list[int | None]:
    """Wait for all ranks, and kill those that do not end in time. Returns the exit codes, negative for a signal."""
    deadline = time.monotonic() + timeout
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


def main(
    config: WorkerConfig, rank: int, workers: int, meeting_point: Path, instruments: tuple[Instrument, ...]
) -> None:
    """Run one rank; the main function of its process. The ranks find each other by a new file: another process may take
    a port that was free.
    """
    directory = config.directory
    os.dup2(os.open(directory / f"stderr-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    (directory / f"pid-{rank}").write_text(str(os.getpid()))
    for instrument in instruments:
        instrument.install(rank, directory)
    dist.init_process_group(
        "gloo", init_method=meeting_point.as_uri(), rank=rank, world_size=workers, timeout=timedelta(seconds=300)
    )
    device = torch.device("cpu")
    train(config, ProcessGroupChannel(device), device)
    dist.destroy_process_group()
