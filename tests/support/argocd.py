"""Argo CD without pods: its servers as processes on loopback, with a control plane and a git repository in a folder.

    git ─► repo-server ─► application-controller ─► API server        (with an in-memory Redis between the two servers)

Argo CD is one binary; an environment variable selects the server. The scripts for TenSafe are Lua files in the chart.
`python -m tests.support.argocd` writes the ConfigMap that users apply from these files.

The controller opens its metrics port on all addresses, which no flag changes. So the system chooses the port.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.polling import TIMEOUT_SECONDS, wait_for_port, wait_until
from tests.support.programs.controlplane import ControlPlane, free_ports
from tests.support.programs.gotools import MODULES, module_source, program
from tests.support.programs.helm import helm

SCRIPTS = Path(__file__).resolve().parents[2] / "charts" / "tensafe" / "argocd"
CONFIG_MAP = SCRIPTS / "argocd-cm.yaml"
ACTIONS = ("suspend", "resume")
NAMESPACE = "argocd"
PROJECT = "clinic"
CLUSTER = "here"
_KIND = "tensafe.io_TenSafeTrainingJob"
_REFRESH = "argocd.argoproj.io/refresh"
_HEAD = """\
# Settings of Argo CD for TenSafeTrainingJobs: their health, and the actions suspend and resume.
# Add them to Argo CD's own ConfigMap. Its other keys stay unchanged:
#   kubectl apply --server-side -f argocd-cm.yaml
# Generated from the Lua files in this directory by `python -m tests.support.argocd`.
"""


def config_map() -> str:
    """Build the text of `argocd-cm.yaml` from the Lua files."""
    definitions = [{"name": action, "action.lua": _script(f"actions/{action}.lua")} for action in ACTIONS]
    actions = {"discovery.lua": _script("actions/discovery.lua"), "definitions": definitions}
    labels = {"app.kubernetes.io/name": "argocd-cm", "app.kubernetes.io/part-of": "argocd"}
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "argocd-cm", "namespace": NAMESPACE, "labels": labels},
        "data": {
            f"resource.customizations.health.{_KIND}": _script("health.lua"),
            f"resource.customizations.actions.{_KIND}": _text(actions),
        },
    }
    return _HEAD + _text(document)


def _script(name: str) -> str:
    return (SCRIPTS / name).read_text()


class _Blocks(yaml.SafeDumper):
    """Writes multi-line strings as literal blocks."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Blocks.add_representer(str, _string)


def _text(document: dict[str, Any]) -> str:
    return str(yaml.dump(document, Dumper=_Blocks, sort_keys=False, width=1000))


def argocd(folder: Path, *arguments: str) -> str:
    """Run the `argocd` command with its home in `folder`; return its output."""
    done = subprocess.run(
        [str(_binary()), *arguments], capture_output=True, text=True, check=False, env=_environment(folder, "argocd")
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class GitRepository:
    """A git repository in a folder, with one branch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = folder.as_uri()
        folder.mkdir(parents=True)
        self._git("init", "--quiet", "--initial-branch=main")

    def commit(self, files: Mapping[str, str | None]) -> str:
        """Write these files, or delete those with None, and commit; return the new revision."""
        for name, text in files.items():
            path = self.folder / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", ", ".join(files))
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=self.folder, check=True, capture_output=True, text=True
        )
        return done.stdout


class ArgoCD:
    """Argo CD's servers with TenSafe's scripts in their configuration, and Applications in the tests' project."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Install Argo CD's objects, apply TenSafe's ConfigMap, and start the servers."""
        crds = module_source("argocd", "github.com/argoproj/argo-cd/v3") / "manifests" / "crds"
        for kind in ("application", "appproject"):  # ApplicationSets are not used here, and their CRD is large
            self._plane.kubectl("apply", "--server-side", "-f", str(crds / f"{kind}-crd.yaml"))
        self._plane.wait_for_crds()
        self._plane.kubectl("create", "namespace", NAMESPACE)
        self._apply(*_installation(self._plane))
        self._plane.kubectl("apply", "--server-side", "-f", str(CONFIG_MAP))
        redis, repositories, metrics = (f"127.0.0.1:{port}" for port in free_ports(3))
        self._run("redis", [str(_redis()), redis])
        wait_for_port(redis)
        self._run(
            "repo-server",
            [
                str(_binary()),
                *("--redis", redis, "--disable-tls", "--address", "127.0.0.1", "--metrics-address", "127.0.0.1"),
                *("--port", repositories.rsplit(":")[-1], "--metrics-port", metrics.rsplit(":")[-1]),
            ],
        )
        wait_for_port(repositories)
        self._run(
            "application-controller",
            [
                str(_binary()),
                *("--kubeconfig", str(self._plane.admin), "--namespace", NAMESPACE, "--metrics-port", "0"),
                *("--redis", redis, "--repo-server", repositories, "--repo-server-plaintext", "--app-resync", "10"),
                "--persist-resource-health",
            ],
        )

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()

    def create(self, application: dict[str, Any], repository: GitRepository) -> None:
        """Create an Application for this repository, in the tests' project and cluster.

        A rejected sync is retried for a short time only.
        """
        document = copy.deepcopy(application)
        document["spec"]["project"] = PROJECT
        document["spec"]["source"]["repoURL"] = repository.url
        document["spec"]["destination"] = {"name": CLUSTER, "namespace": document["spec"]["destination"]["namespace"]}
        document["spec"]["syncPolicy"]["retry"] = {"limit": 5, "backoff": {"duration": "1s", "factor": 1}}
        self._apply(document)

    def delete(self, name: str) -> None:
        """Delete an Application with its objects, as `argocd app delete` does, and wait until they are deleted."""
        patch = json.dumps({"metadata": {"finalizers": ["resources-finalizer.argocd.argoproj.io"]}})
        where = ("-n", NAMESPACE, "patch", "application", name, "--type=merge")
        self._plane.kubectl(*where, "-p", patch)
        self._plane.kubectl("-n", NAMESPACE, "delete", "application", name, f"--timeout={TIMEOUT_SECONDS:.0f}s")

    def refresh(self, name: str) -> dict[str, Any]:
        """Let Argo CD compare git and the cluster now; return the Application's status after that."""
        where = ("-n", NAMESPACE, "annotate", "application", name, "--overwrite")
        self._plane.kubectl(*where, f"{_REFRESH}=normal")
        return wait_until(lambda: self._compared(name), failure_message=self.logs)

    def wait_for_status(self, name: str, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until a condition holds for the Application's status; return it. Each poll starts a comparison."""

        def found() -> dict[str, Any] | None:
            return status if condition(status := self.refresh(name)) else None

        return wait_until(found, failure_message=lambda: f"{json.dumps(self._get(name), indent=1)}\n{self.logs()}")

    def logs(self) -> str:
        """The last lines of each server's log."""
        return "\n".join(f"{path.stem}: {path.read_text()[-3000:]}" for path in sorted(self._folder.glob("*.log")))

    def _compared(self, name: str) -> dict[str, Any] | None:
        """The Application's status; None while a comparison is pending, which an annotation requests."""
        found = self._get(name)
        return None if _REFRESH in found["metadata"].get("annotations", {}) else dict(found["status"])

    def _get(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self._plane.kubectl("-n", NAMESPACE, "get", "application", name, "-o", "json").stdout))

    def _apply(self, *documents: dict[str, Any]) -> None:
        self._plane.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(documents))

    def _run(self, name: str, command: list[str]) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._folder, env=_environment(self._folder, f"argocd-{name}")
            )


def _environment(folder: Path, name: str) -> dict[str, str]:
    """Environment with which Argo CD writes only into the folder."""
    return {
        **os.environ,
        "ARGOCD_BINARY_NAME": name,
        "ARGOCD_GPG_ENABLED": "false",
        "ARGOCD_ASK_PASS_SOCK": str(folder / "ask"),
        "GOMAXPROCS": "2",
        "HOME": str(folder),
        "PATH": f"{_helm().parent}{os.pathsep}{os.environ['PATH']}",
        "TMPDIR": str(folder),
    }


@functools.cache
def _helm() -> Path:
    helm("version")  # builds Helm if the cache lacks it
    return program("helm", "helm.sh/helm/v3/cmd/helm")


def _binary() -> Path:
    return program("argocd", "github.com/argoproj/argo-cd/v3/cmd", name="argocd")


def _redis() -> Path:
    version = hashlib.sha256((MODULES / "argocd" / "redis" / "main.go").read_bytes()).hexdigest()[:8]
    return program("argocd", "./redis", name=f"redis-{version}")


def _installation(plane: ControlPlane) -> list[dict[str, Any]]:
    """Argo CD's settings, a project without restrictions, and the cluster as a destination."""
    kubeconfig = yaml.safe_load(plane.admin.read_text())
    cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
    tls = {
        "caData": cluster["certificate-authority-data"],
        "certData": user["client-certificate-data"],
        "keyData": user["client-key-data"],
    }
    config = json.dumps({"tlsClientConfig": tls})
    everything = {"group": "*", "kind": "*"}
    project = {
        "sourceRepos": ["*"],
        "destinations": [{"name": "*", "namespace": "*", "server": "*"}],
        "clusterResourceWhitelist": [everything],
    }
    part = {"app.kubernetes.io/part-of": "argocd"}
    return [
        {**_object("v1", "ConfigMap", "argocd-cm", part), "data": {"timeout.reconciliation": "10s"}},
        {**_object("v1", "Secret", "argocd-secret", part), "stringData": {"server.secretkey": "of a test"}},
        {
            **_object("v1", "Secret", "cluster", {"argocd.argoproj.io/secret-type": "cluster"}),
            "stringData": {"name": CLUSTER, "server": cluster["server"], "config": config},
        },
        {**_object("argoproj.io/v1alpha1", "AppProject", PROJECT), "spec": project},
    ]


def _object(version: str, kind: str, name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels or {}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


if __name__ == "__main__":
    CONFIG_MAP.write_text(config_map())
