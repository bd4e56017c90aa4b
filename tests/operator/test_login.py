"""Streams and requests go to the same API server, by the same address."""

from __future__ import annotations

from typing import Any

import kopf
import pytest

from tensafe_operator.runtime import watch


@pytest.fixture(autouse=True)
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's service account and a kubeconfig file, both there."""

    def of_the_pod(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server="https://kubernetes.default.svc", token="pod")

    def of_the_file(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server="https://api.example:6443", token="file")

    monkeypatch.setattr(kopf, "login_with_service_account", of_the_pod)
    monkeypatch.setattr(kopf, "login_with_kubeconfig", of_the_file)
    monkeypatch.delenv("KUBECONFIG", raising=False)


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_needs_no_dns_to_hear_of_its_jobs(monkeypatch: pytest.MonkeyPatch, host: str, server: str) -> None:
    """On a cluster whose DNS was away, the operator answered and heard nothing."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = watch.login()
    assert found is not None
    assert (found.server, found.token) == (server, "pod")


def test_a_kubeconfig_that_is_named_comes_first_as_it_does_for_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "somewhere")
    found = watch.login()
    assert found is not None and found.token == "file"
