"""The trackers by name: which package each needs, which environment variable switches it off, and how it is made.

A tracker's library is imported only when its tracker is made, since this takes seconds.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tensorguard.trackers.tracker import Tracker, TrackerError, is_true


def _wandb(environment: Mapping[str, str], directory: Path) -> Tracker:
    from tensorguard.trackers.to_wandb import WandbTracker

    return WandbTracker(environment)


def _mlflow(environment: Mapping[str, str], directory: Path) -> Tracker:
    from tensorguard.trackers.to_mlflow import MlflowTracker

    return MlflowTracker(environment)


def _tensorboard(environment: Mapping[str, str], directory: Path) -> Tracker:
    from tensorguard.trackers.to_tensorboard import TensorBoardTracker

    return TensorBoardTracker(environment, directory)


@dataclass(frozen=True)
class TrackerKind:
    """One tracker. Its name is also its package, and the extra of `tensafe` that installs it.

    Attributes:
        switches: environment variables that switch it off, each with the value that does; an empty value stands for
            true.
        create: from the environment and the run's folder.
    """

    name: str
    switches: Mapping[str, str]
    create: Callable[[Mapping[str, str], Path], Tracker]

    def check_installed(self) -> None:
        """Raise TrackerError if the package is missing."""
        if importlib.util.find_spec(self.name) is None:
            raise TrackerError(f"{self.name} is not installed: run `pip install 'tensafe[{self.name}]'`")

    def switched_off_by(self, environment: Mapping[str, str]) -> str | None:
        """The setting that switches it off, such as `WANDB_MODE=disabled`; None where none does."""
        for variable, off in self.switches.items():
            value = environment.get(variable, "")
            if is_true(value) if not off else value.lower() == off:
                return f"{variable}={value}"
        return None


TRACKERS = {
    kind.name: kind
    for kind in (
        TrackerKind("wandb", {"WANDB_DISABLED": "", "WANDB_MODE": "disabled"}, _wandb),
        TrackerKind("mlflow", {"DISABLE_MLFLOW_INTEGRATION": ""}, _mlflow),
        TrackerKind("tensorboard", {}, _tensorboard),
    )
}
