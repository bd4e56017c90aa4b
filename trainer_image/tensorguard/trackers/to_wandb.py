"""Weights & Biases: one run, whose id is the job's uid.

Only what `figures` allows is sent. The settings below switch off what the library collects by itself: the console, code
and git, the command line, the host, hardware, installed packages, and statistics of the system, which show how large
batches are.

Environment, as for Hugging Face's callback: WANDB_PROJECT (default: tensafe), WANDB_NAME (default: the job's name),
WANDB_MODE, WANDB_LOG_MODEL (end, checkpoint or false), WANDB_RUN_ID. The library itself reads WANDB_API_KEY,
WANDB_BASE_URL, WANDB_ENTITY and WANDB_DIR. WANDB_WATCH is refused: gradients are private.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorguard.trackers.figures import Point, grouped
from tensorguard.trackers.tracker import Adapters, Attachment, Outcome, RunInfo, TrackerError

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
        place = (environment.get("WANDB_BASE_URL"), environment.get("WANDB_ENTITY"), self._project, self._id)
        self.destination = "/".join(part for part in place if part)
        self._run: Any = None

    def open(self, run: RunInfo, known: str | None) -> str:
        library = _library()
        self._run = library.init(
            project=self._project,
            name=self._name or run.name,
            id=self._id or known or run.uid,
            resume="allow",
            reinit="create_new",
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


def _library() -> ModuleType:
    # Read when the library is imported: it would send reports of its errors, with stack traces.
    os.environ["WANDB_ERROR_REPORTING"] = "false"
    import wandb

    return wandb
