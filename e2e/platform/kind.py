"""A local cluster of kind, for machines with Docker's engine and the `kind` command.

It does what CONTRIBUTING.md describes for your own cluster: create the cluster, build the images and load them,
install KubeRay and the chart. Scenarios that act on a whole cluster, such as killing the API server, are skipped.

Unit tests compare the commands of this module with the expected ones. It has not yet been run against Docker's engine
and kind.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from e2e.platform import images
from e2e.platform.node import ClusterError
from tests.support.programs import versions
from tests.support.programs.controlplane import built
from tests.support.programs.gotools import home, program
from tests.support.programs.helm import CHART, helm_command, set_arguments

NAME = "tensafe-e2e"
KUBERAY_CHARTS = "https://ray-project.github.io/kuberay-helm"
POD_NETWORK = "10.244.0.0/16"
"""kind's default. The trainer's pods must reach the tests' S3 server, which is a pod."""
TIMEOUT = "300s"
S3_DOCKERFILE = """\
FROM debian:{debian}-slim
COPY versitygw /versitygw
USER 65532:65532
ENTRYPOINT ["/versitygw"]
"""


def is_available() -> bool:
    """Whether `kind` and Docker's engine are available. A Docker client alone is not enough."""
    if not (shutil.which("kind") and shutil.which("docker")):
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


class KindCluster:
    """The cluster, named `tensafe-e2e`. It has a separate kubeconfig file. The user's kubeconfig does not change.

    Args:
        log: receives each stage's name.
    """

    def __init__(self, log: Callable[[str], None] = print) -> None:
        self._log = log
        self.kubeconfig = home() / "kind.kubeconfig"

    def up(self) -> None:
        """Create the cluster, or update its images, KubeRay and the chart.

        Raises:
            ClusterError: a command failed.
            GoUnavailable: the S3 server, kubectl or Helm cannot be built.
        """
        home().mkdir(parents=True, exist_ok=True)
        if NAME not in _run(["kind", "get", "clusters"]).split():
            self._log("creating a cluster of kind")
            _run(create_command(self.kubeconfig))
        self._log("building the images")
        _run(build_command())
        server = program("s3", "github.com/versity/versitygw/cmd/versitygw")
        _run(build_s3_command(server.parent), text=S3_DOCKERFILE.format(debian=versions.DEBIAN))
        for command in load_commands():
            self._log(f"loading {command[3]}")
            _run(command)
        self._log("installing KubeRay and TenSafe")
        operator = images.names_of_ours()[0]
        image_id = _run(["docker", "image", "inspect", "--format", "{{.Id}}", operator]).strip()
        for command in install_commands(self.kubeconfig, image_id):
            _run(command)

    def down(self) -> None:
        """Delete the cluster. Images stay in Docker."""
        _run(["kind", "delete", "cluster", "--name", NAME, "--kubeconfig", str(self.kubeconfig)])

    def status(self) -> str:
        """The cluster's nodes, pods and jobs as kubectl lists them."""
        if NAME not in _run(["kind", "get", "clusters"]).split():
            return "down"
        listed = ("get", "nodes,pods,tsj", "--all-namespaces", "--output=wide")
        return _run([str(built("kubectl")), "--kubeconfig", str(self.kubeconfig), *listed])


def create_command(kubeconfig: Path) -> list[str]:
    """Create the cluster and wait until its node is ready."""
    return ["kind", "create", "cluster", "--name", NAME, "--kubeconfig", str(kubeconfig), "--wait", TIMEOUT]


def build_command() -> list[str]:
    """Build the images of operator and trainer with Docker, on the Dockerfile's base image."""
    environment = {"PREFIX": images.PREFIX, "BUILDER": "docker"}
    return ["env", *(f"{name}={value}" for name, value in environment.items()), str(images.ROOT / "scripts" / "images")]


def build_s3_command(folder: Path) -> list[str]:
    """Build the S3 server's image from the program in `folder`. The Dockerfile is standard input."""
    return ["docker", "build", "--tag", images.S3, "--file", "-", str(folder)]


def load_commands() -> Iterator[list[str]]:
    """Copy each image into the cluster's node."""
    for image in (*images.names_of_ours(), images.S3):
        yield ["kind", "load", "docker-image", image, "--name", NAME]


def install_commands(kubeconfig: Path, image_id: str) -> Iterator[list[str]]:
    """Install KubeRay and the chart, or upgrade them.

    Args:
        image_id: id of the operator's image. A new image of the same name changes it, so the Deployment is rolled out.
    """
    operator, trainer = (name.rpartition(":")[0] for name in images.names_of_ours())
    common = ("--create-namespace", "--wait", f"--timeout={TIMEOUT}")
    release = ("upgrade", "--install", "kuberay-operator", "kuberay-operator", "--repo", KUBERAY_CHARTS)
    version = ("--version", versions.KUBERAY.removeprefix("v"))
    yield helm_command(*release, *version, "--namespace=kuberay-system", *common, kubeconfig=kubeconfig)
    values = {
        "image.repository": operator,
        "trainer.image.repository": trainer,
        "podAnnotations": {"tensafe.io/image-id": image_id},
        "jobs.egressCIDRs": [POD_NETWORK],
    }
    chart = ("upgrade", "--install", "tensafe", str(CHART), "--namespace=tensafe-system")
    yield helm_command(*chart, *common, *set_arguments(values), kubeconfig=kubeconfig)


def _run(command: list[str], text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {(done.stdout + done.stderr).strip()[-4000:]}")
    return done.stdout
