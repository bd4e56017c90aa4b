"""Who may read the metrics of a real operator, and over TLS: the API server reviews each token."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensafe_operator import installation
from tests.support.operator_harness import OperatorHarness
from tests.support.operator_process import OperatorProcess
from tests.support.polling import wait_until
from tests.support.programs import prometheus
from tests.support.programs.controlplane import CertificateAuthority

pytestmark = pytest.mark.cluster

READER = "tensafe-metrics-reader"
RELOAD_SOON = "import tensafe_operator.runtime.serving_certificate as tls; tls.POLL_SECONDS = 0.2"
NO_LONGER_KEPT = "import tensafe_operator.runtime.authorization as auth; auth.ALLOWED_SECONDS = 0.2"


class Client:
    """Requests to one operator, with or without TLS."""

    def __init__(self, operator: OperatorProcess, authority: Path | None = None) -> None:
        self.scheme = "http" if authority is None else "https"
        self.port = operator.port
        self._context = None if authority is None else ssl.create_default_context(cafile=str(authority))

    def get(self, path: str, token: str = "") -> tuple[int, str]:
        """Status and body of the answer; (0, "") without one."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"{self.scheme}://127.0.0.1:{self.port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10, context=self._context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()
        except OSError:
            return 0, ""


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[OperatorHarness]:
    made = OperatorHarness(tmp_path)
    try:
        made.start(**{"metrics.auth.enabled": True})
        yield made
    finally:
        made.stop()


def token(harness: OperatorHarness, account: str) -> str:
    """A token of a new service account."""
    harness.plane.kubectl("-n", "lab", "create", "serviceaccount", account)
    return harness.plane.kubectl("-n", "lab", "create", "token", account).stdout.strip()


def allow(harness: OperatorHarness, account: str) -> None:
    subject = f"--serviceaccount=lab:{account}"
    harness.plane.kubectl("create", "clusterrolebinding", account, f"--clusterrole={READER}", subject)


def test_metrics_need_a_token_whose_user_may_read_them(harness: OperatorHarness) -> None:
    operators = [harness.operator(TENSAFE_METRICS_AUTH="true", before=NO_LONGER_KEPT) for _ in range(2)]
    clients = [Client(each) for each in operators]
    for client in clients:
        harness.wait_until(lambda: client.get("/healthz") == (200, "ok"))  # noqa: B023
    with_right, without = token(harness, "prometheus"), token(harness, "other")
    allow(harness, "prometheus")
    for client in clients:  # the standby replica answers as well
        status, text = client.get("/metrics")
        assert (status, text) == (401, "send a token of this cluster: Authorization: Bearer TOKEN")
        assert client.get("/metrics", "not-a-token")[0] == 401
        status, text = client.get("/metrics", without)
        assert (status, text) == (403, "the user of the token needs the right to get the nonResourceURL /metrics")
        harness.wait_until(lambda: client.get("/metrics", with_right)[0] == 200)  # noqa: B023
        assert "tensafe_leading" in client.get("/metrics", with_right)[1]
        assert client.get("/healthz") == (200, "ok"), "the kubelet has no token"
    leading = [client.get("/metrics", with_right)[1].count("tensafe_leading 1.0") for client in clients]
    assert sum(leading) <= 1
    harness.plane.kubectl("delete", "clusterrolebinding", "prometheus")
    harness.wait_until(lambda: clients[0].get("/metrics", with_right)[0] == 403)
    assert harness.refused() == [], "the chart's roles allow the reviews"


@pytest.mark.nightly
def test_prometheus_scrapes_over_tls_with_its_token_and_after_the_certificate_has_changed(
    harness: OperatorHarness, tmp_path: Path
) -> None:
    folder, issued = tmp_path / "tls", tmp_path / "issued"
    for each in (folder, issued):
        each.mkdir()

    def mount(authority: CertificateAuthority) -> None:
        certificate, key = authority.issue("server", "operator", server=["127.0.0.1"])
        for source, name in ((certificate, "tls.crt"), (key, "tls.key")):
            shutil.copy(source, folder / f".{name}")
            (folder / f".{name}").rename(folder / name)

    mount(CertificateAuthority(issued))
    shutil.copy(issued / "ca.crt", tmp_path / "first-ca.crt")
    operator = harness.operator(
        TENSAFE_METRICS_AUTH="true", TENSAFE_METRICS_TLS=str(folder), TENSAFE_NAMESPACES="clinic", before=RELOAD_SOON
    )
    first = Client(operator, tmp_path / "first-ca.crt")
    harness.wait_until(lambda: first.get("/healthz") == (200, "ok"))
    assert Client(operator).get("/healthz")[0] == 0, "plain HTTP is not served"
    healthy = asyncio.run(installation._check_health(operator.health.replace("http:", "https:"), 5))
    assert healthy.passed, f"helm test asks over TLS: {healthy.text}"
    assert first.get("/metrics")[0] == 401
    reader = token(harness, "prometheus")
    allow(harness, "prometheus")
    harness.apply("one")
    harness.wait_until(lambda: harness.started("one"))
    harness.wait_until(lambda: 'job="one"' in first.get("/metrics", reader)[1])

    mount(CertificateAuthority(issued))  # of a new authority, so that the old trust no longer suffices
    second = Client(operator, issued / "ca.crt")
    harness.wait_until(lambda: second.get("/healthz") == (200, "ok"))
    assert first.get("/healthz")[0] == 0, "the old certificate is no longer served"

    (tmp_path / "token").write_text(reader)
    target = {
        "job_name": "tensafe",
        "scheme": "https",
        "honor_labels": True,
        "tls_config": {"ca_file": str(issued / "ca.crt")},
        "authorization": {"credentials_file": str(tmp_path / "token")},
        "static_configs": [{"targets": [f"127.0.0.1:{operator.port}"]}],
    }
    scrapes = tmp_path / "prometheus"
    scrapes.mkdir()
    with prometheus.server(scrapes, [target]) as server:
        query = 'tensafe_job_phase{namespace="clinic", job="one"} == 1'
        (found,) = wait_until(lambda: server.query(query), failure_message=lambda: json.dumps(server.targets()))
        assert found["metric"]["phase"] == "Starting"
        assert server.query("tensafe_leading == 1")
        assert {each["metric"]["namespace"] for each in server.query("tensafe_namespace_served == 1")} == {"clinic"}
    assert harness.refused() == []
