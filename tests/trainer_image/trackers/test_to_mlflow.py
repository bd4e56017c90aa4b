"""Exports to a real MLflow server on SQLite."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tensafe_api.reasons import Reason
from tensorguard.cli.main import main
from tensorguard.trackers.figures import CONFIG_FIELDS, KEYS, TIME_GRAIN_SECONDS
from tensorguard.trackers.sent import SentFile
from tensorguard.trackers.to_mlflow import UID_TAG, MlflowTracker
from tensorguard.trackers.tracker import RunInfo, TrackerError
from tests.support.polling import wait_until
from tests.support.trainer.recorded_run import RecordedRun, crashed_and_finished


@dataclass(frozen=True)
class Server:
    """A server: its address, and the folder of its database and artifacts."""

    uri: str
    folder: Path

    def runs(self, experiment: str) -> list[Any]:
        """All runs of an experiment."""
        from mlflow import MlflowClient

        client = MlflowClient(self.uri)
        found = client.get_experiment_by_name(experiment)
        return list(client.search_runs([found.experiment_id])) if found else []

    def series(self, run: Any, key: str) -> list[tuple[int, float]]:
        """The steps and values of a metric, in the order of their steps."""
        from mlflow import MlflowClient

        return sorted(
            (each.step, each.value) for each in MlflowClient(self.uri).get_metric_history(run.info.run_id, key)
        )

    def artifacts(self) -> list[str]:
        """The files of all artifacts, below the folder of their run."""
        return sorted(path.relative_to(self.folder).as_posix() for path in (self.folder / "artifacts").rglob("*.*"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        f"{folder}/artifacts",
    ]
    switches = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **switches}, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    uri = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (folder / "server.log").read_text()
        try:
            return bool(urllib.request.urlopen(f"{uri}/health", timeout=5).status == 200)
        except (urllib.error.URLError, TimeoutError):
            return False

    try:
        wait_until(answers, failure_message=(folder / "server.log").read_text)
        yield Server(uri, folder)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if "MLFLOW" in name]:
        monkeypatch.delenv(name)


@pytest.fixture
def use(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the server and variables, as a user does."""

    def set_variables(**variables: str) -> None:
        for name, value in {"MLFLOW_TRACKING_URI": server.uri, **variables}.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.mark.slow
def test_mlflow_receives_only_what_is_allowed(
    tmp_path: Path, server: Server, use: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = crashed_and_finished(tmp_path / "run")
    use(MLFLOW_EXPERIMENT_NAME="notes", MLFLOW_TAGS='{"team": "nlp"}', HF_MLFLOW_LOG_ARTIFACTS="1")
    assert main(["export", str(run.directory), "--to", "mlflow"]) == 0
    assert capsys.readouterr().out == ""
    (found,) = server.runs("notes")
    assert server.series(found, "eval_loss") == [(5, 0.69), (10, 0.6), (17, 0.5), (22, 0.4)]
    assert [value for _, value in server.series(found, "global_step")] == [*range(1, 13), *range(11, 21)]
    assert found.data.metrics["dp_steps_charged"] == 23
    assert found.data.metrics["dp_epsilon_spent"] >= run.plan.epsilon(23)
    assert set(found.data.metrics) < set(KEYS)
    names = {field.removeprefix("spec.") for field in CONFIG_FIELDS} | {
        "privacy.adjacency",
        "privacy.sampleRate",
        "stepsPerEpoch",
    }
    assert set(found.data.params) <= names
    assert found.data.tags == {"mlflow.runName": "triage", UID_TAG: run.job.metadata.uid, "team": "nlp"}
    assert (found.info.status, found.info.run_name) == ("FINISHED", "triage")
    assert found.info.end_time % (1000 * TIME_GRAIN_SECONDS) == 0
    files = {path.split("/artifacts/", 2)[-1] for path in server.artifacts()}
    adapter = ("adapter_config.json", "adapter_model.safetensors", "statement.json", "statement.md")
    assert files == {
        *(f"adapter/{name}" for name in adapter),
        *(f"adapter-step-10/{name}" for name in adapter),
        *("statement/statement.json", "statement/statement.md"),
    }


@pytest.mark.slow
def test_database_holds_nothing_private_and_nothing_of_the_machine(tmp_path: Path, server: Server, use: Any) -> None:
    run = crashed_and_finished(tmp_path / "run")
    use(MLFLOW_EXPERIMENT_NAME="leaks")
    main(["export", str(run.directory), "--to", "mlflow"])
    with sqlite3.connect(server.folder / "mlflow.db") as database:
        content = "\n".join(database.iterdump())
    assert run.job.metadata.uid in content
    for word in ("SECRET", "mlflow.user", "mlflow.source", "system/", str(tmp_path)):
        assert word not in content, word


@pytest.mark.slow
def test_resume_keeps_the_run_of_mlflow(tmp_path: Path, server: Server, use: Any) -> None:
    """Also if the file that remembers it was lost: the job has its uid as a tag, and no point is there twice."""
    use(MLFLOW_EXPERIMENT_NAME="resumed")
    run = RecordedRun(tmp_path / "run")
    run.start(1, 1, 0)
    run.take_steps(1, 8)
    run.save(8)
    run.end(Reason.INTERRUPTED)
    main(["export", str(run.directory), "--to", "mlflow"])
    assert [each.info.status for each in server.runs("resumed")] == ["KILLED"]
    run.start(2, 1, 8)
    run.take_steps(9, 12)
    run.kill()
    main(["export", str(run.directory), "--to", "mlflow"])
    assert [each.info.status for each in server.runs("resumed")] == ["FAILED"]
    SentFile(run.directory, "mlflow").path.unlink()
    run.start(3, 1, 12)
    run.take_steps(13, 20)
    run.end(Reason.COMPLETED, attempt=3)
    main(["export", str(run.directory), "--to", "mlflow"])
    (found,) = server.runs("resumed")
    assert found.info.status == "FINISHED"
    assert [value for _, value in server.series(found, "global_step")] == list(range(1, 21))


@pytest.mark.slow
def test_given_run_is_continued(tmp_path: Path, server: Server, use: Any) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(server.uri)
    given = client.create_run(client.create_experiment("given")).info.run_id
    use(MLFLOW_EXPERIMENT_NAME="given", MLFLOW_RUN_ID=given)
    main(["export", str(crashed_and_finished(tmp_path / "run").directory), "--to", "mlflow"])
    (found,) = server.runs("given")
    assert found.info.run_id == given
    assert found.data.metrics["global_step"] == 20


def test_tags_that_are_not_an_object_are_refused() -> None:
    with pytest.raises(TrackerError, match="MLFLOW_TAGS: 'nlp' is not a JSON object: write it as"):
        MlflowTracker({"MLFLOW_TAGS": "nlp"})


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://me:password@tracker.example:5000/?token=secret#secret", "https://tracker.example:5000/"),
        ("sqlite:////var/mlflow.db", "sqlite:////var/mlflow.db"),
        ("mlruns", "mlruns"),
    ],
)
def test_secrets_in_the_address_of_the_server_are_not_remembered(uri: str, shown: str) -> None:
    assert MlflowTracker({"MLFLOW_TRACKING_URI": uri}).destination == f"{shown} Default"


def test_telemetry_of_the_library_is_off_before_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library reads the variable when it is imported, and this process may have imported it already."""

    class Imported(Exception):
        pass

    class Library(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise Imported(os.environ.get("MLFLOW_DISABLE_TELEMETRY", "unset"))

    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    monkeypatch.setitem(sys.modules, "mlflow", Library("mlflow"))
    run = RunInfo("triage", "uid-1", {})
    with pytest.raises(Imported, match="true"):
        MlflowTracker({}).open(run, None)
