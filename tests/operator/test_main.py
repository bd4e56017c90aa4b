"""An operator that cannot start logs one sentence that names the variable and the fix, without a traceback."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from tensafe_operator.__main__ import main
from tensafe_operator.runtime.lease_durations import LeaseDurations
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
    "not YAML": "users: [sesame",
    "not a mapping": "sesame",
    "no context": KUBECONFIG.replace("current-context: here", ""),
    "no such user": KUBECONFIG.replace("user: me}", "user: you}"),
    "no server": KUBECONFIG.replace("server:", "sesame:"),
    "no credentials": KUBECONFIG.replace("token: sesame", ""),
    "not a certificate": KUBECONFIG.replace("server:", "certificate-authority-data: c2VzYW1l, server:"),
    "no such certificate": KUBECONFIG.replace("server:", "certificate-authority: /none/sesame.crt, server:"),
}


@pytest.fixture(autouse=True)
def outside_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", *(variable(each.name) for each in fields(Settings))):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TENSAFE_PORT", "0")


def logged_error(caplog: pytest.LogCaptureFixture) -> str:
    """The only message of an operator that ends immediately."""
    caplog.clear()
    assert main([]) == 1
    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(records) == 1 and records[0].exc_info is None, records
    return records[0].getMessage()


def test_missing_kubeconfig_outside_a_pod(caplog: pytest.LogCaptureFixture) -> None:
    error = logged_error(caplog)
    assert error.startswith("KUBECONFIG is not set, and this is not a pod")
    assert error.endswith("set KUBECONFIG to the path of a kubeconfig file.")


def test_missing_kubeconfig_file(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in (tmp_path / "none", tmp_path):
        monkeypatch.setenv("KUBECONFIG", str(path))
        assert logged_error(caplog).startswith(f"KUBECONFIG is {path}, which is not a file: set KUBECONFIG")


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_broken_kubeconfig_is_named_and_not_quoted(
    text: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    error = logged_error(caplog)
    assert error.startswith(f"KUBECONFIG is {path}, which cannot be used (")
    assert "sesame" not in error


def test_port_in_use(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("TENSAFE_PORT", str(port))
        error = logged_error(caplog)
    assert error.startswith(f"TENSAFE_PORT is {port}, which cannot be opened (")
    assert error.endswith("set it to a free port, or to 0 to serve neither health nor metrics.")


def test_folder_without_a_certificate(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("TENSAFE_METRICS_TLS", str(tmp_path))
    error = logged_error(caplog)
    assert error.startswith(f"TENSAFE_METRICS_TLS is {tmp_path}, which cannot be used (no certificate with its key in")
    assert error.endswith("set it to the folder of a mounted Secret of type kubernetes.io/tls.")


@pytest.mark.parametrize("wrong", ["tcp://10.0.0.1:80", "-1", "65536", "8e3"])
def test_value_that_is_not_a_number_in_range(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=r"TENSAFE_PORT is '.*': set it to a whole number from 0 to 65535"):
        Settings.from_environment({"TENSAFE_PORT": wrong})
    with pytest.raises(ConfigurationError, match="TENSAFE_STALL_SECONDS"):
        Settings.from_environment({"TENSAFE_STALL_SECONDS": "0"})


def test_help_lists_every_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    for name in ("KUBECONFIG", *(variable(each.name) for each in fields(Settings))):
        assert f"\n  {name} " in shown
    assert max(map(len, shown.splitlines())) <= 110


@pytest.mark.slow
def test_process_logs_one_line() -> None:
    done = subprocess.run([sys.executable, "-m", "tensafe_operator"], capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "KUBECONFIG" in done.stderr


def test_unknown_argument_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["more"])
    assert "unrecognized arguments: more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TENSAFE_EGRESS_CIDRS", "10.1.0.0/16, 10.0.0", "has '10.0.0', which is not a network"),
        ("TENSAFE_JOB_NETWORK", '{"metadata": ["AWS"]}', "is wrong in metadata.0 .*set it as the chart does"),
        ("TENSAFE_JOB_NETWORK", '{"apiServerCIDRs": ["10.0.0.1/8"]}', "is wrong in apiServerCIDRs.0 .*host bits"),
        ("TENSAFE_JOB_NETWORK", '{"egress": [{"port": 443}]}', "is wrong in egress.0 .*unknown field port"),
        ("TENSAFE_JOB_NETWORK", '{"egress": [{"ports": [{"prot": 1}]}]}', "is wrong in egress.0 .*unknown field prot"),
        ("TENSAFE_JOB_NETWORK", '{"egress": [{"to": [{"ip": 1}]}]}', "is wrong in egress.0 .*unknown field ip"),
        ("TENSAFE_JOB_NETWORK", '{"dns": {"to": [{"ip": 1}]}}', "is wrong in dns.to.0 .*unknown field ip"),
        ("TENSAFE_JOB_NETWORK", "{", "is wrong in the whole .*JSON"),
        ("TENSAFE_JOB_TLS", '{"mode": "On"}', "is wrong in mode .*set it as the chart does from `jobs.tls`"),
        ("TENSAFE_JOB_TLS", '{"mode": "CertManager"}', "issuerRef.name"),
        ("TENSAFE_FS_GROUP", "none", "set it to a whole number"),
        ("TENSAFE_READ_ONLY_ROOT", "yes", "set it to true or false"),
        ("TENSAFE_METRICS_PER_JOB", "no", "set it to true or false"),
        ("TENSAFE_METRICS_AUTH", "True", "set it to true or false"),
        ("TENSAFE_RAY_VERSION", "2.1", "set it to a value such as 2.60.0"),
        ("TENSAFE_PULL_SECRETS", "key, Big", "has 'Big', which is no name of a Secret"),
        ("TENSAFE_RETRY_SECONDS", "0", "set it to a whole number from 1 to 3600"),
        ("TENSAFE_IMAGE", "bad image", "set it to a value such as registry.example/tensafe-trainer:0.1"),
    ],
)
def test_value_that_would_fail_in_every_job_is_refused_at_start(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} .*{message}"):
        Settings.from_environment({name: value})


@pytest.mark.parametrize(
    ("lease", "renew", "retry", "message"),
    [
        (
            "10",
            "10",
            "2",
            "TENSAFE_RENEW_SECONDS is 10: set it below TENSAFE_LEASE_SECONDS, which is 10",
        ),
        ("10", "6", "2", "is 6: set it above three times TENSAFE_RETRY_SECONDS, which is 2"),
        ("7", "", "", "TENSAFE_RENEW_SECONDS is 7: set it below TENSAFE_LEASE_SECONDS, which is 7"),
    ],
)
def test_durations_of_the_lease_that_do_not_fit_together(lease: str, renew: str, retry: str, message: str) -> None:
    values = {"LEASE": lease, "RENEW": renew, "RETRY": retry}
    environment = {f"TENSAFE_{name}_SECONDS": value for name, value in values.items()}
    with pytest.raises(ConfigurationError, match=message):
        Settings.from_environment(environment)


def test_durations_of_the_lease_that_fit_together() -> None:
    values = {"LEASE": "60", "RENEW": "40", "RETRY": "10"}
    settings = Settings.from_environment({f"TENSAFE_{name}_SECONDS": value for name, value in values.items()})
    assert settings.lease_durations == LeaseDurations(60, 40, 10)
    assert Settings().lease_durations == LeaseDurations()
