"""Callbacks that export a run of the Python API to a tracker while it trains.

In: the trainer, of which only the run's folder is used. Out: a process that runs `tensafe export --follow` on that
folder. The training writes its log as always and never waits for the tracker, which may be slow, fail or hang. Only the
end of `fit` waits, for a limited time, until the tracker has received the rest. A tracker's failure is a warning in the
log, never an exception: all figures stay in the run's folder, and `tensafe export` sends them later.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from tensorguard.distributed._callbacks import RunningTrainer, TenSafeCallback
from tensorguard.distributed._errors import ConfigurationError
from tensorguard.distributed._manifests import run_folder
from tensorguard.trackers.registry import TRACKERS
from tensorguard.trackers.sent import FOLDER
from tensorguard.trackers.tracker import TrackerError

log = logging.getLogger("tensafe.trackers")


class _TrackerCallback(TenSafeCallback):
    """Exports the run to the tracker with the name `tracker`."""

    tracker: ClassVar[str]

    def __init__(self, settings: Mapping[str, str | Path | None], wait_seconds: float) -> None:
        """Raise ConfigurationError if the tracker's package is not installed.

        Args:
            settings: environment variables of the export; None leaves the variable as it is.
            wait_seconds: how long the end of `fit` may wait for the tracker.
        """
        try:
            TRACKERS[self.tracker].check_installed()
        except TrackerError as error:
            raise ConfigurationError(f"{type(self).__name__}: {error}") from None
        self._settings = {name: str(value) for name, value in settings.items() if value is not None}
        self._wait_seconds = wait_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = Path()

    def on_train_begin(self, trainer: RunningTrainer) -> None:
        """Start the export, unless the environment switches the tracker off."""
        environment = {**os.environ, **self._settings}
        if off := TRACKERS[self.tracker].switched_off_by(environment):
            log.info("nothing is sent to %s, because %s", self.tracker, off)
            return
        self._directory = run_folder(trainer.config)
        try:
            (self._directory / FOLDER).mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
                # A session of its own: Ctrl-C, which saves a checkpoint first, does not interrupt the export.
                self._process = subprocess.Popen(
                    self._command(),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        except OSError as error:
            self._warn(str(error))

    def on_step(self, trainer: RunningTrainer, step: int) -> None:
        """Report once if the export has ended before the training."""
        if self._process is not None and self._process.poll() is not None:
            self._report_end()

    def on_train_end(self, trainer: RunningTrainer) -> None:
        """Wait until the export has ended. Kill it if that takes longer than `wait_seconds`."""
        if self._process is None:
            return
        try:
            self._process.wait(self._wait_seconds)
        except subprocess.TimeoutExpired:
            self._kill()
            self._warn(f"it did not receive everything within {self._wait_seconds:g} seconds")
        except BaseException:  # a second Ctrl-C
            self._kill()
            raise
        else:
            self._report_end()

    @property
    def _log_file(self) -> Path:
        return self._directory / FOLDER / f"{self.tracker}.log"

    def _command(self) -> list[str]:
        # -P: a file of the working directory must not replace the tracker's package.
        return [
            *(sys.executable, "-P", "-m", "tensorguard.cli.main", "export"),
            *(str(self._directory), "--to", self.tracker, "--follow"),
        ]

    def _report_end(self) -> None:
        assert self._process is not None
        code, self._process = self._process.wait(), None
        if code != 0:
            lines = []
            with suppress(OSError):  # it was removed
                lines = self._log_file.read_text(errors="replace").strip().splitlines()
            self._warn(lines[-1] if lines else f"the export ended with exit code {code}")

    def _kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _warn(self, cause: str) -> None:
        command = shlex.join(["tensafe", "export", str(self._directory), "--to", self.tracker])
        log.warning(
            "%s: %s; the training is not affected, and the rest can be sent with `%s`", self.tracker, cause, command
        )


class WandbCallback(_TrackerCallback):
    """Weights & Biases: one run for each job, also over resumes.

    Environment: WANDB_PROJECT, WANDB_NAME, WANDB_MODE, WANDB_LOG_MODEL, WANDB_RUN_ID, WANDB_DISABLED, and what the
    library reads itself, such as WANDB_API_KEY and WANDB_ENTITY. Arguments take precedence.
    """

    tracker = "wandb"

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        log_model: str | None = None,
        wait_seconds: float = 60.0,
    ) -> None:
        """Refer to a run, without starting it.

        Args:
            project: default: WANDB_PROJECT, else `tensafe`.
            name: of the run; default: WANDB_NAME, else the job's name.
            log_model: which adapters are sent: `end`, `checkpoint` or `false`; default: WANDB_LOG_MODEL, else none.
            wait_seconds: how long the end of `fit` may wait for the tracker.

        Raises:
            ConfigurationError: wandb is not installed.
        """
        super().__init__({"WANDB_PROJECT": project, "WANDB_NAME": name, "WANDB_LOG_MODEL": log_model}, wait_seconds)


class MlflowCallback(_TrackerCallback):
    """MLflow: one run for each job, also over resumes.

    Environment: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_NAME, MLFLOW_RUN_ID, MLFLOW_TAGS,
    HF_MLFLOW_LOG_ARTIFACTS, DISABLE_MLFLOW_INTEGRATION, and what the library reads itself. Arguments take precedence.
    """

    tracker = "mlflow"

    def __init__(
        self,
        experiment_name: str | None = None,
        run_name: str | None = None,
        tracking_uri: str | None = None,
        log_artifacts: bool | None = None,
        wait_seconds: float = 60.0,
    ) -> None:
        """Refer to a run, without starting it.

        Args:
            experiment_name: default: MLFLOW_EXPERIMENT_NAME, else MLflow's `Default`.
            run_name: default: MLFLOW_RUN_NAME, else the job's name.
            tracking_uri: default: MLFLOW_TRACKING_URI, else MLflow's own.
            log_artifacts: whether published adapters are sent; default: HF_MLFLOW_LOG_ARTIFACTS, else no.
            wait_seconds: how long the end of `fit` may wait for the tracker.

        Raises:
            ConfigurationError: mlflow is not installed.
        """
        settings = {
            "MLFLOW_EXPERIMENT_NAME": experiment_name,
            "MLFLOW_RUN_NAME": run_name,
            "MLFLOW_TRACKING_URI": tracking_uri,
            "HF_MLFLOW_LOG_ARTIFACTS": None if log_artifacts is None else str(log_artifacts),
        }
        super().__init__(settings, wait_seconds)


class TensorBoardCallback(_TrackerCallback):
    """TensorBoard: one folder for each job, also over resumes.

    Environment: TENSORBOARD_LOGGING_DIR. The argument takes precedence.
    """

    tracker = "tensorboard"

    def __init__(self, logging_dir: str | Path | None = None, wait_seconds: float = 60.0) -> None:
        """Refer to a folder, without creating it.

        Args:
            logging_dir: default: TENSORBOARD_LOGGING_DIR, else `tensorboard` in the run's folder.
            wait_seconds: how long the end of `fit` may wait for the tracker.

        Raises:
            ConfigurationError: tensorboard is not installed.
        """
        super().__init__({"TENSORBOARD_LOGGING_DIR": logging_dir}, wait_seconds)
