"""One call of `run`, from manifest to status, without Ray: what it returns, and what it refuses.

The test shards the data and trains the one worker in this process, so a whole run takes a second.
"""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from tensafe_api.manifest.text import ManifestError, load_manifest
from tensafe_api.reasons import Reason
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.runners.local import driver
from tensorguard.runners.local.data_preparation import InMemoryData
from tensorguard.runners.nodes.cluster import Node
from tensorguard.runners.preflight import (
    RunRefused,
    changed_fields,
    check_absolute_paths,
    cpus_per_worker,
    with_absolute_paths,
)
from tensorguard.runners.run_folder import WORK_FOLDER, lock_run_folder
from tensorguard.runners.worker_group import RankFailed, WorkersFailed
from tensorguard.training.config import RUN_LOG
from tensorguard.training.run_log import LogRecord, Stepped
from tensorguard.training.stop_signal import StopSignal
from tests.support.trainer.local_runs import Folder, reason, refusal
from tests.support.trainer.rank_harness import MANIFEST


def test_run_returns_the_job_with_its_status(folder: Folder) -> None:
    result = folder.run()
    status = result.job.status
    assert result.exit_code == 0
    assert status is not None
    assert status.phase == "Succeeded"
    assert status.privacy.steps_charged == 4
    assert status.final_model is not None
    assert status.final_model.uri == (folder.base / "checkpoints" / "final").as_uri()  # relative to the manifest
    assert [record.kind for record in folder.records][-2:] == ["saved", "ended"]
    assert not (folder.output / WORK_FOLDER).exists()
    for private in (LEDGER, RUN_LOG):
        assert (folder.output / private).stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_failing_listener_stops_the_workers_before_the_run_returns(folder: Folder) -> None:
    """Otherwise they would charge further steps without a driver, and without the lock of the folder."""

    def listen(record: LogRecord) -> None:
        if isinstance(record, Stepped):
            raise ConnectionResetError("the log server is gone")

    folder.listener = listen
    with pytest.raises(ConnectionResetError, match="the log server is gone"):
        folder.run("spec.training.steps=1000", "spec.checkpoint.everySteps=1000")
    assert "tensafe-run" not in [thread.name for thread in threading.enumerate()]
    ledger = folder.ledger().read()
    assert ledger.outcome == "Suspended"
    assert ledger.checkpoints[-1].step == ledger.steps_charged < 1000


@pytest.mark.parametrize(
    "uri", ["data", "./data/", "x/../data", "file://BASE/data", "dat*/**/*.jsonl", "data/*/*.jsonl"]
)
@pytest.mark.parametrize("written", ["run", "checkpoints"])
def test_run_does_not_write_into_its_data(folder: Folder, uri: str, written: str) -> None:
    (folder.base / "x").mkdir()
    inside = folder.base / "data" / "inside"
    inside.mkdir(parents=True)
    checkpoints = f"{folder.base}/x/../data/inside" if written == "checkpoints" else "elsewhere"
    refused = str(
        refusal(
            folder,
            f"spec.dataset.uri={uri.replace('BASE', str(folder.base))}",
            f"spec.checkpoint.uri={checkpoints}",
            output=inside if written == "run" else folder.base / "out",
        )
    )
    assert refused.startswith("spec.dataset.uri: ")
    assert "would read its files as records: choose another --output-dir" in refused


@pytest.mark.slow
@pytest.mark.parametrize("uri", ["*.jsonl", "data.jsonl", "s3://clinic/out", "other"])
def test_data_beside_the_folder_of_a_run_is_allowed(folder: Folder, uri: str) -> None:
    (folder.base / "other").mkdir()
    assert folder.run(f"spec.dataset.uri={uri}").exit_code == 0


@pytest.mark.parametrize(
    "spelling", ["x/../data.jsonl", "./data.jsonl", "data.jsonl*", "dat[a].jsonl", "file://DATA", "."]
)
def test_public_evaluation_on_private_files_is_refused_for_every_spelling(folder: Folder, spelling: str) -> None:
    (folder.base / "x").mkdir()
    (folder.base / "data.jsonl").write_text('{"text": "w1", "label": 1}\n')
    uri = spelling.replace("DATA", f"{folder.base}/data.jsonl")
    evaluation = f"spec.evaluation={{uri: '{uri}', visibility: Public}}"
    refused = refusal(folder, "spec.dataset.uri=data.jsonl", evaluation)
    assert refused.path == "spec.evaluation.uri"
    assert "data.jsonl is also in spec.dataset, so it is private" in str(refused)


@pytest.mark.parametrize("private", ["data.jsonl", "data.jsonl.gz", "d*"])
def test_compressed_copy_beside_a_private_file_is_the_same_file(folder: Folder, private: str) -> None:
    text = b'{"text": "w1", "label": 1}\n'
    (folder.base / "data.jsonl").write_bytes(text)
    (folder.base / "data.jsonl.gz").write_bytes(gzip.compress(text))
    for public in {"data.jsonl", "data.jsonl.gz"} - {private}:
        evaluation = f"spec.evaluation={{uri: {public}, visibility: Public}}"
        assert "so it is private" in str(refusal(folder, f"spec.dataset.uri={private}", evaluation))


@pytest.mark.parametrize("private", ["part", "part/part-0000", "part/part-*", "x/../part"])
def test_hard_links_and_files_without_a_suffix_are_the_same_files(folder: Folder, private: str) -> None:
    for name in ("part", "x"):
        (folder.base / name).mkdir()
    (folder.base / "part" / "part-0000").write_text('{"text": "w1", "label": 1}\n')
    (folder.base / "linked").hardlink_to(folder.base / "part" / "part-0000")
    for public in ("part/part-0000", "linked", "part"):
        evaluation = f"spec.evaluation={{uri: {public}, format: jsonl, visibility: Public}}"
        if public == private:
            continue  # a rule of the manifest refuses this case
        refused = refusal(folder, f"spec.dataset.uri={private}", "spec.dataset.format=jsonl", evaluation)
        assert "so it is private" in str(refused)


@pytest.mark.slow
def test_checkpoints_of_another_run_are_not_overwritten(folder: Folder) -> None:
    folder.run()
    final = folder.base / "checkpoints" / "final"
    before = {path: path.read_bytes() for path in final.iterdir()}
    refused = refusal(folder, output=folder.base / "second")
    assert refused.path == "spec.checkpoint.uri"
    assert "another run's checkpoint" in str(refused)
    assert {path: path.read_bytes() for path in final.iterdir()} == before
    assert folder.run("spec.checkpoint.uri=elsewhere", output=folder.base / "third").exit_code == 0


def test_unwritable_checkpoint_location_is_refused_before_anything_is_spent(folder: Folder) -> None:
    (folder.base / "file").write_text("in the way")
    refused = refusal(folder, "spec.checkpoint.uri=file/checkpoints")
    assert refused.path == "spec.checkpoint.uri"
    assert "cannot be written to" in str(refused)
    assert not (folder.output / LEDGER).exists()


def test_unwritable_output_folder_is_refused(folder: Folder) -> None:
    (folder.base / "file").write_text("in the way")
    assert "choose another --output-dir" in str(refusal(folder, output=folder.base / "file" / "out"))


@pytest.mark.parametrize("name", ["a\nb", "a\rb", os.fsdecode(b"\xff"), "a" * 1024])
def test_path_that_no_manifest_can_have_is_refused(name: str) -> None:
    """The workers would find this only when they have started, and a resume only later."""
    job = load_manifest(MANIFEST.replace("MODEL", "/m").replace("CHECKPOINTS", "/c"))
    with pytest.raises((RunRefused, ManifestError), match=r"the folder|too long") as refused:
        check_absolute_paths(with_absolute_paths(job, Path("/") / name))
    assert str(refused.value).startswith("spec.dataset.uri: ")
    assert str(refused.value).isascii()


@pytest.mark.slow
def test_folder_in_use_by_another_run_is_refused(folder: Folder) -> None:
    with lock_run_folder(folder.output):
        assert "another run uses" in str(refusal(folder))
    assert folder.run().exit_code == 0


@pytest.mark.parametrize(
    ("override", "path"),
    [("spec.cluster.workers=256", "spec.cluster.workers"), ("spec.cluster.worker.gpus=1", "spec.cluster.worker.gpus")],
)
def test_workers_without_enough_cpus_or_gpus_are_refused(folder: Folder, override: str, path: str) -> None:
    refused = refusal(folder, override, "spec.cluster.worker.cpus=4" if "workers" in override else "metadata.name=tiny")
    assert refused.path == path
    assert "this machine has" in str(refused)


@pytest.mark.parametrize(
    ("override", "expected", "named"),
    [
        ("spec.lora.targetModules=[no_such_layer]", "ModelUnsupported", "spec.lora.targetModules"),
        ("spec.lora.targetModules=[word_embeddings]", "ModelUnsupported", "embedding"),
        ("spec.lora.layers=[7]", "ModelUnsupported", "spec.lora.layers"),
    ],
)
def test_unsupported_model_option_fails_in_one_sentence_and_costs_nothing(
    folder: Folder, override: str, expected: str, named: str
) -> None:
    result = folder.run(override)
    why, message = reason(result)
    assert (result.exit_code, why) == (1, expected), message
    assert message is not None
    assert named in message
    assert "\n" not in message
    assert folder.ledger().read().steps_charged == 0


def test_exceptions_of_workers_are_not_quoted_in_the_status(folder: Folder) -> None:
    """The message of an exception may quote a record."""
    folder.fails = WorkersFailed(2, RankFailed(Reason.INTERNAL_ERROR, "ValueError (rows.py, line 3)"))
    folder.fails.__cause__ = ValueError("Jane Doe, born 1970")
    why, message = reason(folder.run())
    assert why == "WorkerLost"
    assert message is not None
    assert "Jane" not in message
    assert "after 2 restarts: ValueError (rows.py, line 3); fix the cause, and resume" in message


def test_only_tracebacks_that_exist_are_named(folder: Folder) -> None:
    def message_of(error: Exception) -> str:
        folder.fails = error
        return reason(folder.run())[1] or ""

    lost = WorkersFailed(0, RankFailed(Reason.WORKER_LOST, "worker 1 crashed with SIGSEGV"))
    assert "errors-" not in message_of(lost)
    assert f"{folder.private}/errors-driver.log has the traceback" in message_of(ValueError("Jane Doe"))
    (folder.private / "errors-driver.log").unlink()
    (folder.private / "errors-rank0.log").write_text("Monday, attempt 7\nof another attempt")
    (folder.private / "errors-rank1.log").write_text("Monday, attempt 1\nof this one")
    assert message_of(lost).endswith(f"(tracebacks: {folder.private}/errors-rank1.log)")


def test_cpu_quantities_are_parsed() -> None:
    text = MANIFEST.replace("MODEL", "m").replace("CHECKPOINTS", "c")
    for quantity, cores in (("500m", 0.5), ("2", 2.0), ("1.5", 1.5)):
        assert cpus_per_worker(load_manifest(text, [f"spec.cluster.worker.cpus={quantity}"])) == cores


def test_changed_fields_names_each_leaf() -> None:
    assert changed_fields({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}}) == [
        "a.c was 2, is 4",
        "d was 3, is None",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "named"),
    [
        (InMemoryData(train=[{"text": "w1", "label": 1}]), "spec.dataset"),
        (InMemoryData(evaluation=[]), "spec.evaluation"),
    ],
    ids=["training data", "evaluation data"],
)
def test_data_in_memory_is_refused_where_workers_run_on_other_machines(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, data: InMemoryData, named: str
) -> None:
    monkeypatch.setattr(driver, "has_other_nodes", lambda: True)
    job = load_manifest(MANIFEST.replace("MODEL", str(folder.base / "model")).replace("CHECKPOINTS", "checkpoints"))
    with pytest.raises(RunRefused, match="pass a URI or path that each node can read") as refused:
        driver.run(
            job,
            output_dir=folder.output,
            base_dir=folder.base,
            resume=False,
            listener=folder.records.append,
            stop=StopSignal(),
            data=data,
        )
    assert refused.value.path == named
    assert not folder.output.exists()


def test_nodes_that_fail_the_check_are_refused_before_a_key_or_a_ledger_exists(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nodes_with(resources: dict[str, float]) -> list[Node]:
        assert resources == {"CPU": 1.0}
        return []

    monkeypatch.setattr(driver, "has_other_nodes", lambda: True)
    monkeypatch.setattr(driver, "nodes_with", nodes_with)
    assert refusal(folder).path == "spec.cluster.worker"
    assert not (folder.output / LEDGER).exists()
    assert not list(folder.private.glob("*.key"))
