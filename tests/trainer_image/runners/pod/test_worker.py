"""A worker pod before its first step: each rank prepares its own shard from its own mounts, and all agree on the rest.

Ranks are threads here, which wait for each other at barriers. There is no Ray and no API server.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
import torch

from tensafe_api.manifest.text import load_manifest
from tensafe_api.reasons import Reason
from tensafe_api.resolve import resolve_job
from tensafe_operator.children import volumes
from tensafe_operator.children.configuration import config_map, digest
from tensorguard.data.shard import Shard, Target
from tensorguard.ledger.backends import POD_UID
from tensorguard.runners.pod import worker
from tensorguard.runners.pod.log import PodLog
from tensorguard.runners.pod.pod_files import PodFiles
from tensorguard.runners.pod.worker import configure, train_in_pod
from tensorguard.signing.keys import new_identity
from tensorguard.training.collective_errors import AttemptFailed
from tensorguard.training.config import RUN_LOG, WorkerConfig
from tensorguard.training.run_log import Ended, Evaluated, Preparing, RunLogReader, Started, Stepped
from tests.support.trainer.rank_harness import CLASSES, TAGS, JobKind, records

RANKS = 2


class Exchange:
    """The messages of the ranks, and the barrier at which they exchange them."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(RANKS, timeout=300)
        self.messages: list[bytes] = [b""] * RANKS
        self.sent: list[list[bytes]] = [[] for _ in range(RANKS)]
        self.waited = 0

    def wait(self) -> None:
        self.barrier.wait()
        self.waited += 1


class ThreadChannel:
    """One rank's channel."""

    size = RANKS

    def __init__(self, rank: int, exchange: Exchange) -> None:
        self.rank, self._exchange = rank, exchange

    def all_gather(self, message: bytes) -> list[bytes]:
        self._exchange.messages[self.rank] = message
        self._exchange.sent[self.rank].append(message)
        self._exchange.barrier.wait()
        found = list(self._exchange.messages)
        self._exchange.barrier.wait()
        return found

    def all_reduce(self, vector: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class Pods:
    """The mounts of two worker pods of one job."""

    def __init__(self, base: Path, kind: JobKind = CLASSES) -> None:
        self.base = base
        self.kind = kind
        self.exchange = Exchange()
        self.key = secrets.token_bytes(32)
        kind.make_model(base / "model")
        self.write_data(kind.rows(60))
        self.mount()

    def write_data(self, rows: list[dict[str, Any]]) -> None:
        (self.base / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def mount(self, *overrides: str) -> None:
        text = self.kind.manifest.replace("MODEL", str(self.base / "model")).replace(
            "CHECKPOINTS", str(self.base / "saved")
        )
        job, _ = resolve_job(load_manifest(text, (f"spec.dataset.uri={self.base / 'data.jsonl'}", *overrides)))
        job = job.model_copy(
            update={"metadata": job.metadata.model_copy(update={"uid": "11-22", "namespace": "clinic"})}
        )
        written = config_map(job, 2, "tiny-ledger", "33-44", hashlib.sha256(self.key).hexdigest())
        self.mounts = [PodFiles(self.base / f"pod-{rank}", digest(written)) for rank in range(RANKS)]
        for files in self.mounts:
            for folder in ("etc/tensafe/job", "etc/tensafe/key", "var/run/tensafe"):
                (files.root / folder).mkdir(parents=True, exist_ok=True)
            for name, text in written["data"].items():
                (files.root / "etc/tensafe/job" / name).write_text(text)
            files.key_file.write_bytes(self.key)

    def all(self, act: Callable[[PodFiles, ThreadChannel], Any]) -> list[Any]:
        """Run `act` on each rank; return the results, with an AttemptFailed as a result."""

        def one(rank: int) -> Any:
            try:
                return act(self.mounts[rank], ThreadChannel(rank, self.exchange))
            except AttemptFailed as failure:
                return failure

        with ThreadPoolExecutor(RANKS) as threads:
            return list(threads.map(one, range(RANKS)))

    def raising(self, act: Callable[[PodFiles, ThreadChannel], Any]) -> None:
        """Run `act` on each rank, and raise what the ranks raise."""

        def one(files: PodFiles, channel: ThreadChannel) -> Exception | None:
            try:
                act(files, channel)
            except Exception as error:
                return error
            return None

        if errors := [error for error in self.all(one) if error is not None]:
            raise ExceptionGroup("errors of the ranks", errors)

    def configure(self) -> list[Any]:
        return self.all(lambda files, channel: configure(files, channel, self.exchange.wait))


def mounted_digest(files: PodFiles) -> str:
    """The digest of a pod's job files, as the operator would pass it to the pod."""
    folder = files.root / "etc/tensafe/job"
    return hashlib.sha256((folder / "job.json").read_bytes() + (folder / "place.json").read_bytes()).hexdigest()


@pytest.fixture
def pods(tmp_path: Path) -> Pods:
    return Pods(tmp_path)


def test_pods_prepare_words_and_tags(tmp_path: Path) -> None:
    pods = Pods(tmp_path, TAGS)
    rows = [*TAGS.rows(4), {"tokens": ["a"], "tags": ["B-other"]}, {"tokens": ["a", "b"], "tags": ["O"]}]
    (tmp_path / "public.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pods.mount(
        f"spec.evaluation={{uri: {tmp_path / 'public.jsonl'}, visibility: Public}}", "spec.dataset.unusable=Skip"
    )
    configs: list[WorkerConfig] = pods.configure()
    shards = [Shard.open(Path(config.shards[rank])) for rank, config in enumerate(configs)]
    assert sum(map(len, shards)) == 60 and all(map(len, shards))
    public = Shard.open(Path(configs[0].evaluation or ""))
    assert {shard.target for shard in (*shards, public)} == {Target.TOKEN_LABELS}
    names = ("O", "B-low", "I-low")
    found = [[names[label] for label in public.labels(record)] for record in range(len(public))]
    assert found == [row["tags"] for row in rows[:4]]


def test_each_rank_has_its_own_shard_and_all_have_one_digest(pods: Pods) -> None:
    configs: list[WorkerConfig] = pods.configure()
    units = 0
    for rank, config in enumerate(configs):
        shard, other = config.shards[rank], config.shards[1 - rank]
        assert Path(shard).is_relative_to(pods.mounts[rank].run)
        assert other == ""
        units += len(Shard.open(Path(shard)))
        assert config.job_key() == pods.key
        assert (config.job_uid, config.attempt, config.place) == ("11-22", 2, "Pods")
        assert config.ledger_location is not None and config.ledger_location.ledger == "tiny-ledger"
        assert pods.key.hex() not in json.dumps(config.pack())
        assert WorkerConfig.unpack(config.pack()) == config
    assert units == len({json.dumps(row) for row in records(60)}) == 60
    digest = configs[0].dataset_digest
    assert configs[1].dataset_digest == digest
    assert digest.startswith("hmac-sha256:")
    pods.write_data(list(reversed(records(60))))
    assert pods.configure()[0].dataset_digest == digest
    pods.write_data(records(59))
    assert pods.configure()[0].dataset_digest != digest


def test_job_that_signs_has_the_path_of_the_mounted_key(pods: Pods) -> None:
    assert {config.signing_key for config in pods.configure()} == {None}
    pods.mount("spec.checkpoint.signing={secretName: release-key}")
    for files, config in zip(pods.mounts, pods.configure(), strict=True):
        assert config.signing_key == str(files.root / "etc/tensafe/signing/signing-key.pem")


def mount_file(pods: Pods, path: str, content: bytes) -> None:
    """Give every pod a file, as the operator's volumes do."""
    for files in pods.mounts:
        place = files.root / path.removeprefix("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def test_job_that_encrypts_has_the_paths_of_recipients_and_identity(pods: Pods) -> None:
    assert {config.identity_file for config in pods.configure()} == {None}
    identity, recipient = new_identity()
    pods.mount("spec.checkpoint.encryption={recipientsConfigMap: readers, identitySecretName: mine}")
    mount_file(pods, f"{volumes.RECIPIENTS_PATH}/recipients", f"# the clinic\n{recipient}\n".encode())
    mount_file(pods, f"{volumes.IDENTITY_PATH}/identity", identity)
    for files, config in zip(pods.mounts, pods.configure(), strict=True):
        assert config.recipients_file == str(files.root / "etc/tensafe/recipients/recipients")
        assert config.identity_file == str(files.root / "etc/tensafe/identity/identity")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "recipientsConfigMap: readers: has no recipient: write at least one"),
        (b"age1x", "recipientsConfigMap: readers: age1x is not a recipient of age"),
        (b"\xff", "recipientsConfigMap: readers: its key recipients cannot be read"),
        (None, "recipientsConfigMap: readers: its key recipients cannot be read"),
        (new_identity()[0], "has a secret identity in place of a recipient"),
        (new_identity()[1].encode(), "has no identity of the recipients in spec.checkpoint.encryption"),
    ],
    ids=["empty", "mistyped", "not text", "missing", "a secret", "of others"],
)
def test_unusable_recipients_are_reported_before_the_data_is_read(
    pods: Pods, content: bytes | None, problem: str
) -> None:
    (pods.base / "data.jsonl").unlink()
    pods.mount("spec.checkpoint.encryption={recipientsConfigMap: readers, identitySecretName: mine}")
    if content is not None:
        mount_file(pods, f"{volumes.RECIPIENTS_PATH}/recipients", content)
    mount_file(pods, f"{volumes.IDENTITY_PATH}/identity", new_identity()[0])
    for failure in pods.configure():
        assert (failure.reason, problem in str(failure)) == (Reason.INVALID_MANIFEST, True), str(failure)


def test_no_rank_sends_a_digest_of_its_own_shard(pods: Pods) -> None:
    """All ranks have the job key, so another one could compare a digest of a shard with guesses of its records."""
    sent = pods.exchange.sent
    pods.configure()
    of_ranks = list(zip(*sent))
    assert len(of_ranks) == 2  # whether the preparation succeeded, then what it found
    for messages in of_ranks:
        assert len(set(messages)) == 1


def test_ranks_that_read_different_records_are_refused(pods: Pods) -> None:
    """One pod reads the data before it changes, and the other one after."""
    late = pods.base / "late.jsonl"
    late.write_text((pods.base / "data.jsonl").read_text() + '{"text": "w1", "label": 1}\n')
    (pods.mounts[1].root / "etc/tensafe/job/job.json").write_text(
        (pods.mounts[1].root / "etc/tensafe/job/job.json").read_text().replace("/data.jsonl", "/late.jsonl")
    )
    pods.mounts[1] = replace(pods.mounts[1], digest=mounted_digest(pods.mounts[1]))
    for failure in pods.configure():
        assert failure.reason is Reason.DATASET_UNREADABLE
        assert "the workers read different records: do not change the data while the job runs" in str(failure)


def test_all_ranks_report_the_same_error_when_no_record_is_usable(pods: Pods) -> None:
    pods.write_data([{"text": None, "label": 1}])
    pods.mount("spec.dataset.unusable=Skip")
    first, second = pods.configure()
    assert first.reason is second.reason is Reason.DATASET_UNSUITABLE
    assert str(first) == str(second)
    assert "spec.dataset: no record is usable" in str(first)


def test_numbers_of_unusable_records_are_in_the_private_log_alone(pods: Pods) -> None:
    pods.write_data([*records(20), {"text": None, "label": 1}, {"text": "w1", "label": 7}])
    first, second = pods.configure()
    assert first.reason is Reason.DATASET_UNSUITABLE and str(first) == str(second)
    assert "have no text" in str(first) and "line 2" not in str(first) and "record has" not in str(first)
    logs = [path.read_text() for mount in pods.mounts for path in mount.private.glob("errors-rank*.log")]
    assert len(logs) == RANKS
    assert all("1 record has no text (the first: " in log and "line 21)" in log for log in logs)
    assert sum("a label that is none of the classes" in log for log in logs) == 1, "of the rank that has the record"


def test_rank_without_its_key_ends_all_ranks(pods: Pods) -> None:
    pods.mounts[1].key_file.unlink()
    failures = pods.configure()
    assert pods.exchange.waited == RANKS
    for failure in failures:
        assert isinstance(failure, AttemptFailed)
        assert str(pods.mounts[1].key_file) in str(failure)
        assert str(failure).endswith("(worker 1)")


def test_public_evaluation_set_may_not_be_the_private_one(pods: Pods) -> None:
    (pods.base / "public.jsonl").symlink_to(pods.base / "data.jsonl")
    pods.mount(f"spec.evaluation={{uri: {pods.base / 'public.jsonl'}, visibility: Public}}")
    for failure in pods.configure():
        assert failure.reason is Reason.INVALID_MANIFEST
        assert "spec.evaluation.uri" in str(failure)


def test_public_evaluation_set_may_not_be_a_copy_of_private_records(pods: Pods) -> None:
    """No file is shared: half of the private records, in another order and another format."""
    copied = [json.loads(line) for line in (pods.base / "data.jsonl").read_text().splitlines()][::-2]
    pa_csv.write_csv(pa.Table.from_pylist(copied), pods.base / "public.csv")
    pods.mount(f"spec.evaluation={{uri: {pods.base / 'public.csv'}, visibility: Public}}")
    for failure in pods.configure():
        assert failure.reason is Reason.DATASET_UNSUITABLE
        assert "spec.evaluation.uri: most of its records are also in spec.dataset" in str(failure)
    pods.mount(f"spec.evaluation={{uri: {pods.base / 'public.csv'}, visibility: Private}}")
    assert all(isinstance(config, WorkerConfig) for config in pods.configure())


def test_end_of_the_attempt_is_logged_where_the_driver_reads_it(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "train", lambda *_: pytest.fail("nothing is trained"))
    (pods.base / "data.jsonl").unlink()
    cpu = torch.device("cpu")
    for files in pods.mounts:
        files.output.parent.mkdir(parents=True)
        files.output.touch()
    pods.all(lambda files, channel: train_in_pod(files, channel, cpu, pods.exchange.wait))
    [ended] = RunLogReader(pods.mounts[0].run / RUN_LOG).read()
    assert isinstance(ended, Ended)
    assert ended.reason == Reason.DATASET_UNREADABLE
    assert "data.jsonl" in ended.message
    assert not (pods.mounts[1].run / RUN_LOG).exists()
    assert json.loads(pods.mounts[0].output.read_text())["message"] == ended.message
    assert not pods.mounts[1].output.read_text()


def test_pod_log_has_log_records_warnings_and_the_error_but_no_steps(
    pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: WorkerConfig, channel: Any, device: torch.device, listener: Any) -> None:
        listener(Started(1.0, 2, 1, 0))
        listener(Stepped(2.0, 1, 1))
        logging.getLogger("tensorguard.storage").warning("the storage does not answer (%s); retrying", "TimeoutError")
        logging.getLogger("tensorguard.storage").info("a detail")
        raise ValueError("patient Jane Doe")

    monkeypatch.setattr(worker, "train", train)
    files = pods.mounts[0]
    files.output.parent.mkdir(parents=True)
    files.output.touch()
    with pytest.raises(ExceptionGroup):
        pods.raising(lambda files, channel: train_in_pod(files, channel, torch.device("cpu"), pods.exchange.wait))
    lines = [json.loads(line) for line in files.output.read_text().splitlines()]
    assert {"preparing", "started", "warning", "lost"} == {line["kind"] for line in lines}
    assert {line["rank"] for line in lines} <= {0, 1}
    assert "TimeoutError" in next(line["message"] for line in lines if line["kind"] == "warning")
    assert "ValueError" in next(line["message"] for line in lines if line["kind"] == "lost")
    assert "Jane" not in files.output.read_text()
    assert not any(isinstance(each, PodLog) for each in logging.getLogger("tensorguard").handlers)


def test_rank_0_logs_which_files_are_read_and_which_are_left_out(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "train", lambda *_: None)
    for name in ("data", "held-out"):
        (pods.base / name).mkdir()
        (pods.base / name / "notes.jsonl").write_bytes((pods.base / "data.jsonl").read_bytes())
        (pods.base / name / "part-00000").write_text("{}")
    evaluation = f"{{uri: {pods.base / 'held-out'}, visibility: Private}}"
    pods.mount(f"spec.dataset.uri={pods.base / 'data'}", f"spec.evaluation={evaluation}")
    for files in pods.mounts:
        files.output.parent.mkdir(parents=True)
        files.output.touch()
    pods.all(lambda files, channel: train_in_pod(files, channel, torch.device("cpu"), pods.exchange.wait))
    expected = [
        f"Reading 1 jsonl file at {pods.base / name}; left out: part-00000 (no known ending)"
        for name in ("held-out", "data")
    ]
    logged = list(RunLogReader(pods.mounts[0].run / RUN_LOG).read())
    assert [record.what for record in logged if isinstance(record, Preparing)] == expected
    assert [json.loads(line)["what"] for line in pods.mounts[0].output.read_text().splitlines()] == expected
    assert not (pods.mounts[1].run / RUN_LOG).exists() and not pods.mounts[1].output.read_text()


def test_loss_that_is_nan_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    PodLog(0, tmp_path / "log").write_record(Evaluated(1.0, 3, float("nan"), {"accuracy": 0.5}))
    (line,) = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert line == {"kind": "evaluated", "rank": 0, "time": 1.0, "step": 3, "accuracy": 0.5}


def test_unread_pod_log_neither_fails_nor_delays_training(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    log = PodLog(0, tmp_path / "pipe")
    for _ in range(2000):  # more than the buffer of a pipe
        log.write_record(Started(1.0, 2, 1, 0))
    os.close(reader)
    log.write_record(Started(1.0, 2, 1, 0))
    log.close()
    log.write_record(Started(1.0, 2, 1, 0))
    log.close()
    PodLog(0, tmp_path / "absent").write_record(Started(1.0, 2, 1, 0))


def test_attempt_that_cannot_start_is_refused_in_the_audit_log(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the pod ends with it, so the log is beside the checkpoints, and in the pod's log."""
    pods.mount("spec.observability.auditLog=Enabled")
    for files in pods.mounts:
        files.output.parent.mkdir(parents=True)
        files.output.touch()
    monkeypatch.setenv(POD_UID, "77-88")
    pods.write_data([{"text": "", "label": 0}])
    pods.all(lambda files, channel: train_in_pod(files, channel, torch.device("cpu"), pods.exchange.wait))
    (line,) = (pods.base / "saved" / "audit-11-22.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["reason"], entry["attempt"]) == ("Refusal", "DatasetUnsuitable", 2)
    assert (entry["actor"], entry["process"]) == (f"pod/{os.uname().nodename}/77-88", "rank 0")
    assert line in pods.mounts[0].output.read_text().splitlines()
    assert line not in pods.mounts[1].output.read_text()
