"""How soon a job trains after it was applied, beside what KubeRay alone needs for a job that does nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from clinic import JOB, Clinic
from stopwatch import Stopwatch

from e2e.cluster import images
from tensafe_operator.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200, func_only=True)]

ADDED_SECONDS = 45
"""A goal: what the first step may take beyond a RayJob that does nothing, in the same run."""


def test_the_first_step_comes_soon_after_what_kuberay_needs_anyway(
    clinic: Clinic, data: Path, stopwatch: Stopwatch
) -> None:
    clinic.upload(data)
    clinic.provide_model()
    with stopwatch("a RayJob that does nothing, from apply to SUCCEEDED"):
        clinic.apply(idle_ray_job())
        clinic.until_gone(lambda: not succeeded(clinic), 300)
    alone = stopwatch.last
    clinic.kubectl("delete", "rayjob", "nothing", "--timeout=60s")
    clinic.until_gone(lambda: clinic.kubectl("get", "pods", "-l", "ray.io/cluster", "-o", "name"), 120)
    with stopwatch("apply → first step", goal=alone + ADDED_SECONDS):
        clinic.submit()
        clinic.until_step(1)


def succeeded(clinic: Clinic) -> bool:
    found = clinic.get("rayjob", "nothing")
    assert found is not None
    status = found.get("status") or {}
    assert status.get("jobDeploymentStatus") != "Failed", json.dumps(status, indent=1)
    return status.get("jobStatus") == "SUCCEEDED"


def idle_ray_job() -> dict[str, Any]:
    """One head and two workers of the sizes that our job has, as KubeRay's documentation writes it."""
    cluster = JOB["spec"]["cluster"]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "nothing"},
        "spec": {
            "entrypoint": "true",
            "submissionMode": "HTTPMode",
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "rayVersion": Settings(image=images.ours()[1]).ray_version,
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
    container = {"name": name, "image": images.ours()[1], "imagePullPolicy": "IfNotPresent", "resources": resources}
    return {"spec": {"containers": [container]}}
