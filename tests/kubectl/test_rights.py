"""The roles of Kubernetes that are enough for the plugin, because the chart adds its rules to them."""

from __future__ import annotations

import pytest

from tests.support.plugin_team import NAME, Plugin, Team, running
from tests.support.polling import wait_until

pytestmark = pytest.mark.cluster


def may(team: Team, role: str, verb: str, what: str, subresource: str = "") -> bool:
    account = f"--as=system:serviceaccount:{team.namespace}:{role}"
    part = [f"--subresource={subresource}"] if subresource else []
    done = team.plane.kubectl("-n", team.namespace, "auth", "can-i", verb, what, *part, account, check=False)
    return done.stdout.strip() == "yes"


def test_view_reads_everything_and_edit_also_suspends(team: Team, plugin: Plugin) -> None:
    team.create_ledger(team.create_job(status=running(5)))
    viewer, editor = team.member("view"), team.member("edit")
    wait_until(lambda: may(team, "view", "get", "tsj") and may(team, "edit", "patch", "tsj"))
    for verb in ("status", "explain", "ledger"):
        shown = plugin(verb, NAME, kubeconfig=viewer)
        assert shown.code == 0, shown.err
        # RayJobs are KubeRay's, and these roles have no rights on them by themselves.
        assert not [line for line in shown.err.splitlines() if "may not" in line and "rayjobs" not in line], shown.err
    refused = plugin("suspend", NAME, kubeconfig=viewer)
    assert refused.code == 1 and 'the verb "patch" on tensafetrainingjobs.tensafe.io' in refused.err
    for verb in ("suspend", "resume"):
        changed = plugin(verb, NAME, kubeconfig=editor)
        assert changed.code == 0, changed.err


def test_neither_role_writes_ledgers(team: Team) -> None:
    for role in ("view", "edit"):
        team.member(role)
    wait_until(lambda: may(team, "edit", "create", "tsj"))
    assert may(team, "edit", "watch", "privacyledgers")
    for verb in ("create", "update", "patch", "delete"):
        assert not may(team, "edit", verb, "privacyledgers"), verb
    for what in ("privacyledgers", "tsj"):
        assert not may(team, "edit", "patch", what, "status"), "only the operator and the job's pods"
    assert not may(team, "view", "create", "tsj")
