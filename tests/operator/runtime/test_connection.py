"""What requests and streams need: an address, TLS, and credentials that are replaced while the operator runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import certifi
import pytest
from kubernetes.aio.config import incluster_config

from tensafe_operator.runtime import connection
from tensafe_operator.runtime.errors import ConfigurationError

SERVER = "https://10.96.0.1:443"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """This process runs in a pod, whose service account has files in the folder that is returned."""
    (tmp_path / "token").write_text("of-the-pod")
    (tmp_path / "ca.crt").write_text(certifi.contents())
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


def use_kubeconfig(monkeypatch: pytest.MonkeyPatch, path: Path, cluster: str, user: str) -> None:
    path.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        f"clusters: [{{name: c, cluster: {{{cluster}}}}}]\n"
        f"users: [{{name: u, user: {{{user}}}}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(path))


def header(found: Any) -> Any:
    """The Authorization header of a request that is sent now."""
    return asyncio.run(found.auth_settings()).get("BearerToken", {}).get("value")


@pytest.mark.parametrize("host", ["10.96.0.1", "fd00::1"])
def test_pod_needs_no_dns(pod: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """During a DNS outage, an operator that resolved the API server's name was healthy but received no events."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    found, streams = asyncio.run(connection.connect()), asyncio.run(connection.login())
    assert found.host == streams.server == f"https://{f'[{host}]' if ':' in host else host}:443"
    assert header(found).lower() == "bearer of-the-pod"
    assert (streams.token, streams.ca_path, streams.insecure) == ("of-the-pod", str(pod / "ca.crt"), False)


def test_kubeconfig_takes_precedence_over_the_service_account(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kubeconfig(monkeypatch, pod / "config", 'server: "https://api.example:6443"', "token: of-the-file")
    assert asyncio.run(connection.connect()).host == "https://api.example:6443"
    assert asyncio.run(connection.login()).token == "of-the-file"


@pytest.mark.parametrize(
    ("user", "sent"), [("token: abc", "Bearer abc"), ("username: me, password: pw", "Basic bWU6cHc=")]
)
def test_kubeconfig_gives_the_credentials(
    user: str, sent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = f'server: "{SERVER}/", proxy-url: "http://proxy.example:3128"'
    use_kubeconfig(monkeypatch, tmp_path / "config", cluster, user)
    found, streams = asyncio.run(connection.connect()), asyncio.run(connection.login())
    assert (found.host, header(found), found.proxy) == (SERVER, sent, "http://proxy.example:3128")
    assert streams.as_http_headers() == {"Authorization": sent}
    assert (streams.server, streams.proxy_url) == (SERVER, "http://proxy.example:3128")


def test_proxy_of_the_environment_is_used_unless_a_network_excludes_it(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the requests and by the streams. The HTTP library does not understand networks by itself."""
    for excluded, proxy in (("10.0.0.0/24", "http://proxy.example:3128"), ("10.96.0.0/12", None)):
        monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
        monkeypatch.setenv("NO_PROXY", excluded)
        found: Any = asyncio.run(connection.connect())
        assert found.proxy == asyncio.run(connection.login()).proxy_url == proxy
        assert found.client_session_kwargs == {"trust_env": False}


def test_kubectl_proxy_needs_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_kubeconfig(monkeypatch, tmp_path / "config", 'server: "http://127.0.0.1:8001"', "")
    found = asyncio.run(connection.connect())
    assert (found.host, header(found)) == ("http://127.0.0.1:8001", None)
    assert asyncio.run(connection.login()).as_http_headers() == {}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file whose content a plugin for credentials gives as the token."""
    token = tmp_path / "token"
    version = "client.authentication.k8s.io/v1"
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": {"token": "TOKEN"}})
    script = tmp_path / "plugin"
    script.write_text(f"#!/bin/sh -e\ntoken=$(cat {token})\necho '{answer}' | sed s/TOKEN/$token/\n")
    script.chmod(0o755)
    user = f"exec: {{apiVersion: {version}, command: {script}}}"
    use_kubeconfig(monkeypatch, tmp_path / "config", f'server: "{SERVER}"', user)
    return token


def test_plugin_gives_the_token_and_replaces_it(plugin: Path) -> None:
    """No request waits for the plugin: the first one after the time starts it, and later ones have its token."""

    async def sent(found: Any) -> str:
        return str((await found.auth_settings())["BearerToken"]["value"])

    async def run() -> None:
        plugin.write_text("first")
        found: Any = await connection.connect()
        assert await sent(found) == "Bearer first"
        plugin.write_text("second")
        assert (await connection.login()).token == "second", "kopf asks again if the API server refuses its token"
        assert await sent(found) == "Bearer first"
        found.refresh_api_key_hook._due = 0.0
        async with asyncio.timeout(20):
            while await sent(found) != "Bearer second":
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_plugin_that_fails_is_an_error(plugin: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"expected a token, .* or a plugin that gives one"):
        asyncio.run(connection.connect())
