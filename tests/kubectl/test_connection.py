"""Which cluster the plugin talks to, and what it prints when there is none: each error names the fix."""

from __future__ import annotations

import base64
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensafe_kubectl.connection import Options, connect
from tensafe_kubectl.main import main
from tensafe_operator.runtime.proxies import proxy_of_environment
from tests.support.plugin_team import NAME, Team, running
from tests.support.programs.controlplane import ControlPlane

SECRET = "sesame"
CONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "here",
    "contexts": [
        {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "clinic"}},
        {"name": "there", "context": {"cluster": "here", "user": "me"}},
        {"name": "broken", "context": {"cluster": "none", "user": "me"}},
    ],
    "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "me", "user": {"token": SECRET}}],
}


@pytest.fixture(autouse=True)
def no_other_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tensafe_kubectl.connection.DEFAULT_KUBECONFIG", str(tmp_path / "none"))


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def error_of(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """The error of a call that must end with this code."""
    assert main(list(arguments)) == code
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err and SECRET not in err
    return err


def test_missing_kubeconfig(capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(capsys, 2, "status")
    assert re.match("no kubeconfig: /.*/none does not exist: set KUBECONFIG, pass --kubeconfig FILE", error)
    assert "/nowhere does not exist" in error_of(capsys, 2, "status", "--kubeconfig", "/nowhere")


def test_file_that_is_no_kubeconfig(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for text in (f"users: [{SECRET}", SECRET, "", "a: 1"):
        (tmp_path / "config").write_text(text)
        assert str(tmp_path / "config") in error_of(capsys, 2, "status", "--kubeconfig", str(tmp_path / "config"))


def test_wrong_context_gets_the_names_of_the_others(capsys: pytest.CaptureFixture[str], kubeconfig: Path) -> None:
    error = error_of(capsys, 2, "status", "--kubeconfig", str(kubeconfig), "--context", "nowhere")
    assert "no context nowhere: pass --context with one of broken, here, there" in error
    kubeconfig.write_text(yaml.safe_dump({**CONFIG, "current-context": ""}))
    error = error_of(capsys, 2, "status", "--kubeconfig", str(kubeconfig))
    assert "no usable current context: pass --context with one of broken, here, there" in error
    error = error_of(capsys, 2, "status", "--kubeconfig", str(kubeconfig), "--context", "broken")
    assert "the context broken" in error and "Expected object with name none" in error


@pytest.mark.parametrize(
    ("acting", "field", "why"),
    [
        ({"as-groups": ["nurses"]}, "as-groups", "it needs the field as"),
        ({"as": "", "as-groups": ["nurses"]}, "as-groups", "it needs the field as"),
        ({"as": "jane", "as-groups": "nurses"}, "as-groups", "it is not a list of strings"),
        ({"as": "jane", "as-groups": ["nurses", 1]}, "as-groups", "it is not a list of strings"),
        ({"as": 0}, "as", "it is not a string"),
        ({"as": 7}, "as", "it is not a string"),
        ({"as-uid": "1"}, "as-uid", "this plugin does not support it"),
        ({"as": "jane", "as-uid": "1"}, "as-uid", "this plugin does not support it"),
        ({"as": "jane", "as-user-extra": {"team": ["a"]}}, "as-user-extra", "this plugin does not support it"),
        ({"as": "jane", "as-group": ["nurses"]}, "as-group", "this plugin does not support it"),
    ],
)
def test_impersonation_that_would_be_ignored_is_refused(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path, acting: dict[str, object], field: str, why: str
) -> None:
    kubeconfig.write_text(yaml.safe_dump({**CONFIG, "users": [{"name": "me", "user": {"token": SECRET, **acting}}]}))
    for verb in ("status", "ledger"):
        error = error_of(capsys, 2, verb, "--kubeconfig", str(kubeconfig))
        assert error.startswith(f"{kubeconfig}: the user me has the field {field}: {why}")


def test_api_server_that_does_not_answer(
    capsys: pytest.CaptureFixture[str], kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    for verb in ("status", "ledger"):
        error = error_of(capsys, 1, verb)
        assert (
            error.startswith("the API server https://127.0.0.1:1 does not answer (") and "Connection refused" in error
        )
    with socket.create_server(("127.0.0.1", 0)) as server:  # it accepts connections, and speaks no TLS
        address = f"https://127.0.0.1:{server.getsockname()[1]}"
        kubeconfig.write_text(yaml.safe_dump(CONFIG).replace("https://127.0.0.1:1", address))
        monkeypatch.setattr("tensafe_kubectl.api.CONNECT_SECONDS", 0.2)
        monkeypatch.setattr("tensafe_kubectl.api.READ_SECONDS", 0.2)
        assert "does not answer" in error_of(capsys, 1, "status")


def test_options_may_stand_before_or_after_the_verb(capsys: pytest.CaptureFixture[str], kubeconfig: Path) -> None:
    options = ("--kubeconfig", str(kubeconfig), "--context", "nowhere")
    assert error_of(capsys, 2, *options, "status") == error_of(capsys, 2, "status", *options)


@pytest.mark.parametrize("arguments", [(), ("status", "../../secrets/x"), ("logs",), ("status", "-n", "a/b"), ("fly",)])
def test_wrong_arguments_end_with_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    try:
        code = main(list(arguments))
    except SystemExit as end:
        code = end.code
    assert code == 2 and "kubectl tensafe" in capsys.readouterr().err


@pytest.mark.cluster
def test_namespace_is_that_of_the_context(
    capfd: pytest.CaptureFixture[str], team: Team, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team.create_job(status=running(5))
    document = yaml.safe_load(team.plane.admin.read_text())
    document["contexts"][0]["context"]["namespace"] = team.namespace
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", f"/nowhere:{path}")
    assert main(["status", NAME]) == 0
    assert f"namespace {team.namespace}" in capfd.readouterr().out


@pytest.mark.cluster
def test_user_that_a_kubeconfig_impersonates_has_only_that_users_rights(
    capfd: pytest.CaptureFixture[str], team: Team, tmp_path: Path
) -> None:
    document = yaml.safe_load(team.plane.admin.read_text())
    document["users"][0]["user"] |= {"as": "jane", "as-groups": ["nurses", "authors"]}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(document))
    assert main(["status", "-n", team.namespace, "--kubeconfig", str(path)]) == 1
    assert "you (jane) may not list tensafetrainingjobs.tensafe.io" in capfd.readouterr().err
    binding = ("create", "rolebinding", "authors", "--clusterrole=cluster-admin", "--group=authors")
    team.kubectl(*binding)
    assert main(["status", "-n", team.namespace, "--kubeconfig", str(path)]) == 0


@pytest.mark.cluster
def test_credentials_of_an_exec_plugin_are_used(capfd: pytest.CaptureFixture[str], team: Team, tmp_path: Path) -> None:
    """Cloud providers and OIDC log in this way."""
    reader = team.user("reader", {"apiGroups": ["tensafe.io"], "resources": ["*"], "verbs": ["*"]})
    document = yaml.safe_load(reader.read_text())
    token = document["users"][0]["user"]["token"]
    version = "client.authentication.k8s.io/v1"
    credential = f'{{"apiVersion": "{version}", "kind": "ExecCredential", "status": {{"token": "{token}"}}}}'
    login = {"apiVersion": version, "command": "echo", "args": [credential], "interactiveMode": "Never"}
    document["users"][0]["user"] = {"exec": login}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(document))
    assert main(["status", "-n", team.namespace, "--kubeconfig", str(path)]) == 0
    document["users"][0]["user"] = {"token": "expired"}
    path.write_text(yaml.safe_dump(document))
    assert main(["status", "-n", team.namespace, "--kubeconfig", str(path)]) == 1
    assert "does not accept your credentials" in capfd.readouterr().err


@pytest.mark.cluster
def test_cluster_without_the_crds_and_then_without_a_server(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path / "plane")
    calls = (["status"], ["status", NAME], ["ledger", NAME], ["explain", NAME], ["suspend", NAME])
    try:
        plane.start()
        for call in calls:
            assert main([*call, "--kubeconfig", str(plane.admin)]) == 1
            assert "TenSafe's CRDs are not installed in this cluster" in capfd.readouterr().err
    finally:
        plane.stop()
    assert main(["status", "--kubeconfig", str(plane.admin)]) == 1
    assert f"the API server {plane.url} does not answer" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("server", "of_kubeconfig", "proxy"),
    [
        ("https://api.example:6443", None, "http://proxy.example:3128"),
        ("https://127.0.0.1:6443", None, None),
        ("https://[::1]:6443", None, None),
        ("https://localhost:6443", None, None),
        ("https://127.0.0.1:6443", "http://own.example:3128", "http://own.example:3128"),
    ],
)
def test_server_on_this_machine_is_reached_without_the_proxy_of_the_environment(
    server: str, of_kubeconfig: str | None, proxy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with kubectl: kind and minikube listen on this machine."""
    for name in ("no_proxy", "NO_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    cluster = {"server": server, **({"proxy-url": of_kubeconfig} if of_kubeconfig else {})}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({**CONFIG, "clusters": [{"name": "here", "cluster": cluster}]}))
    assert connect(Options(str(path)))._configuration.proxy == proxy
    assert proxy_of_environment(server) == (None if proxy != "http://proxy.example:3128" else proxy)


@pytest.mark.parametrize(
    ("no_proxy", "server", "direct"),
    [
        ("10.96.0.0/12,.svc", "https://10.96.0.1:443", True),
        (".cluster.local, 10.96.0.1", "https://10.96.0.1", True),
        ("fd00::/8,10.96.0.1/32", "https://10.96.0.1", True),
        ("10.96.0.0/12", "https://192.0.2.1", False),
        ("api.example", "https://api.example:6443", True),
        ("example", "https://api.example:6443", True),
        ("api.example:6443", "https://api.example:6443", True),
        ("api.example:443", "https://api.example:6443", False),
        ("*.example", "https://api.example:6443", True),
        ("ample", "https://api.example:6443", False),
        ("*", "https://api.example:6443", True),
        ("", "https://api.example:6443", False),
    ],
)
def test_no_proxy_is_read_as_by_kubectl(
    no_proxy: str, server: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster, the API server is an address of the Services' network."""
    for name in ("https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_of_environment(server) == (None if direct else "http://proxy.example:3128")


def test_all_proxy_is_ignored_as_by_kubectl(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    assert connect(Options(str(kubeconfig)))._configuration.proxy is None


def test_socks_proxy_names_the_package_that_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socks", None)
    cluster = {"server": "https://api.example", "proxy-url": "socks5://127.0.0.1:1080"}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({**CONFIG, "clusters": [{"name": "here", "cluster": cluster}]}))
    error = error_of(capsys, 2, "status", "--kubeconfig", str(path))
    assert error == "the cluster's proxy is a SOCKS proxy: pipx inject tensafe PySocks\n"


@pytest.mark.parametrize("proxy", ["ftp://user:s3cret@proxy.example", "http://[broken", "http://proxy.example:port"])
def test_proxy_that_is_not_usable_is_refused_in_one_sentence(
    proxy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = {"server": "https://api.example", "proxy-url": proxy}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({**CONFIG, "clusters": [{"name": "here", "cluster": cluster}]}))
    error = error_of(capsys, 2, "status", "--kubeconfig", str(path))
    assert error.endswith("is not usable: write it as http://HOST:PORT\n") and "s3cret" not in error


def test_socks_proxy_resolves_the_name_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr("kubernetes.client.ApiClient", lambda settings: made.append(settings.proxy))
    cluster = {"server": "https://api.example", "proxy-url": "socks5://me@127.0.0.1:1080"}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({**CONFIG, "clusters": [{"name": "here", "cluster": cluster}]}))
    with pytest.raises(AttributeError):
        connect(Options(str(path)))
    assert made == ["socks5h://me@127.0.0.1:1080"]


def test_user_of_a_proxy_is_sent_to_it(tmp_path: Path) -> None:
    cluster = {"server": "https://api.example", "proxy-url": "http://me:p%40ss@proxy.example:3128"}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({**CONFIG, "clusters": [{"name": "here", "cluster": cluster}]}))
    headers = connect(Options(str(path)))._configuration.proxy_headers
    assert headers == {"proxy-authorization": "Basic " + base64.b64encode(b"me:p@ss").decode()}


def test_proxy_is_used_in_a_pod_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")

    def load(client_configuration: Any) -> None:
        client_configuration.host = "https://10.96.0.1:443"

    monkeypatch.setattr("kubernetes.config.load_incluster_config", load)
    assert connect(Options())._configuration.proxy == "http://proxy.example:3128"
