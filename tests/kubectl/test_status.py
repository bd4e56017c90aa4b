"""`kubectl tensafe status` on a real API server: what a user sees of jobs, with the rights that the user has."""

from __future__ import annotations

import pytest

from tensafe_api.reasons import Phase, Reason
from tensafe_api.resources.status import Attempt, CheckpointRecord, FinalModel, PrivacyStatus, Progress
from tests.support.plugin_team import NAME, Plugin, Team, running, status_of

pytestmark = pytest.mark.cluster

OF_PHASE = {
    Phase.PENDING: Reason.KUBERAY_MISSING,
    Phase.QUEUED: Reason.QUEUED,
    Phase.STARTING: Reason.STARTING,
    Phase.RUNNING: Reason.TRAINING,
    Phase.SUSPENDED: Reason.SUSPENDED,
    Phase.SUCCEEDED: Reason.COMPLETED,
    Phase.BUDGET_EXHAUSTED: Reason.BUDGET_EXHAUSTED,
    Phase.FAILED: Reason.NO_PROGRESS,
}
SPENT = PrivacyStatus(
    epsilon_spent="4.93",
    epsilon_claimed="7.9",
    target_epsilon="8",
    delta="0.00002",
    unit="User",
    steps_charged=12,
    steps_claimed=20,
    steps_recharged=2,
)
GET_JOBS = {"apiGroups": ["tensafe.io"], "resources": ["tensafetrainingjobs"], "verbs": ["get"]}


def test_job_in_every_phase_is_shown_with_its_reason(team: Team, plugin: Plugin) -> None:
    for phase, reason in OF_PHASE.items():
        name = phase.value.lower()
        team.create_job(name, status_of(phase, reason))
        shown = plugin("status", name)
        assert (shown.code, shown.err) == (0, "")
        assert shown.out.startswith(f"{name}  {phase}")
        assert reason.sentence in shown.out
        assert plugin("explain", name).code == 0
    table = plugin("status").out
    assert {line.split()[0]: line.split()[1] for line in table.splitlines()[1:]} == {
        phase.value.lower(): phase.value for phase in OF_PHASE
    }


def test_screen_shows_the_story_of_a_job(team: Team, plugin: Plugin) -> None:
    failed = Attempt(
        number=1,
        ray_job_name=f"{NAME}-a1",
        ray_cluster_name=f"{NAME}-a1-x",
        start_time="2026-01-01T00:00:00Z",
        end_time="2026-01-01T00:01:05Z",
        reason="DatasetUnreadable",
        exit_code=70,
        message="The data set cannot be read.",
    )
    checkpoint = CheckpointRecord(uri="s3://models/step-10", step=10, epsilon="4.5", digest="sha256:1")
    final = FinalModel(uri="s3://models/final", statement_uri="s3://models/final/statement.json")
    status = status_of(
        Phase.STARTING,
        Reason.SECRET_MISSING,
        "pod x: secret s3-keys not found",
        stalled=True,
        attempts=(failed, Attempt(number=2)),
        privacy=SPENT,
        progress=Progress(step=10, total_steps=20),
        checkpoints=(checkpoint,),
        final_model=final,
    )
    team.create_job(status=status)
    team.create_warning("one", "Pod", f"{NAME}-a1-x-worker-1", "BackOff", "back-off restarting")
    team.create_warning("two", "Pod", "another-job-worker", "BackOff", "of another job")
    earlier = "2026-01-01T00:00:00Z"
    team.create_warning("three", "Pod", f"{NAME}-a1-x-worker-1", "BackOff", "of an earlier namesake", time=earlier)
    out = plugin("status", NAME).out
    assert "10 of 20 steps (50 %)" in out and "█" * 15 + "░" * 15 in out
    assert "4.93 of 8" in out and "of 12 charged steps (2 of them again, after a crash)" in out
    assert "of 20 steps to sign off; δ 0.00002, unit User" in out
    assert "DatasetUnreadable" in out and "1:05" in out and "70" in out
    assert "Stalled=True" in out and "SecretMissing" in out
    assert "s3://models/step-10" in out and "s3://models/final" in out
    assert f"`kubectl tensafe statement {NAME} -n {team.namespace}` shows its claim" in " ".join(out.split())
    assert "back-off restarting" in out and "of another job" not in out
    assert "of an earlier namesake" not in out
    assert "\x1b" not in out, "no colours in a pipe"


def test_json_has_the_status_and_what_needs_attention(team: Team, plugin: Plugin) -> None:
    team.create_job(status=status_of(Phase.STARTING, Reason.UNSCHEDULABLE, "no GPU", stalled=True, privacy=SPENT))
    shown = plugin("status", NAME, "-o", "json").json
    assert (shown["phase"], shown["reason"], shown["fix"]) == ("Starting", "Unschedulable", Reason.UNSCHEDULABLE.fix)
    assert shown["status"]["privacy"]["epsilonSpent"] == shown["epsilonSpent"] == "4.93"
    assert [each["type"] for each in shown["problems"]] == ["Stalled"]
    assert shown["warnings"] == [] and shown["notRead"] == []
    assert [each["name"] for each in plugin("status", "-o", "json").json["jobs"]] == [NAME]


def test_all_namespaces_are_listed_with_their_names(team: Team, plugin: Plugin) -> None:
    team.create_job()
    out = plugin("status", "-A").out
    assert [team.namespace, NAME, "New"] in [line.split()[:3] for line in out.splitlines()]


def test_wrong_name_gets_similar_ones(team: Team, plugin: Plugin) -> None:
    nothing = plugin("status", "claims")
    assert nothing.code == 1 and "it has no jobs" in nothing.err
    team.create_job()
    wrong = plugin("status", "claim-triage")
    assert wrong.code == 1 and wrong.out == ""
    assert wrong.err == f"no job claim-triage in the namespace {team.namespace}: did you mean {NAME}?\n"
    assert f"the jobs there are {NAME}" in plugin("explain", "zebra").err
    assert plugin("status", f"tsj/{NAME}").code == 0


def test_namespace_that_does_not_exist_is_named(plugin: Plugin) -> None:
    wrong = plugin("status", NAME, namespace="nowhere")
    assert wrong.code == 1 and "this namespace does not exist" in wrong.err


def test_user_who_may_only_get_jobs_sees_the_job_and_what_is_missing(team: Team, plugin: Plugin) -> None:
    team.create_job(status=running(5))
    user = team.user("reader", GET_JOBS)
    shown = plugin("status", NAME, kubeconfig=user)
    assert shown.code == 0 and "5 of 20 steps" in shown.out
    assert "may not list pods in the namespace" in shown.err and "may not list events in the namespace" in shown.err
    assert plugin("status", NAME, "-o", "json", kubeconfig=user).json["warnings"] is None
    explained = plugin("explain", NAME, kubeconfig=user)
    assert explained.code == 0 and "The job trains." in explained.out and "rayjobs.ray.io" in explained.err


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        (("status",), 'the verb "list" on tensafetrainingjobs.tensafe.io'),
        (("status", NAME, "--watch"), 'the verb "watch" on tensafetrainingjobs.tensafe.io'),
        (("ledger", NAME), 'the verb "get" on privacyledgers.tensafe.io'),
        (("ledger",), 'the verb "list" on privacyledgers.tensafe.io'),
        (("statement", NAME), 'the verb "get" on privacyledgers.tensafe.io'),
        (("logs", NAME), 'the verb "list" on pods'),
        (("suspend", NAME), 'the verb "patch" on tensafetrainingjobs.tensafe.io'),
    ],
)
def test_refusal_names_the_right_that_the_user_lacks(
    team: Team, plugin: Plugin, arguments: tuple[str, ...], right: str
) -> None:
    team.create_job(status=running(5))
    refused = plugin(*arguments, kubeconfig=team.user("reader", GET_JOBS))
    assert refused.code == 1
    assert right in refused.err and f"system:serviceaccount:{team.namespace}:reader" in refused.err
    assert "Traceback" not in refused.err


def test_wrong_name_without_the_right_to_list_is_still_explained(team: Team, plugin: Plugin) -> None:
    refused = plugin("status", "nope", kubeconfig=team.user("reader", GET_JOBS))
    assert refused.code == 1 and "check its name and the namespace" in refused.err


def test_status_of_a_newer_operator_is_shown(team: Team, plugin: Plugin) -> None:
    status = running(5)
    for condition in status["conditions"]:
        condition["reason"] = "InventedLater"
    team.create_job(status=status)
    assert "5 of 20 steps" in plugin("status", NAME).out
    assert plugin("explain", NAME).out.startswith(f"{NAME}  Running  InventedLater")


def test_long_text_of_an_event_is_cut(team: Team, plugin: Plugin) -> None:
    """Any user may create one, and the API server does not bound it."""
    team.create_job(status=running(5))
    team.create_warning("one", "Pod", f"{NAME}-a1-x-worker-1", "BackOff", "back-off " + "x" * 200_000)
    for verb in ("status", "explain"):
        out = plugin(verb, NAME).out
        assert "back-off" in out and "x…" in out and len(out) < 20_000


def test_control_characters_of_a_message_do_not_reach_the_terminal(team: Team, plugin: Plugin) -> None:
    team.create_job(status=running(5))
    team.create_warning("one", "Pod", f"{NAME}-a1-x-worker-1", "BackOff", "red \x1b[31m text")
    for verb in ("status", "explain"):
        out = plugin(verb, NAME).out
        assert "red" in out and "\x1b" not in out
