"""Time from apply to the first step, compared with KubeRay and Ray Train alone.

The comparison is with a RayJob that does nothing, and with a RayJob of Ray Train whose workers only import torch,
transformers and peft.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from e2e.platform import images
from tensafe_operator.settings import Settings
from tests.support.stopwatch import Stopwatch
from tests.support.team_namespace import JOB, TeamNamespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

ADDED_SECONDS = 45
"""Goal for the first step: seconds more than a RayJob that does nothing, in the same run."""
RAY_TRAIN_FACTOR = 4 / 3
"""Goal on a machine where Ray Train alone takes about that long: a multiple of its time."""
RAY_TRAIN = """
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

def loop():
    import torch, transformers, peft

cpu = {"CPU": 1}
scaling = ScalingConfig(num_workers=WORKERS, resources_per_worker=cpu, placement_strategy="STRICT_SPREAD")
TorchTrainer(loop, scaling_config=scaling).fit()
""".replace("WORKERS", str(JOB["spec"]["cluster"]["workers"]))


def test_first_step_follows_soon_after_the_time_that_kuberay_needs(
    team: TeamNamespace, data: Path, stopwatch: Stopwatch
) -> None:
    team.upload_data(data)
    team.copy_model_to_pvc()
    with stopwatch("a RayJob that does nothing, from apply to SUCCEEDED"):
        run_ray_job(team, ray_job("nothing", "true"))
    kuberay_alone = stopwatch.last
    delete_ray_job(team, "nothing")
    with stopwatch("a RayJob of Ray Train whose workers import the libraries, from apply to SUCCEEDED"):
        run_ray_job(team, ray_job("imports", f"python -c {shlex.quote(RAY_TRAIN)}"))
    ray_train = stopwatch.last
    delete_ray_job(team, "imports")
    with stopwatch("apply → first step", goal=max(kuberay_alone + ADDED_SECONDS, ray_train * RAY_TRAIN_FACTOR)):
        team.submit()
        team.wait_for_step(1)


def run_ray_job(team: TeamNamespace, job: dict[str, Any]) -> None:
    team.apply(job)
    team.wait_until_none(lambda: not succeeded(team, job["metadata"]["name"]), 300)


def delete_ray_job(team: TeamNamespace, name: str) -> None:
    team.kubectl("delete", "rayjob", name, "--timeout=300s")
    team.wait_until_none(lambda: team.kubectl("get", "pods", "-l", "ray.io/cluster", "-o", "name"), 120)


def succeeded(team: TeamNamespace, name: str) -> bool:
    found = team.get("rayjob", name)
    assert found is not None
    status = found.get("status") or {}
    assert status.get("jobDeploymentStatus") != "Failed", json.dumps(status, indent=1)
    return status.get("jobStatus") == "SUCCEEDED"


def ray_job(name: str, entrypoint: str) -> dict[str, Any]:
    """A RayJob as in KubeRay's documentation, with head and workers of the same sizes as the job's."""
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
