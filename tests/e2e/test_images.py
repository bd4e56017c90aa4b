"""What is in the images: what runs, an ordinary user to run it, and nothing that builds."""

from __future__ import annotations

import pytest

from e2e.platform import images
from e2e.platform.cluster import SYSTEM, Cluster
from e2e.platform.controlplane import kubectl
from e2e.platform.fixtures.team_namespace import TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600, func_only=True)]

BUILDERS = ("cc", "gcc", "ld", "make", "git", "go", "pip", "pip3", "uv")
LEFTOVERS = "/home/tensafe/.cache /tmp/tensafe"
LOOK = f"id -u; for each in {' '.join(BUILDERS)}; do command -v $each; done; ls {LEFTOVERS} 2>&1; true"
HAS = "import importlib.util; print(*(bool(importlib.util.find_spec(name)) for name in ('kopf', 'torch', 'ray')))"


def test_both_run_as_an_ordinary_user_without_build_tools_and_the_operators_without_torch(team: TeamNamespace) -> None:
    team.start_idle_pod("trainer")

    def of_trainer(*command: str) -> str:
        return team.exec_in_pod("trainer", *command).stdout

    def of_operator(*command: str) -> str:
        return kubectl(team.kubeconfig, "-n", SYSTEM, "exec", "deployment/tensafe-operator", "--", *command).stdout

    for inside in (of_trainer, of_operator):
        first, *rest = inside("sh", "-c", LOOK).splitlines()
        assert first == "1000"
        assert all("No such file" in line for line in rest), rest
    assert of_trainer("python", "-c", HAS).split() == ["False", "True", "True"]
    assert of_operator("python", "-c", HAS).split() == ["True", "False", "False"]


def test_the_same_sources_make_the_same_image(disposable_cluster: Cluster) -> None:
    operator, _ = images.names_of_ours()
    again = operator.replace(images.PREFIX, f"{images.PREFIX}again/")
    images.build_ours(f"{images.PREFIX}again/", "operator", FRESH="1")
    made = images.image_id(again)
    images.remove_name(again)
    assert made == images.image_id(operator)
