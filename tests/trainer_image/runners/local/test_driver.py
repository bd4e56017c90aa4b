"""One call of `run`, from manifest to status, without Ray: what it refuses, and what a resume may change.

The test shards the data and trains the one worker in this process, so a whole run takes a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from e2e.platform.trainer.rank_harness import MANIFEST, SingleRankChannel, make_model, records, shard_records
from tensafe_api.manifest import dump_manifest, load_manifest
from tensafe_api.resolve import resolve_job
from tensafe_api.statement import digest
from tensorguard.aggregation.header import Header, HeaderAgreement
from tensorguard.ledger.file import NAME as LEDGER
from tensorguard.ledger.file import FileLedger
from tensorguard.runners.local import driver
from tensorguard.runners.local.driver import RunResult
from tensorguard.runners.preflight import RunRefused, changed_fields, cpus_per_worker
from tensorguard.runners.run_folder import WORK_FOLDER, lock_run_folder
from tensorguard.runners.worker_group import WorkersFailed
from tensorguard.training.config import JOB_KEY, RUN_LOG, WorkerConfig
from tensorguard.training.run_log import LogRecord
from tensorguard.training.stop_signal import StopSignal
from tensorguard.training.worker import train


class Folder:
    """A folder in which jobs run.

    Attributes:
        stop_at: the step (from 0) at which a stop is requested; None for none.
        fails: the exception of the workers; None for none.
        records: the log records that the listener received.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.output = base / "out"
        self.stop_at: int | None = None
        self.fails: Exception | None = None
        self.rows = records(240)
        self.records: list[LogRecord] = []
        make_model(base / "model")

    def run(self, *overrides: str, resume: bool = False, output: Path | None = None) -> RunResult:
        text = MANIFEST.replace("MODEL", str(self.base / "model")).replace("CHECKPOINTS", "checkpoints")
        small = ("spec.cluster.workers=1", "spec.training.steps=4", "spec.checkpoint.everySteps=2")
        return driver.run(
            load_manifest(text, (*small, *overrides)),
            output_dir=output or self.output,
            base_dir=self.base,
            resume=resume,
            listener=self.records.append,
            stop=StopSignal(),
        )

    def ledger(self) -> FileLedger:
        return FileLedger(self.output)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    folder = Folder(tmp_path)
    agree = HeaderAgreement.agree

    def agreeing(agreement: HeaderAgreement, header: Header, stop: bool) -> bool:
        return agree(agreement, header, stop or header.step == folder.stop_at)

    @contextmanager
    def no_ray(*_: Any, **__: Any) -> Iterator[None]:
        yield

    def prepare(one: Any, work: Path) -> WorkerConfig:
        work.mkdir(exist_ok=True)
        key = (one.directory / JOB_KEY).read_bytes()
        shards, _ = shard_records(work, one.job, folder.rows, key)
        return WorkerConfig(
            job=dump_manifest(one.job, format="json"),
            job_uid=one.job.metadata.uid,
            attempt=one.attempt,
            run_directory=str(one.directory),
            shards=tuple(map(str, shards)),
            evaluation=None,
            dataset_digest=digest(repr(folder.rows).encode()),
            threads=1,
        )

    def run_workers(function: Any, config: dict[str, Any], *_: Any) -> None:
        if folder.fails:
            raise folder.fails
        train(WorkerConfig.unpack(config), SingleRankChannel(), torch.device("cpu"))

    monkeypatch.setattr(HeaderAgreement, "agree", agreeing)
    monkeypatch.setattr(driver, "local_ray", no_ray)
    monkeypatch.setattr(driver._Run, "_prepare", prepare)
    monkeypatch.setattr(driver, "run_workers", run_workers)
    return folder


def stopped(folder: Folder) -> RunResult:
    """A run that was stopped in its fourth step."""
    folder.stop_at = 3
    result = folder.run()
    folder.stop_at = None
    assert result.exit_code == 130
    return result


def reason(result: RunResult) -> tuple[str | None, str | None]:
    assert result.job.status is not None
    attempt = result.job.status.attempts[-1]
    return attempt.reason, attempt.message


def refusal(folder: Folder, *overrides: str, resume: bool = False, output: Path | None = None) -> RunRefused:
    before = {path: path.read_bytes() for path in folder.output.glob("*") if path.is_file()}
    with pytest.raises(RunRefused) as caught:
        folder.run(*overrides, resume=resume, output=output)
    after = {path: path.read_bytes() for path in folder.output.glob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    assert "\n" not in str(caught.value)
    return caught.value


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
    for private in (JOB_KEY, LEDGER, RUN_LOG):
        assert (folder.output / private).stat().st_mode & 0o077 == 0


def test_run_is_resumed_with_the_manifest_in_its_folder(folder: Folder) -> None:
    stopped(folder)
    job = load_manifest(folder.output / "job.yaml")
    resolved, plan = resolve_job(job)
    assert resolved == job
    assert plan.mechanism == folder.ledger().read().spec.mechanism
    result = driver.run(
        job,
        output_dir=folder.output,
        base_dir=Path("/"),
        resume=True,
        listener=folder.records.append,
        stop=StopSignal(),
    )
    assert result.exit_code == 0
    assert result.job.status is not None
    assert [attempt.reason for attempt in result.job.status.attempts] == ["Interrupted", "Completed"]
    assert result.job.metadata.uid == folder.ledger().read().spec.job_uid


def test_charged_folder_is_refused_without_resume(folder: Folder) -> None:
    stopped(folder)
    refused = refusal(folder)
    assert "--resume" in str(refused)
    assert "charged 4 steps" in str(refused)


def test_finished_run_cannot_be_resumed(folder: Folder) -> None:
    folder.run()
    assert "is over (Completed)" in str(refusal(folder, resume=True))


def test_folder_without_a_run_cannot_be_resumed(folder: Folder) -> None:
    assert "leave out --resume" in str(refusal(folder, resume=True))


def test_missing_ledger_is_not_taken_for_a_new_run(folder: Folder) -> None:
    stopped(folder)
    (folder.output / LEDGER).unlink()
    for resume in (False, True):
        assert "ledger.jsonl is missing" in str(refusal(folder, resume=resume))
    (folder.output / RUN_LOG).unlink()
    for resume in (False, True):
        assert "another run's checkpoint" in str(refusal(folder, resume=resume))


@pytest.mark.parametrize("resume", [False, True])
def test_folder_with_an_uncharged_ledger_can_be_used_again(folder: Folder, resume: bool) -> None:
    """The end of the uncharged attempt is not taken for the end of this one."""
    folder.fails = WorkersFailed(0)
    failed = folder.run()
    assert failed.exit_code == 1
    assert reason(failed)[0] == "WorkerLost"
    assert folder.ledger().read().steps_charged == 0
    folder.fails = None
    result = folder.run(resume=resume)
    assert (result.exit_code, reason(result)[0]) == (0, "Completed")


@pytest.mark.parametrize("resume", [False, True])
def test_run_that_ended_before_its_workers_started_can_be_started_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    def unreadable(*_: Any) -> WorkerConfig:
        raise OSError("the data is not there yet")

    with monkeypatch.context() as patch:
        patch.setattr(driver._Run, "_prepare", unreadable)
        assert folder.run().exit_code == 1
    assert not (folder.output / LEDGER).exists()
    assert folder.run(resume=resume).exit_code == 0


CHANGES = {
    "spec.privacy.noiseMultiplier=7": "mechanism.noiseMultiplier",
    "spec.privacy.targetEpsilon=19": "targetEpsilon",
    "spec.privacy.targetDelta=1e-5": "delta",
    "spec.training.expectedBatchSize=10": "mechanism.sampleRate",
    "spec.dataset.unit.atLeast=220": "unitAtLeast",
    "spec.training.steps=6": "plannedSteps",
    "spec.privacy.maxGradNorm=2": "mechanism.clip",
    "spec.privacy.reserveSteps=50": "reserveSteps",
    "spec.dataset.unit={kind: User, column: label, atLeast: 200}": "mechanism.unit",
    "spec.dataset.lineage=another": "lineage",
    "metadata.name=other": "jobName",
    "spec.observability.privateMetrics=Internal": "privateMetrics",
    "spec.evaluation={uri: e.jsonl, visibility: Private}": "evaluation",
}


@pytest.mark.slow
def test_resume_with_another_privacy_value_names_the_field(folder: Folder) -> None:
    stopped(folder)
    for change, named in CHANGES.items():
        refused = str(refusal(folder, change, resume=True))
        assert f"{named} was " in refused, change
        assert "job.yaml" in refused
    assert folder.run(resume=True).exit_code == 0


def test_resume_on_other_data_is_refused(folder: Folder) -> None:
    stopped(folder)
    folder.rows = records(240, seed=1)
    result = folder.run(resume=True)
    assert (result.exit_code, reason(result)[0]) == (1, "ConfigurationChanged")
    assert folder.ledger().read().steps_charged == 4


def test_resume_may_change_fields_outside_the_privacy_claim(folder: Folder) -> None:
    stopped(folder)
    assert folder.run("spec.training.learningRate=1e-3", "spec.checkpoint.keep=1", resume=True).exit_code == 0


def test_an_edited_ledger_is_refused(folder: Folder) -> None:
    stopped(folder)
    path = folder.output / LEDGER
    path.write_text(path.read_text().replace('"steps":1', '"steps":0', 1))
    assert "was edited: entry" in str(refusal(folder, resume=True))
    assert "was edited: entry" in str(refusal(folder))


def test_missing_job_key_is_refused(folder: Folder) -> None:
    stopped(folder)
    (folder.output / JOB_KEY).unlink()
    assert "job.key is missing; restore it" in str(refusal(folder, resume=True))


def test_missing_run_log_is_refused(folder: Folder) -> None:
    stopped(folder)
    (folder.output / RUN_LOG).unlink()
    assert "events.jsonl is missing, and the ledger beside it cannot be checked without it" in str(
        refusal(folder, resume=True)
    )


def test_ledger_that_was_cut_during_the_run_is_not_trusted_at_its_end(folder: Folder) -> None:
    """The status shows no figure that could be too small."""
    stopped(folder)
    path = folder.output / "ledger.jsonl"

    lines = path.read_bytes().splitlines(keepends=True)
    run = driver._Run.result

    def result(one: Any) -> RunResult:
        path.write_bytes(b"".join(lines[:3]))
        return run(one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver._Run, "result", result)
        cut = folder.run(resume=True)
    assert reason(cut)[0] == "LedgerCorrupt"
    assert cut.exit_code == 1
    assert cut.job.status is not None
    assert cut.job.status.privacy.epsilon_spent is None


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


def test_folder_in_use_by_another_run_is_refused(folder: Folder) -> None:
    with lock_run_folder(folder.output):
        assert "another run uses" in str(refusal(folder))
    assert folder.run().exit_code == 0


@pytest.mark.parametrize(
    ("override", "path"),
    [("spec.cluster.workers=16", "spec.cluster.workers"), ("spec.cluster.worker.gpus=1", "spec.cluster.worker.gpus")],
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
    folder.fails = WorkersFailed(2)
    folder.fails.__cause__ = ValueError("Jane Doe, born 1970")
    why, message = reason(folder.run())
    assert why == "WorkerLost"
    assert message is not None
    assert "Jane" not in message
    assert "errors-rankN.log" in message


def test_cpu_quantities_are_parsed() -> None:
    text = MANIFEST.replace("MODEL", "m").replace("CHECKPOINTS", "c")
    for quantity, cores in (("500m", 0.5), ("2", 2.0), ("1.5", 1.5)):
        assert cpus_per_worker(load_manifest(text, [f"spec.cluster.worker.cpus={quantity}"])) == cores


def test_changed_fields_names_each_leaf() -> None:
    assert changed_fields({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}}) == [
        "a.c was 2, is 4",
        "d was 3, is None",
    ]
