"""The health and the actions that Argo CD shows for a job: its own engine runs our Lua on statuses of the operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.status import Status
from tensafe_operator.decision.conditions import JobState, set_conditions
from tests.support.argocd import ACTIONS, CONFIG_MAP, argocd, config_map
from tests.support.manifests import MINIMAL, changed

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

NOW = 1_800_000_000.0
GENERATION = 3


def job(status: Status | None, **changes: Any) -> dict[str, Any]:
    """Return a job as the API server returns it."""
    metadata = {"metadata.generation": GENERATION, "metadata.namespace": "clinic", "metadata.annotations": {}}
    dotted = {path.replace("__", "."): value for path, value in changes.items()}
    manifest = changed(MINIMAL, {**metadata, **dotted})
    if status is None:
        return manifest
    return {**manifest, "status": status.model_dump(by_alias=True, mode="json", exclude_none=True)}


def status(phase: Phase, reason: Reason, message: str = "", *, observed: int = GENERATION, **flags: bool) -> Status:
    """Return the status that the operator writes for a phase."""
    written = Status(observed_generation=observed)
    set_conditions(written, JobState(phase, reason, message, **flags), NOW)
    return written


def run_overrides(folder: Path, command: str, about: dict[str, Any], *arguments: str) -> str:
    """Return the output of `argocd admin settings resource-overrides`."""
    manifest = folder / "job.yaml"
    manifest.write_text(json.dumps(about))
    where = ("admin", "settings", "resource-overrides", command, str(manifest), *arguments)
    return argocd(folder, *where, "--argocd-cm-path", str(CONFIG_MAP))


def health(folder: Path, about: dict[str, Any]) -> tuple[str, str]:
    first, second = run_overrides(folder, "health", about).splitlines()
    return first.removeprefix("STATUS: "), second.removeprefix("MESSAGE: ")


OF_PHASE = {
    Phase.PENDING: (Reason.STARTING, "Progressing"),
    Phase.QUEUED: (Reason.QUEUED, "Progressing"),
    Phase.STARTING: (Reason.STARTING, "Progressing"),
    Phase.RUNNING: (Reason.TRAINING, "Progressing"),
    Phase.SUSPENDED: (Reason.SUSPENDED, "Suspended"),
    Phase.SUCCEEDED: (Reason.COMPLETED, "Healthy"),
    Phase.BUDGET_EXHAUSTED: (Reason.BUDGET_EXHAUSTED, "Healthy"),
    Phase.FAILED: (Reason.ATTEMPTS_EXHAUSTED, "Degraded"),
}


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_has_a_health_with_its_reason(phase: Phase, tmp_path: Path) -> None:
    reason, word = OF_PHASE[phase]
    assert health(tmp_path, job(status(phase, reason))) == (word, f"{reason}: {reason.sentence}")


def test_job_before_its_first_reconcile_is_progressing(tmp_path: Path) -> None:
    expected = ("Progressing", "Waiting for the TenSafe operator")
    assert health(tmp_path, job(None)) == expected
    assert health(tmp_path, job(Status())) == expected


@pytest.mark.parametrize(
    ("phase", "reason", "message", "accepted"),
    [
        (Phase.PENDING, Reason.KUBERAY_MISSING, "", True),
        (Phase.PENDING, Reason.UNKNOWN_FIELD, "spec.wokers: unknown field", False),
        (Phase.STARTING, Reason.IMAGE_PULL_FAILED, "pod a-head: trainer:1: ErrImagePull", True),
    ],
)
def test_stalled_job_is_degraded(phase: Phase, reason: Reason, message: str, accepted: bool, tmp_path: Path) -> None:
    stalled = status(phase, reason, message, accepted=accepted, stalled=True)
    assert health(tmp_path, job(stalled)) == ("Degraded", f"{reason}: {message or reason.sentence}")


def test_only_a_final_status_of_an_older_spec_counts(tmp_path: Path) -> None:
    word, message = health(tmp_path, job(status(Phase.SUSPENDED, Reason.SUSPENDED, observed=GENERATION - 1)))
    assert (word, message) == ("Progressing", "Waiting for the TenSafe operator to see the last change")
    stalled = status(Phase.PENDING, Reason.KUBERAY_MISSING, observed=GENERATION - 1, stalled=True)
    assert health(tmp_path, job(stalled))[0] == "Progressing"
    for phase, word in ((Phase.SUCCEEDED, "Healthy"), (Phase.FAILED, "Degraded")):
        assert health(tmp_path, job(status(phase, Reason.COMPLETED, observed=GENERATION - 1)))[0] == word


def test_unknown_phase_of_a_newer_release_is_progressing(tmp_path: Path) -> None:
    newer = status(Phase.RUNNING, Reason.TRAINING)
    newer.phase = "Polishing"
    assert health(tmp_path, job(newer))[0] == "Progressing"


@pytest.mark.parametrize(
    ("phase", "suspend", "offered"),
    [
        (None, None, {"suspend"}),
        (Phase.RUNNING, False, {"suspend"}),
        (Phase.RUNNING, True, {"resume"}),
        (Phase.SUSPENDED, True, {"resume"}),
        (Phase.SUCCEEDED, False, set()),
        (Phase.BUDGET_EXHAUSTED, True, set()),
        (Phase.FAILED, True, set()),
    ],
)
def test_only_the_action_that_changes_something_is_offered(
    phase: Phase | None, suspend: bool | None, offered: set[str], tmp_path: Path
) -> None:
    written = status(phase, Reason.TRAINING) if phase else None
    heading, *lines = run_overrides(tmp_path, "list-actions", job(written, spec__suspend=suspend)).splitlines()
    assert heading.split() == ["NAME", "DISABLED"]
    disabled = dict(line.split() for line in lines)
    assert disabled == {action: "false" if action in offered else "true" for action in ACTIONS}


@pytest.mark.parametrize(
    ("before", "action", "lines"),
    [
        (False, "suspend", ["< suspend: false", "> suspend: true"]),
        (None, "suspend", ["> suspend: true"]),
        (True, "resume", ["< suspend: true", "> suspend: false"]),
    ],
)
def test_action_changes_suspend_and_nothing_else(
    before: bool | None, action: str, lines: list[str], tmp_path: Path
) -> None:
    running = job(status(Phase.RUNNING, Reason.TRAINING), spec__suspend=before, spec__cluster__nodeSelector={})
    shown = [" ".join(line.split()) for line in run_overrides(tmp_path, "run-action", running, action).splitlines()]
    assert [line for line in shown if line[:1] in ("<", ">")] == lines


def test_config_map_matches_the_lua_files() -> None:
    assert CONFIG_MAP.read_text() == config_map(), "generate it again: python -m tests.support.argocd"
    data = yaml.safe_load(CONFIG_MAP.read_text())["data"]
    assert {key.rsplit(".", 1)[0] for key in data} == {
        "resource.customizations.health.tensafe",
        "resource.customizations.actions.tensafe",
    }
