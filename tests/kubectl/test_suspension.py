"""`kubectl tensafe suspend` and `resume` on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from tensafe_api.reasons import Phase, Reason
from tensafe_kubectl.api import Api
from tests.support.plugin_team import NAME, Plugin, Start, Team, running, status_of

pytestmark = pytest.mark.cluster


def test_only_spec_suspend_changes(team: Team, plugin: Plugin) -> None:
    before = team.create_job(status=running(5))["spec"]
    assert plugin("suspend", NAME).out.startswith(f"{NAME}: spec.suspend is true now")
    assert team.job()["spec"] == {**before, "suspend": True}
    assert plugin("suspend", NAME).out.startswith(f"{NAME}: spec.suspend is true already")
    assert plugin("resume", NAME).out.startswith(f"{NAME}: spec.suspend is false now")
    assert team.job()["spec"] == {**before, "suspend": False}


def test_wait_returns_when_the_request_has_had_its_effect(team: Team, start: Start) -> None:
    team.create_job(status=running(5))
    suspended, resumed = status_of(Phase.SUSPENDED, Reason.SUSPENDED), running(6)
    for verb, before, after in (("suspend", "Running", suspended), ("resume", "Suspended", resumed)):
        waiting = start(verb, NAME, "--wait")
        waiting.wait_for(f"  {before}: ")
        team.write_status(after)
        code, printed = waiting.end()
        assert code == 0 and f"  {after['phase']}: " in printed


def test_wait_of_a_job_that_fails_instead_is_an_error(team: Team, start: Start) -> None:
    team.create_job(status=running(5))
    waiting = start("suspend", NAME, "--wait")
    waiting.wait_for("  Running: ")
    team.write_status(status_of(Phase.FAILED, Reason.NO_PROGRESS))
    code, printed = waiting.end()
    assert code == 1 and "has ended (Failed) before it was Suspended" in printed


def test_ended_job_is_not_changed(team: Team, plugin: Plugin) -> None:
    team.create_job(status=status_of(Phase.SUCCEEDED, Reason.COMPLETED))
    refused = plugin("suspend", NAME)
    assert refused.code == 1 and "has ended (Succeeded)" in refused.err
    assert not team.job()["spec"].get("suspend")


def test_job_that_was_replaced_after_it_was_read_is_not_changed(
    team: Team, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.create_job(status=running(5))
    merge = Api.merge

    def replace_first(*arguments: Any) -> Any:
        team.kubectl("delete", "tsj", NAME)
        team.create_job()
        return merge(*arguments)

    monkeypatch.setattr(Api, "merge", replace_first)
    refused = plugin("suspend", NAME)
    assert refused.code == 1 and "was replaced by another one of its name" in refused.err
    assert not team.job()["spec"].get("suspend")


def test_status_that_changes_meanwhile_is_no_conflict(
    team: Team, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.create_job(status=running(5))
    merge = Api.merge

    def charge_first(*arguments: Any) -> Any:
        team.write_status(running(6))
        return merge(*arguments)

    monkeypatch.setattr(Api, "merge", charge_first)
    assert plugin("suspend", NAME).code == 0
    assert team.job()["spec"]["suspend"] is True
