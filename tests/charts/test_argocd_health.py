"""What Argo CD makes of a job, by its own engine: our Lua over statuses that the operator writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.platform.fixtures.argocd import ACTIONS, CONFIG_MAP, argocd, config_map
from e2e.platform.fixtures.manifests import MINIMAL, changed
from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.status import Status
from tensafe_operator.plan.conditions import JobState, set_conditions

pytestmark = pytest.mark.cluster

NOW = 1_800_000_000.0
GENERATION = 3


def job(status: Status | None, **changes: Any) -> dict[str, Any]:
    """A job as the API server has it."""
    metadata = {"metadata.generation": GENERATION, "metadata.namespace": "clinic", "metadata.annotations": {}}
    dotted = {path.replace("__", "."): value for path, value in changes.items()}
    made = changed(MINIMAL, {**metadata, **dotted})
    if status is None:
        return made
    return {**made, "status": status.model_dump(by_alias=True, mode="json", exclude_none=True)}


def status(phase: Phase, reason: Reason, message: str = "", *, seen: int = GENERATION, **flags: bool) -> Status:
    """What the operator writes of a phase."""
    written = Status(observed_generation=seen)
    set_conditions(written, JobState(phase, reason, message, **flags), NOW)
    return written


def ask(folder: Path, question: str, about: dict[str, Any], *arguments: str) -> str:
    """The answer of `argocd admin settings resource-overrides`."""
    manifest = folder / "job.yaml"
    manifest.write_text(json.dumps(about))
    where = ("admin", "settings", "resource-overrides", question, str(manifest), *arguments)
    return argocd(folder, *where, "--argocd-cm-path", str(CONFIG_MAP))


def health(folder: Path, about: dict[str, Any]) -> tuple[str, str]:
    first, second = ask(folder, "health", about).splitlines()
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
def test_each_phase_has_a_health_and_says_why(phase: Phase, tmp_path: Path) -> None:
    reason, word = OF_PHASE[phase]
    assert health(tmp_path, job(status(phase, reason))) == (word, f"{reason}: {reason.sentence}")


def test_a_job_that_nobody_has_looked_at_makes_progress(tmp_path: Path) -> None:
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
def test_a_job_that_waits_for_a_person_is_degraded(
    phase: Phase, reason: Reason, message: str, accepted: bool, tmp_path: Path
) -> None:
    stalled = status(phase, reason, message, accepted=accepted, stalled=True)
    assert health(tmp_path, job(stalled)) == ("Degraded", f"{reason}: {message or reason.sentence}")


def test_a_status_of_an_older_spec_is_no_verdict_but_a_final_one(tmp_path: Path) -> None:
    word, message = health(tmp_path, job(status(Phase.SUSPENDED, Reason.SUSPENDED, seen=GENERATION - 1)))
    assert (word, message) == ("Progressing", "Waiting for the TenSafe operator to see the last change")
    stalled = status(Phase.PENDING, Reason.KUBERAY_MISSING, seen=GENERATION - 1, stalled=True)
    assert health(tmp_path, job(stalled))[0] == "Progressing"
    for phase, word in ((Phase.SUCCEEDED, "Healthy"), (Phase.FAILED, "Degraded")):
        assert health(tmp_path, job(status(phase, Reason.COMPLETED, seen=GENERATION - 1)))[0] == word


def test_a_phase_of_a_newer_release_makes_progress(tmp_path: Path) -> None:
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
def test_the_action_is_offered_that_changes_something(
    phase: Phase | None, suspend: bool | None, offered: set[str], tmp_path: Path
) -> None:
    written = status(phase, Reason.TRAINING) if phase else None
    heading, *lines = ask(tmp_path, "list-actions", job(written, spec__suspend=suspend)).splitlines()
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
def test_an_action_changes_suspend_and_nothing_else(
    before: bool | None, action: str, lines: list[str], tmp_path: Path
) -> None:
    running = job(status(Phase.RUNNING, Reason.TRAINING), spec__suspend=before, spec__cluster__nodeSelector={})
    shown = [" ".join(line.split()) for line in ask(tmp_path, "run-action", running, action).splitlines()]
    assert [line for line in shown if line[:1] in ("<", ">")] == lines


def test_the_config_map_is_that_of_the_lua_files() -> None:
    assert CONFIG_MAP.read_text() == config_map(), "write it again: python e2e/platform/fixtures/argocd.py"
    data = yaml.safe_load(CONFIG_MAP.read_text())["data"]
    assert {key.rsplit(".", 1)[0] for key in data} == {
        "resource.customizations.health.tensafe",
        "resource.customizations.actions.tensafe",
    }
