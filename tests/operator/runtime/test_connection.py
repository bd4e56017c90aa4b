"""What a request needs: an address, TLS, and credentials that the kubelet replaces while the operator runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kopf
import pytest

from tensafe_operator.runtime import connection
from tensafe_operator.runtime.errors import ConfigurationError

SERVER = "https://10.96.0.1:443"


def test_token_of_the_pod_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, now = ["first", "second"], [100.0]

    def account(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=SERVER, token=tokens[0])

    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(kopf, "login_with_service_account", account)
    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])
    found = connection.connect()
    assert found.authorization() == "Bearer first"
    del tokens[0]
    now[0] += connection.TOKEN_SECONDS
    assert found.authorization() == "Bearer first"
    now[0] += 1
    assert found.authorization() == "Bearer second"


def test_token_stays_while_its_file_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found, now = [kopf.ConnectionInfo(server=SERVER, token="only")], [100.0]
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(kopf, "login_with_service_account", lambda **_: found.pop() if found else None)
    monkeypatch.setattr(connection.time, "monotonic", lambda: now[0])
    current = connection.connect()
    now[0] += 2 * connection.TOKEN_SECONDS
    assert current.authorization() == "Bearer only"


def kubeconfig(path: Path, cluster: str, user: str) -> Path:
    path.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        f"clusters: [{{name: c, cluster: {{{cluster}}}}}]\n"
        f"users: [{{name: u, user: {{{user}}}}}]\n"
    )
    return path


@pytest.mark.parametrize(
    ("user", "header"),
    [("token: abc", "Bearer abc"), ("username: me, password: pw", "Basic bWU6cHc=")],
)
def test_kubeconfig_gives_the_credentials(
    user: str, header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(tmp_path / "config", f'server: "{SERVER}/", proxy-url: "http://proxy.example:3128"', user)
    monkeypatch.setenv("KUBECONFIG", str(path))
    found = connection.connect()
    assert (found.server, found.authorization(), found.proxy) == (SERVER, header, "http://proxy.example:3128")
    assert found.ssl_context is not None and found.ssl_context.check_hostname


def test_kubectl_proxy_needs_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", 'server: "http://127.0.0.1:8001"', "")))
    found = connection.connect()
    assert (found.server, found.authorization(), found.ssl_context) == ("http://127.0.0.1:8001", "", None)


def test_plugin_for_credentials_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf runs none, so the watch streams would have no credentials."""
    path = kubeconfig(tmp_path / "config", f'server: "{SERVER}"', "exec: {command: aws}")
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(ConfigurationError, match="plugins are not run"):
        connection.connect()
