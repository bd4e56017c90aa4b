"""MLflow: one run of an experiment, found again by its id, or by the job's uid, which is one of its tags.

The client is used without MLflow's global state, so it logs neither the user, the script nor statistics of the system.

Environment, as for Hugging Face's callback: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID, MLFLOW_TAGS (a
JSON object), HF_MLFLOW_LOG_ARTIFACTS (true: each published adapter). Also MLFLOW_RUN_NAME (default: the job's name).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorguard.trackers.figures import Point, public_time
from tensorguard.trackers.tracker import Adapters, Attachment, Outcome, RunInfo, TrackerError, is_true, without_user

UID_TAG = "tensafe.job.uid"
_DEFAULT_EXPERIMENT = "Default"
_PER_REQUEST = 1000
"""The most metrics that a server accepts in one request. The parameters of a run are far below their limit of 100."""
_STATUS = {
    Outcome.RUNNING: "RUNNING",
    Outcome.FINISHED: "FINISHED",
    Outcome.STOPPED: "KILLED",
    Outcome.FAILED: "FAILED",
}


class MlflowTracker:
    """A run of MLflow."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Read the environment.

        Raises:
            TrackerError: a variable has a value that cannot be obeyed.
        """
        self.adapters: Adapters = "checkpoint" if is_true(environment.get("HF_MLFLOW_LOG_ARTIFACTS")) else "false"
        self._experiment = environment.get("MLFLOW_EXPERIMENT_NAME") or _DEFAULT_EXPERIMENT
        self._run_name = environment.get("MLFLOW_RUN_NAME")
        self._given_id = environment.get("MLFLOW_RUN_ID")
        self._tags = _tags(environment.get("MLFLOW_TAGS"))
        self._uri = environment.get("MLFLOW_TRACKING_URI")
        self._client: Any = None
        self._id = ""

    @property
    def destination(self) -> str:
        server = self._client.tracking_uri if self._client else self._uri or ""
        return f"{without_user(server)} {self._experiment} {self._given_id or ''}".strip()

    def open(self, run: RunInfo, known: str | None) -> str:
        # Read when the library is imported: it would send statistics of its use to its authors.
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = client = MlflowClient(self._uri)
        self._id = self._given_id or known or self._find(run) or self._create(run)
        present = client.get_run(self._id).data.params  # a parameter cannot be changed
        missing = [Param(key, str(value)) for key, value in run.config.items() if key not in present]
        client.log_batch(self._id, params=missing)
        client.update_run(self._id, status=_STATUS[Outcome.RUNNING])
        return self._id

    def send(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(key, float(value), int(point.time * 1000), point.step)
            for point in points
            for key, value in point.figures.items()
        ]
        for first in range(0, len(metrics), _PER_REQUEST):
            self._client.log_batch(self._id, metrics=metrics[first : first + _PER_REQUEST])

    def attach(self, attachment: Attachment) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in attachment.files.items():
                (Path(folder) / name).write_bytes(content)
            self._client.log_artifacts(self._id, folder, attachment.name)

    def close(self, outcome: Outcome) -> None:
        if outcome is not Outcome.RUNNING:
            end = int(public_time(time.time()) * 1000)
            self._client.set_terminated(self._id, status=_STATUS[outcome], end_time=end)

    def _find(self, run: RunInfo) -> str | None:
        """The run of this job that an earlier export started, but could not remember."""
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            return None
        found = self._client.search_runs([experiment.experiment_id], f"tags.`{UID_TAG}` = '{run.uid}'", max_results=1)
        return found[0].info.run_id if found else None

    def _create(self, run: RunInfo) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self._experiment)
        created = self._client.create_run(
            number, run_name=self._run_name or run.name, tags={**self._tags, UID_TAG: run.uid}
        )
        return str(created.info.run_id)


def _tags(text: str | None) -> dict[str, str]:
    try:
        tags = json.loads(text or "{}")
    except ValueError:
        tags = None
    if not isinstance(tags, dict):
        raise TrackerError(f'MLFLOW_TAGS: {text!r} is not a JSON object: write it as {{"team": "nlp"}}')
    return {str(key): str(value) for key, value in tags.items()}
