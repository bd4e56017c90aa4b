"""Weights & Biases: one run, whose id is the job's uid.

Only what `figures` allows is sent. The settings below switch off what the library collects by itself: the console, code
and git, the command line, the host, hardware, installed packages, and statistics of the system, which show how large
batches are.

Environment, as for Hugging Face's callback: WANDB_PROJECT (default: tensafe), WANDB_NAME (default: the job's name),
WANDB_MODE, WANDB_LOG_MODEL (end, checkpoint or false), WANDB_RUN_ID. The library itself reads the variables in
`READ_BY_LIBRARY`; others are removed from the environment of the export. WANDB_WATCH is refused: gradients are private.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorguard.trackers.figures import Point, grouped
from tensorguard.trackers.tracker import Adapters, Attachment, Outcome, RunInfo, TrackerError, without_user

_ADAPTERS: Mapping[str, Adapters] = {"false": "false", "end": "end", "checkpoint": "checkpoint"}
_EXIT_CODES = {Outcome.RUNNING: 0, Outcome.FINISHED: 0, Outcome.STOPPED: 255, Outcome.FAILED: 1}
"""255 is shown as "killed"."""
_NOTHING = "-"
"""In place of a value that the library would otherwise find out."""


PRIVATE_SETTINGS: Mapping[str, Any] = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "host": _NOTHING,
    "username": _NOTHING,
    "program": _NOTHING,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""The settings under which the library sends nothing on its own."""
_FOLDERS = ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR")
READ_BY_LIBRARY = frozenset(
    "WANDB_" + name
    for name in (
        *("API_KEY", "IDENTITY_TOKEN_FILE", "CREDENTIALS_FILE", "BASE_URL", "ENTITY", "MODE", "HTTP_TIMEOUT"),
        *("DIR", "SILENT", "QUIET", "ERROR_REPORTING", "NOTES", "TAGS", "RUN_GROUP", "JOB_TYPE"),
    )
).union(_FOLDERS)
"""The variables that the library may read: who sends, and where to; folders on this machine; words of the user about
the run. Any other one could add to what is sent, or choose another run, as WANDB_SWEEP_ID does."""


class WandbTracker:
    """A run of W&B."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Read the environment.

        Raises:
            TrackerError: a variable has a value that cannot be obeyed.
        """
        log_model = environment.get("WANDB_LOG_MODEL", "false").lower()
        if log_model not in _ADAPTERS:
            raise TrackerError(f"WANDB_LOG_MODEL: {log_model!r} is not known: set it to end, checkpoint or false")
        if (watch := environment.get("WANDB_WATCH", "false").lower()) != "false":
            raise TrackerError(
                f"WANDB_WATCH: {watch!r} asks for gradients or weights of each step, which are private: unset it"
            )
        self.adapters: Adapters = _ADAPTERS[log_model]
        self._project = environment.get("WANDB_PROJECT") or "tensafe"
        self._name = environment.get("WANDB_NAME")
        self._id = environment.get("WANDB_RUN_ID")
        place = (
            without_user(environment.get("WANDB_BASE_URL", "")),
            environment.get("WANDB_ENTITY"),
            self._project,
            self._id,
        )
        self.destination = "/".join(part for part in place if part)
        self._run: Any = None

    def open(self, run: RunInfo, known: str | None) -> str:
        library = _library()
        directory = os.environ.get("WANDB_DIR") or str(Path.cwd())
        # The library would send a file config-defaults.yaml in the working directory.
        with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
            self._run = library.init(
                project=self._project,
                name=self._name or run.name,
                id=self._id or known or run.uid,
                resume="allow",
                reinit="create_new",
                dir=directory,
                config={**run.config},
                allow_val_change=True,
                settings=library.Settings(**PRIVATE_SETTINGS),
            )
        return str(self._run.id)

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            figures = {grouped(key): value for key, value in point.figures.items()}
            self._run.log({**figures, "_timestamp": point.time}, step=point.step)

    def attach(self, attachment: Attachment) -> None:
        kind = "model" if attachment.kind == "adapter" else "privacy-statement"
        aliases = ["final_model"] if attachment.final else [f"checkpoint_global_step_{attachment.step}"]
        metadata = {"global_step": attachment.step}
        artifact = _library().Artifact(f"{kind}-{self._run.id}", type=kind, metadata=metadata)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in attachment.files.items():
                (Path(folder) / name).write_bytes(content)
            artifact.add_dir(folder)
            self._run.log_artifact(artifact, aliases=aliases)

    def close(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=_EXIT_CODES[outcome])


def limit_environment() -> None:
    """Leave the library only the variables that it may read, and let them be read in any working directory."""
    for name in [name for name in os.environ if name.startswith("WANDB_") and name not in READ_BY_LIBRARY]:
        del os.environ[name]
    for name in ("WANDB_DIR", *_FOLDERS):
        if folder := os.environ.get(name):
            os.environ[name] = str(Path(folder).absolute())
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # it would send reports of its errors, with stack traces


def _library() -> ModuleType:
    limit_environment()
    import wandb

    return wandb
