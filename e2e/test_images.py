"""The images' contents: the programs that run, an unprivileged user, and no build tools."""

from __future__ import annotations

import pytest

from e2e.platform import images
from e2e.platform.cluster import SYSTEM, Cluster
from tests.support.programs.controlplane import kubectl
from tests.support.programs.helm import helm
from tests.support.team_namespace import TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600, func_only=True)]

BUILDERS = ("cc", "gcc", "ld", "make", "git", "go", "pip", "pip3", "uv")
LEFTOVERS = "/home/tensafe/.cache /tmp/tensafe"
PROBE = f"id -u; for each in {' '.join(BUILDERS)}; do command -v $each; done; ls {LEFTOVERS} 2>&1; true"
MAX_OPERATOR_BYTES = 500_000_000
FOUND = "import importlib.util; print(*(bool(importlib.util.find_spec(name)) for name in ('kopf', 'torch', 'ray')))"


def test_images_have_an_unprivileged_user_and_no_build_tools_and_the_operators_has_no_torch(
    team: TeamNamespace,
) -> None:
    team.start_idle_pod("trainer")

    def in_trainer(*command: str) -> str:
        return team.exec_in_pod("trainer", *command).stdout

    def in_operator(*command: str) -> str:
        return kubectl(team.kubeconfig, "-n", SYSTEM, "exec", "deployment/tensafe-operator", "--", *command).stdout

    for run in (in_trainer, in_operator):
        first, *rest = run("sh", "-c", PROBE).splitlines()
        assert first == "1000"
        assert all("No such file" in line for line in rest), rest
    assert in_trainer("python", "-c", FOUND).split() == ["False", "True", "True"]
    assert in_operator("python", "-c", FOUND).split() == ["True", "False", "False"]


def test_helm_test_succeeds_as_a_pod(disposable_cluster: Cluster) -> None:
    """As docs/install.md does."""
    done = helm("test", "tensafe", "--namespace", SYSTEM, kubeconfig=disposable_cluster.kubeconfig, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    log = kubectl(disposable_cluster.kubeconfig, "-n", SYSTEM, "logs", "tensafe-operator-test").stdout
    assert "the API server accepts the job quickstart (dry run)" in log and "FAILED" not in log


def test_operators_image_is_small(disposable_cluster: Cluster) -> None:
    operator, _ = images.names_of_ours()
    assert images.image_bytes(operator) <= MAX_OPERATOR_BYTES


def test_same_sources_build_the_same_image(disposable_cluster: Cluster) -> None:
    operator, _ = images.names_of_ours()
    rebuilt = operator.replace(images.PREFIX, f"{images.PREFIX}again/")
    images.build_ours(f"{images.PREFIX}again/", "operator", FRESH="1")
    rebuilt_id = images.image_id(rebuilt)
    images.remove_name(rebuilt)
    assert rebuilt_id == images.image_id(operator)
