"""What the operator says where it cannot begin: one sentence that names the variable and the mend, and no traceback."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tensafe_operator.__main__ import main
from tensafe_operator.settings import ConfigurationError, Settings, variable

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: me, user: {token: sesame}}]
"""
BROKEN = {
    "no YAML": "users: [sesame",
    "no mapping": "sesame",
    "no context": KUBECONFIG.replace("current-context: here", ""),
    "no such user": KUBECONFIG.replace("user: me}", "user: you}"),
    "no server": KUBECONFIG.replace("server:", "sesame:"),
    "no such certificate": KUBECONFIG.replace("server:", "certificate-authority: /none/sesame.crt, server:"),
}


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", *(variable(each.name) for each in fields(Settings))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TENSAFE_PORT", "0")


def refusal(caplog: pytest.LogCaptureFixture) -> str:
    """The one thing that is said, by an operator that ends at once."""
    caplog.clear()
    assert main([]) == 1
    said = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1 and said[0].exc_info is None, said
    return said[0].getMessage()


def test_without_kubeconfig_and_outside_a_pod(caplog: pytest.LogCaptureFixture) -> None:
    said = refusal(caplog)
    assert said.startswith("KUBECONFIG is not set, and this is not a pod")
    assert said.endswith("set KUBECONFIG to the path of a kubeconfig file.")


def test_a_kubeconfig_that_is_not_there(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in (tmp_path / "none", tmp_path):
        monkeypatch.setenv("KUBECONFIG", str(path))
        assert refusal(caplog).startswith(f"KUBECONFIG is {path}, which is not a file: set KUBECONFIG")


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_kubeconfig_that_is_broken_is_named_and_not_quoted(
    text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    said = refusal(caplog)
    assert said.startswith(f"KUBECONFIG is {path}, which cannot be used (")
    assert "sesame" not in said


def test_a_port_that_is_taken(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("TENSAFE_PORT", str(port))
        said = refusal(caplog)
    assert said.startswith(f"TENSAFE_PORT is {port}, which cannot be opened (")
    assert said.endswith("set it to a free port, or to 0 to serve neither health nor metrics.")


@pytest.mark.parametrize("wrong", ["tcp://10.0.0.1:80", "-1", "65536", "8e3"])
def test_a_number_that_is_none(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=r"TENSAFE_PORT is '.*': set it to a whole number from 0 to 65535"):
        Settings.from_environment({"TENSAFE_PORT": wrong})
    with pytest.raises(ConfigurationError, match="TENSAFE_STALL_SECONDS"):
        Settings.from_environment({"TENSAFE_STALL_SECONDS": "0"})


def test_help_teaches_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    for name in ("KUBECONFIG", *(variable(each.name) for each in fields(Settings))):
        assert f"\n  {name} " in shown
    assert max(map(len, shown.splitlines())) <= 110


def test_as_a_process_it_says_one_line() -> None:
    done = subprocess.run([sys.executable, "-m", "tensafe_operator"], capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "KUBECONFIG" in done.stderr
    assert subprocess.run([sys.executable, "-m", "tensafe_operator", "more"], capture_output=True).returncode == 2


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TENSAFE_EGRESS_CIDRS", "10.1.0.0/16, 10.0.0", "has '10.0.0', which is not a network"),
        ("TENSAFE_RAY_VERSION", "2.1", "set it to a value such as 2.60.0"),
        ("TENSAFE_IMAGE", "bad image", "set it to a value such as registry.example/tensafe-trainer:0.1"),
    ],
)
def test_what_would_only_fail_in_every_job_is_refused_at_once(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} .*{says}"):
        Settings.from_environment({name: value})
