"""Which variables and volumes keep a job from starting, because they would run other code than its image's."""

from __future__ import annotations

import _ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.platform.fixtures.fake_cluster import FakeCluster, FakeOperator, condition, running_job
from e2e.platform.fixtures.job_objects import EVERY_FIELD, FEW_FIELDS, admitted, pods
from tensafe_operator.children.foreign_code import (
    FOREIGN_CODE_VARIABLES,
    FOREIGN_SERVER_VARIABLES,
    INJECTION_VARIABLES,
)
from tensafe_operator.plan.foreign_code import find_foreign_code

REFUSED_PATHS = (
    "/bin",
    "/usr/local/lib/python3.11/site-packages/tensorguard",
    "/lib64",
    "/opt",
    "/opt/tensafe/bin",
    "/opt/pyca/cryptography/openssl",
    "/home",
    "/home/tensafe",
    "/home/tensafe/.local",
    "/home/tensafe/torch",
    "/home/tensafe/.cached",
    "/home/ray/anaconda3/lib/python3.11/site-packages",
    "/srv/dist-packages/a",
    "/etc/profile.d",
    "/etc/ssl",
    "/etc/pki",
    "/etc/python3.11",
    "/home/ray/anaconda3/lib/python3.11/encodings",
)
ALLOWED_PATHS = (
    "/mnt/data",
    "/data",
    "/binaries",
    "/opt/models",
    "/tmp",
    "/home/tensafe/.cache/huggingface",
    "/etc/ssl/certs",
    "/etc/ssl/a",
    "/etc/pki/tls/certs",
    "/mnt/python3",
)
ALLOWED_VARIABLES = ("LD_LIBRARY_PATH", "PATH", "HOME", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "ENV", "AWS_CA_BUNDLE")


def code_volume(path: str) -> dict[str, Any]:
    return {"name": "code", "mountPath": path, "configMap": "code"}


def found_in(**cluster: Any) -> str:
    return find_foreign_code(admitted({"spec.cluster": {"workers": 2, **cluster}}).spec.cluster)


@pytest.mark.parametrize("name", (*FOREIGN_CODE_VARIABLES, *INJECTION_VARIABLES))
def test_variable_that_only_serves_to_run_other_code_is_found(name: str) -> None:
    assert found_in(env=[{"name": "A", "value": "1"}, {"name": name, "value": "/mnt/x"}]).startswith(
        f"spec.cluster.env: {name}: would run other code"
    )


@pytest.mark.parametrize("name", FOREIGN_SERVER_VARIABLES)
def test_other_api_server_for_the_ledger_is_found(name: str) -> None:
    message = found_in(env=[{"name": name, "value": "10.0.0.1"}])
    assert message == f"spec.cluster.env: {name}: names the API server with the job's ledger: remove it"


@pytest.mark.parametrize("path", REFUSED_PATHS)
def test_volume_over_code_is_found(path: str) -> None:
    message = found_in(volumes=[{"name": "data", "mountPath": "/mnt/data", "pvc": "data"}, code_volume(path)])
    assert message.startswith(f"spec.cluster.volumes: {path}: would replace code")


def test_other_variables_and_volumes_are_allowed() -> None:
    volumes = [{**code_volume(path), "name": f"v{number}"} for number, path in enumerate(ALLOWED_PATHS)]
    assert found_in(env=[{"name": name, "value": "a"} for name in ALLOWED_VARIABLES], volumes=volumes) == ""


# Each ran a command, or read a file of the job's author, in a process without other foreign code.
WARNED = {"PYTHONWARNINGS": "all:0:antigravity.x:0:0"}
COMMAND = "/bin/sh -c 'echo ran' #%s"
KUBECONFIG = """
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [RAN]}}}]
current-context: c
"""


def output(program: str, **variables: str) -> str:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_command_in_browser_runs_when_python_starts_unless_it_is_empty() -> None:
    assert "BROWSER" in FOREIGN_CODE_VARIABLES
    assert "ran" in output("", **WARNED, BROWSER=COMMAND)
    assert "ran" not in output("", **WARNED, BROWSER="")


def test_trainer_uses_no_kubeconfig_if_the_variable_is_empty(tmp_path: Path) -> None:
    """With one, it runs the command in it, and takes the server in it for the one with the job's ledger."""
    assert "KUBECONFIG" in FOREIGN_CODE_VARIABLES
    config = tmp_path / "config"
    config.write_text(KUBECONFIG.replace("RAN", str(tmp_path / "ran")))
    program = "from tensorguard.ledger import backends; print(backends._api().api_client.configuration.host)"
    assert "http://127.0.0.1:9" in output(program, KUBECONFIG=str(config)) and (tmp_path / "ran").exists()
    assert "ConfigException" in output(program, KUBECONFIG="", HOME=str(tmp_path))  # this test runs in no pod


MULTIPLIED = """
import torch
torch.nn.Conv2d(3, 8, 3)(torch.ones(2, 3, 32, 32))
try:
    torch.ones(2) @ torch.ones(3)
except RuntimeError as error:
    print("sizes differ:", "expect" in str(error))
print(open("/proc/self/maps").read())
"""
"""Torch computes with oneDNN, and reports an error."""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch has these profilers on this architecture only")
@pytest.mark.parametrize("name", ["INTEL_LIBITTNOTIFY64", "INTEL_JIT_PROFILER64"])
def test_torch_loads_the_library_of_a_profiler(tmp_path: Path, name: str) -> None:
    assert name in FOREIGN_CODE_VARIABLES
    library = str(shutil.copy(_ctypes.__file__, tmp_path / "chosen.so"))
    assert library in output(MULTIPLIED, **{name: library})


EMPTY = dict.fromkeys((each for each in FOREIGN_CODE_VARIABLES if not each.startswith("PYTHON")), "")


def test_torch_computes_with_empty_variables() -> None:
    assert "sizes differ: True" in output(MULTIPLIED, **EMPTY)


def test_empty_variables_break_no_tls() -> None:
    program = "import ssl, hashlib; hashlib.sha256(); print(len(ssl.create_default_context().get_ciphers()))"
    assert int(output(program, **EMPTY)) > 5


PYTHONPATH = {"name": "PYTHONPATH", "value": "/mnt/x"}


@pytest.mark.parametrize("changes", [{"env": [PYTHONPATH]}, {"volumes": [code_volume("/bin")]}], ids=["env", "volume"])
def test_job_is_refused_before_its_ledger_is_opened(changes: dict[str, Any]) -> None:
    cluster = FakeCluster.with_job(spec__cluster={"workers": 2, **changes})
    FakeOperator(cluster).settle()
    assert (condition(cluster, "Accepted")["status"], condition(cluster, "Stalled")["reason"]) == (
        "False",
        "InvalidManifest",
    )
    assert cluster.ledger is None and not cluster.created


def test_attempt_runs_to_its_end_and_the_next_one_waits_for_the_author() -> None:
    """An earlier release accepted such a job, and a suspended job can be edited."""
    cluster, operator = running_job()
    own = dict(cluster.job["spec"]["cluster"])
    cluster.job["spec"]["cluster"] = {**own, "env": [PYTHONPATH]}
    cluster.take_snapshot()
    operator.settle()
    assert cluster.status["phase"] == "Running"
    cluster.end_ray_job("FAILED")
    cluster.remove_terminating_pods()
    operator.settle()
    cluster.now += 3600
    operator.settle()
    assert cluster.created == ["claims-triage-a1"]
    assert condition(cluster, "Stalled")["message"].startswith("spec.cluster.env: PYTHONPATH")
    cluster.job["spec"]["cluster"] = own
    cluster.take_snapshot()
    operator.settle()
    assert cluster.created == ["claims-triage-a1", "claims-triage-a2"]


def test_profile_of_an_administrator_may_set_them() -> None:
    cluster = FakeCluster.with_job(spec__cluster__profileRef="gpu-a", spec__storage={"secretName": "s3-keys"})
    spec = {"env": [{"name": "LD_PRELOAD", "value": "/opt/malloc.so"}], "volumes": [code_volume("/opt/tensafe/more")]}
    cluster.profile = {"metadata": {"name": "gpu-a"}, "spec": spec}
    FakeOperator(cluster).settle()
    (group,) = cluster.ray_jobs["claims-triage-a1"]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    preload = [each["value"] for each in container["env"] if each["name"] == "LD_PRELOAD"]
    assert preload == ["/opt/malloc.so"]


def test_secret_in_the_environment_sets_none_of_these_variables() -> None:
    """A container's own variables take precedence over those of its `envFrom`. Without one, those of the image stay."""
    for changes, sets in (
        (EVERY_FIELD, True),
        ({"spec.storage": {"secretName": "s3-keys"}}, True),
        (FEW_FIELDS, False),
    ):
        head, worker = pods(admitted(changes))
        values = {each["name"]: each.get("value") for each in worker["spec"]["containers"][0]["env"]}
        fixed = dict.fromkeys(FOREIGN_CODE_VARIABLES, "") | {"PYTHONNOUSERSITE": "1"} if sets else {}
        assert values.items() >= fixed.items() and (sets or "PYTHONPATH" not in values)
        for pod in (head, worker):
            assert {"name": "PYTHONNOUSERSITE", "value": "1"} in pod["spec"]["containers"][0]["env"]
