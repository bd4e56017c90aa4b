"""`kubectl tensafe ledger` and `statement` on a real API server, whose admission policy guards the ledgers."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.accounting import composition
from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.ledger import PrivacyLedgerSpec
from tensafe_api.resources.mechanism import Mechanism, charged_events
from tensafe_api.resources.status import PrivacyStatus
from tensafe_api.statement.contents import (
    AggregationStatement,
    StatementInputs,
    build_statement,
    canonical_json,
    digest,
)
from tests.support.ledger_objects import SPEC, charged_status
from tests.support.plugin_team import NAME, Plugin, Team, status_of

pytestmark = pytest.mark.cluster
FOLDER = "s3://models/claims-triage/"
Releases = list[dict[str, Any]] | Callable[[dict[str, Any]], list[dict[str, Any]]]


def charged_job(
    team: Team,
    *,
    phase: Phase = Phase.RUNNING,
    stored: str | None = None,
    folder: str = FOLDER,
    releases: Releases | None = None,
    spec: dict[str, Any] | None = None,
    **ledger: Any,
) -> str:
    """Create a job whose ledger has 10 charged steps; return the name of the ledger.

    Args:
        stored: ε spent in the status of the job.
        folder: where the job stores its checkpoints.
        releases: the published checkpoints, or what publishes them, given the ledger.
        spec: other fields of the ledger's spec.
        ledger: more fields of the ledger's status.
    """
    reason = {Phase.RUNNING: Reason.TRAINING, Phase.SUCCEEDED: Reason.COMPLETED}[phase]
    job = team.create_job(spec__checkpoint__uri=folder)
    found, pod = team.create_ledger(job, **(spec or {}))
    status = status_of(phase, reason, ledger_name=found.name, privacy=PrivacyStatus(epsilon_spent=stored))
    team.write_status(status)
    assert found.write(charged_status(pod, **ledger), pod) == ""
    if releases is not None:
        released = releases(ledger_object(team, found.name)) if callable(releases) else releases
        assert found.write(charged_status(pod, releases=released, length=3, **ledger), pod) == ""
    return found.name


def spent_by(ledger: dict[str, Any], steps: int) -> str:
    """ε of so many steps, computed without the plugin."""
    spec = ledger["spec"]
    mechanism = Mechanism.model_validate(spec["mechanism"])
    return composition.format_epsilon(composition.job_epsilon(mechanism, steps, spec["delta"], spec["accountant"]))


def final(uri: str, statement_digest: str = "sha256:2") -> list[dict[str, Any]]:
    return [
        {
            "uri": uri,
            "step": 10,
            "attempt": 1,
            "digest": "sha256:1",
            "statementDigest": statement_digest,
            "final": True,
            "stepsCharged": 10,
        }
    ]


def publish(folder: Path, ledger: dict[str, Any], *, step: int = 10, **changes: Any) -> list[dict[str, Any]]:
    """Write the statement of a job with this ledger, and return the ledger's record of the adapter.

    Args:
        changes: what the statement has, and the ledger has not.
    """
    spec = PrivacyLedgerSpec.model_validate(ledger["spec"], by_alias=True, by_name=False)
    names = ("job_name", "job_uid", "mechanism", "unit_at_least", "planned_steps", "target_epsilon", "delta")
    values: dict[str, Any] = {name: getattr(spec, name) for name in (*names, "accountant")}
    values |= {"steps_charged": step, "steps_recharged": 0, "step": step, "attempt": 1, "ledger_length": 2, **changes}
    document = build_statement(
        StatementInputs(
            **values,
            place="PodsWithTLS",
            events=charged_events(values["mechanism"], values["steps_charged"]),
            dimension=10,
            noise_distance=0.0,
            aggregation=AggregationStatement("pairwise masks", (), ()),
            adapter_digest="sha256:3",
            ledger_head="0" * 64,
        )
    )
    content = canonical_json(document)
    folder.mkdir(exist_ok=True)
    (folder / "statement.json").write_bytes(content)
    return [{**each, "step": step} for each in final(f"file://{folder}", digest(content))]


def ledger_object(team: Team, name: str) -> dict[str, Any]:
    return dict(json.loads(team.kubectl("get", "privacyledger", name, "-o", "json")))


def test_epsilon_is_computed_from_the_charges_and_compared_with_the_status(team: Team, plugin: Plugin) -> None:
    name = charged_job(team, stored="0.001")
    expected = spent_by(ledger_object(team, name), 10)
    shown = plugin("ledger", NAME)
    assert shown.code == 0, shown.err
    assert "of 10 charged steps; target 8; the status says 0.001" in shown.out and expected in shown.out
    figures = plugin("ledger", NAME, "-o", "json").json
    assert (figures["epsilonSpent"], figures["stepsCharged"]) == (expected, 10)
    assert figures["inStatus"]["epsilonSpent"] == "0.001"
    team.write_status({"privacy": {"epsilonSpent": expected}})
    assert "the status agrees" in plugin("ledger", NAME).out


def test_ended_job_with_another_epsilon_in_its_status_is_an_error(team: Team, plugin: Plugin) -> None:
    charged_job(team, phase=Phase.SUCCEEDED, stored="0.001")
    shown = plugin("ledger", NAME)
    assert shown.code == 1 and "the ledger counts" in shown.err


def test_ledger_of_a_namesake_is_named_and_found_by_its_own_name(team: Team, plugin: Plugin) -> None:
    """The deleted job has spent something, and the new one of its name nothing."""
    earlier = charged_job(team, stored="0.001")
    assert plugin("ledger", earlier).out.count("the status says 0.001") == 1  # its job still exists
    team.kubectl("delete", "tsj", NAME)
    job = team.create_job()
    no_ledger = plugin("ledger", NAME)
    assert no_ledger.code == 1 and earlier in no_ledger.err
    new, _ = team.create_ledger(job)
    shown = plugin("ledger", NAME)
    assert shown.code == 0 and f"ledger {new.name}" in shown.out and "of 0 charged steps" in shown.out
    assert f"ledgers of their own, which are not counted here: {earlier}" in " ".join(shown.err.split())
    of_earlier = plugin("ledger", earlier)
    assert "of 10 charged steps" in of_earlier.out and "The job was deleted." in of_earlier.out
    assert new.name in of_earlier.err


def test_name_of_a_job_and_of_the_ledger_of_another_job_is_refused(team: Team, plugin: Plugin) -> None:
    """A user can give a costly job the name of the ledger of a cheap one, or hide a ledger behind a new job."""
    ledger = charged_job(team)
    own, _ = team.create_ledger(team.create_job(ledger))
    for verb in ("ledger", "statement"):
        refused = plugin(verb, ledger)
        assert refused.code == 1 and refused.out == ""
        assert f"{ledger} is a job, with the ledger {own.name}, and it is also the ledger of another job" in refused.err
    assert f"{ledger}  ledger {own.name}" in plugin("ledger", f"tsj/{ledger}").out
    assert f"{NAME}  ledger {ledger}" in plugin("ledger", f"pledger/{ledger}").out
    assert f"{NAME}  ledger {ledger}" in plugin("ledger", NAME).out
    assert "no ledger nothing in the namespace" in plugin("ledger", "privacyledgers/nothing").err
    assert "is neither a job nor a ledger" in plugin("ledger", "pod/x").err


def test_ledger_is_read_with_the_rights_for_one_job(team: Team, plugin: Plugin) -> None:
    ledger = charged_job(team)
    names = {"tensafetrainingjobs": NAME, "privacyledgers": ledger}
    rules = [
        {"apiGroups": ["tensafe.io"], "resources": [resource], "resourceNames": [name], "verbs": ["get"]}
        for resource, name in names.items()
    ]
    shown = plugin("ledger", NAME, kubeconfig=team.user("auditor", *rules))
    assert shown.code == 0 and f"ledger {ledger}" in shown.out, shown.err


def test_ledger_of_a_deleted_job_is_found_by_the_jobs_name(team: Team, plugin: Plugin) -> None:
    name = charged_job(team)
    team.kubectl("delete", "tsj", NAME)
    for given in (NAME, name):
        shown = plugin("ledger", given)
        assert shown.code == 0 and "The job was deleted. What it spent stays spent." in shown.out
    assert [name, NAME, "10", "20", "8"] in [line.split() for line in plugin("ledger").out.splitlines()]
    other = charged_job(team)
    team.kubectl("delete", "tsj", NAME)
    several = plugin("ledger", NAME)
    assert several.code == 1 and "2 deleted jobs" in several.err and name in several.err and other in several.err
    assert "no job nothing" in plugin("ledger", "nothing").err


def test_new_job_of_the_same_name_does_not_show_the_ledger_of_the_old_one(team: Team, plugin: Plugin) -> None:
    name = charged_job(team)
    team.kubectl("delete", "tsj", NAME)
    team.create_job(status=status_of(Phase.STARTING, Reason.STARTING, ledger_name=name))
    shown = plugin("ledger", NAME)
    assert shown.code == 1 and "has no ledger" in shown.err
    assert f"`kubectl tensafe explain {NAME} -n {team.namespace}`" in shown.err


def test_ledger_that_no_worker_has_acquired_has_spent_nothing(team: Team, plugin: Plugin) -> None:
    team.create_ledger(team.create_job())
    shown = plugin("ledger", NAME)
    assert shown.code == 0 and "nothing is spent" in shown.out


def test_statement_shows_the_claim_of_the_final_adapter(team: Team, plugin: Plugin) -> None:
    charged_job(team, releases=final("s3://models/final"))
    shown = plugin("statement", NAME)
    assert shown.code == 0, shown.err
    claimed = plugin("ledger", NAME, "-o", "json").json["epsilonClaimed"]
    assert shown.out.startswith(f"({claimed}, 0.00002)-differential privacy for one example of {NAME}, of 20 steps")
    assert "s3://models/final/statement.json" in shown.out and "sha256:2" in shown.out
    document = plugin("statement", NAME, "-o", "json").json
    assert document["epsilonClaimed"] == claimed and document["final"]["uri"] == "s3://models/final"


def test_job_without_a_final_adapter_has_no_statement(team: Team, plugin: Plugin) -> None:
    ledger = charged_job(team)
    refused = plugin("statement", NAME)
    assert refused.code == 1 and "has no final adapter yet" in refused.err
    assert f"`kubectl tensafe status {NAME} -n {team.namespace}`" in refused.err
    assert f"`kubectl tensafe ledger pledger/{ledger} -n {team.namespace}`" in refused.err
    team.kubectl("delete", "tsj", NAME)
    refused = plugin("statement", ledger)
    assert "has no final adapter, so there is no statement of it: the job was deleted" in refused.err


def test_stored_statement_is_read_and_checked_against_the_ledger(team: Team, plugin: Plugin, tmp_path: Path) -> None:
    stored = tmp_path / "final" / "statement.json"
    ledger = charged_job(team, folder=f"file://{tmp_path}", releases=partial(publish, stored.parent))
    content = stored.read_bytes()
    read = plugin("statement", NAME, "--read")
    assert read.code == 0, read.err
    assert read.out.startswith("# Privacy statement of")
    spent = spent_by(ledger_object(team, ledger), 10)
    assert f"The ledger counts 10 charged steps: ε spent is {spent}, and ε claimed " in read.out
    assert plugin("statement", NAME, "--read", "-o", "json").out.encode() == content, "its digest is that of the ledger"
    stored.write_bytes(content.replace(b'"epsilon"', b'"Epsilon"', 1))
    changed = plugin("statement", NAME, "--read")
    assert changed.code == 1 and "do not use it" in changed.err
    stored.unlink()
    missing = plugin("statement", NAME, "--read")
    assert missing.code == 1 and "cannot be read (FileNotFoundError" in missing.err


EARLIER = {"sampleRate": "0.05", "noiseMultiplier": "0.9", "steps": 50}
WITH_EARLIER_STEPS = Mechanism.model_validate({**SPEC["mechanism"], "earlierSteps": [EARLIER]})


def test_statement_of_an_adapter_that_was_trained_before_is_checked(team: Team, plugin: Plugin, tmp_path: Path) -> None:
    mechanism = WITH_EARLIER_STEPS.model_dump(by_alias=True, mode="json")
    charged_job(team, folder=f"file://{tmp_path}", spec={"mechanism": mechanism}, releases=partial(publish, tmp_path))
    read = plugin("statement", NAME, "--read")
    assert read.code == 0, read.err
    assert "20 steps of this job, in all its attempts and restarts, and 50 steps of the trainings" in read.out


LITTLE_SPENT = Mechanism.model_validate({**SPEC["mechanism"], "noiseMultiplier": "300"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mechanism": LITTLE_SPENT}, "states another mechanism than the ledger (noiseMultiplier)"),
        ({"step": 5}, "spent.stepsCharged is 5, and the ledger has 10"),
        ({"steps_charged": 11}, "is shorter than it was"),
        ({"delta": "0.9"}, "claim.delta is 0.9, and the ledger has 0.00002"),
        ({"planned_steps": 10}, "spent.stepsPlanned is 10, and the ledger has 20"),
        ({"job_name": "another"}, "job.name is another, and the ledger has claims-triage"),
        ({"unit_at_least": 10**9}, "accounting.unitAtLeast is 1000000000, and the ledger has 5000"),
        ({"dataset_digest": "another"}, "hashes.dataset is keyed:another, and the ledger has not known"),
        ({"lineage": "another"}, "lineage is another, and the ledger has not known"),
        ({"step": 7, "steps_charged": 10, "steps_recharged": 3}, "spent.stepsRecharged is 3, and the ledger has 0"),
        ({"mechanism": WITH_EARLIER_STEPS}, "states another mechanism than the ledger (earlierSteps)"),
        ({"job_uid": "another"}, "is that of the job"),
        ({"attempt": 2}, "records another step of this checkpoint"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_statement_that_agrees_with_itself_and_not_with_the_ledger_is_refused(
    team: Team, plugin: Plugin, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    """A pod of the job wrote both. Its ε of 0.005 was shown as checked, where the ledger counted 1.7."""
    charged_job(team, folder=f"file://{tmp_path}", releases=partial(publish, tmp_path / "final", **changes))
    refused = plugin("statement", NAME, "--read")
    assert refused.code == 1 and refused.out == ""
    assert "is not the statement of this ledger" in refused.err and why in refused.err


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("reference://a::http://attacker.example", "it is a chain of file systems (::)"),
        (
            "smb://attacker.example/share",
            "only s3://, gs:// and the job's own file:// are read",
        ),
        ("s3://another/final", f"it is outside of the job's spec.checkpoint.uri, {FOLDER}"),
    ],
)
def test_uri_that_a_pod_wrote_for_another_place_is_not_read(team: Team, plugin: Plugin, uri: str, why: str) -> None:
    charged_job(team, releases=final(uri))
    refused = plugin("statement", NAME, "--read")
    assert refused.code == 1 and refused.out == ""
    assert f"{uri}/statement.json in the ledger is not read: {why}" in refused.err


def test_path_of_a_deleted_job_is_not_read(team: Team, plugin: Plugin, tmp_path: Path) -> None:
    charged_job(team, folder=f"file://{tmp_path}", releases=partial(publish, tmp_path))
    assert plugin("statement", NAME, "--read").code == 0
    team.kubectl("delete", "tsj", NAME)
    refused = plugin("statement", NAME, "--read")
    assert refused.code == 1 and "the job that could name the same folder was deleted" in refused.err


def test_statement_on_a_pvc_is_not_read_from_outside(team: Team, plugin: Plugin) -> None:
    charged_job(team, releases=final("pvc://models/final"))
    assert "read it in a pod that mounts the PVC" in plugin("statement", NAME).out
    assert "only pods can read" in plugin("statement", NAME, "--read").err
