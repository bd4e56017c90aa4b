"""How soon a job trains after it was applied, beside what KubeRay alone needs for a job that does nothing, and what
Ray Train needs until its workers have imported what trains.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from e2e.platform import images
from e2e.platform.fixtures.stopwatch import Stopwatch
from e2e.platform.fixtures.team_namespace import JOB, TeamNamespace
from tensafe_operator.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

ADDED_SECONDS = 45
"""A goal: what the first step may take beyond a RayJob that does nothing, in the same run."""
MORE_THAN_RAY_TRAIN = 4 / 3
"""Where the machine is so slow that Ray Train alone takes about as long as that: what is allowed beyond it."""
RAY_TRAIN = """
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

def loop():
    import torch, transformers, peft

one = {"CPU": 1}
how = ScalingConfig(num_workers=WORKERS, resources_per_worker=one, placement_strategy="STRICT_SPREAD")
TorchTrainer(loop, scaling_config=how).fit()
""".replace("WORKERS", str(JOB["spec"]["cluster"]["workers"]))


def test_the_first_step_comes_soon_after_what_kuberay_needs_anyway(
    team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    team.upload_data(data)
    team.copy_model_to_pvc()
    with stopwatch("a RayJob that does nothing, from apply to SUCCEEDED"):
        run(team, ray_job("nothing", "true"))
    alone = stopwatch.last
    removed(team, "nothing")
    with stopwatch("a RayJob of Ray Train's whose workers import what trains, from apply to SUCCEEDED"):
        run(team, ray_job("imports", f"python -c {shlex.quote(RAY_TRAIN)}"))
    peer = stopwatch.last
    removed(team, "imports")
    with stopwatch("apply → first step", goal=max(alone + ADDED_SECONDS, peer * MORE_THAN_RAY_TRAIN)):
        team.submit()
        team.wait_for_step(1)


def run(team: TeamNamespace, job: dict[str, Any]) -> None:
    team.apply(job)
    team.wait_until_none(lambda: not succeeded(team, job["metadata"]["name"]), 300)


def removed(team: TeamNamespace, name: str) -> None:
    team.kubectl("delete", "rayjob", name, "--timeout=300s")
    team.wait_until_none(lambda: team.kubectl("get", "pods", "-l", "ray.io/cluster", "-o", "name"), 120)


def succeeded(team: TeamNamespace, name: str) -> bool:
    found = team.get("rayjob", name)
    assert found is not None
    status = found.get("status") or {}
    assert status.get("jobDeploymentStatus") != "Failed", json.dumps(status, indent=1)
    return status.get("jobStatus") == "SUCCEEDED"


def ray_job(name: str, entrypoint: str) -> dict[str, Any]:
    """On one head and two workers of the sizes that our job has, as KubeRay's documentation writes it."""
    cluster = JOB["spec"]["cluster"]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": entrypoint,
            "submissionMode": "HTTPMode",
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "rayVersion": Settings(image=images.names_of_ours()[1]).ray_version,
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0"},
                    "template": template("ray-head", cluster["head"]),
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": cluster["workers"],
                        "minReplicas": cluster["workers"],
                        "maxReplicas": cluster["workers"],
                        "rayStartParams": {"num-cpus": "1"},
                        "template": template("ray-worker", cluster["worker"]),
                    }
                ],
            },
        },
    }


def template(name: str, size: dict[str, str]) -> dict[str, Any]:
    resources = {"requests": {"cpu": size["cpus"], "memory": size["memory"]}, "limits": {"memory": size["memory"]}}
    container = {
        "name": name,
        "image": images.names_of_ours()[1],
        "imagePullPolicy": "IfNotPresent",
        "resources": resources,
    }
    return {"spec": {"containers": [container]}}
