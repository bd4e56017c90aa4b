"""The commands for a cluster of kind. Neither kind nor Docker's engine runs here."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from e2e.platform import images, kind
from tests.support.programs import helm, versions

KUBECONFIG = Path("/cache/kind.kubeconfig")


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is built here."""
    monkeypatch.setattr(helm, "program", lambda *_, name, **__: Path("/programs") / name)


@pytest.mark.parametrize(
    ("commands", "engine_status", "available"),
    [({"kind", "docker"}, 0, True), ({"kind", "docker"}, 1, False), ({"docker"}, 0, False), (set(), 0, False)],
    ids=["kind and an engine", "only a docker client", "no kind", "neither"],
)
def test_kind_needs_dockers_engine(
    monkeypatch: pytest.MonkeyPatch, commands: set[str], engine_status: int, available: bool
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in commands else None)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, engine_status))
    assert kind.is_available() is available


def test_the_cluster_has_its_own_name_and_kubeconfig() -> None:
    command = kind.create_command(KUBECONFIG)
    assert command[:3] == ["kind", "create", "cluster"]
    assert ("--name", "tensafe-e2e") in itertools.pairwise(command)
    assert ("--kubeconfig", str(KUBECONFIG)) in itertools.pairwise(command)


def test_docker_builds_the_images_under_the_names_that_are_loaded() -> None:
    command = kind.build_command()
    assert f"PREFIX={images.PREFIX}" in command and "BUILDER=docker" in command
    assert not any(part.startswith("BASE_IMAGE=") for part in command), "Docker uses the Dockerfile's base image"
    assert images.S3 in kind.build_s3_command(Path("/programs"))
    assert [command[3] for command in kind.load_commands()] == [*images.names_of_ours(), images.S3]


def test_the_s3_images_entrypoint_is_the_program() -> None:
    lines = kind.S3_DOCKERFILE.format(debian=versions.DEBIAN).splitlines()
    assert lines[0] == "FROM debian:bookworm-slim"
    assert lines[-1] == 'ENTRYPOINT ["/versitygw"]'


def test_kuberay_and_the_chart_are_installed_with_the_loaded_images() -> None:
    kuberay, tensafe = kind.install_commands(KUBECONFIG, "sha256:1")
    for command in (kuberay, tensafe):
        assert command[:3] == ["/programs/helm", "--kubeconfig", str(KUBECONFIG)]
        assert command[3:5] == ["upgrade", "--install"] and "--wait" in command
    assert ("--version", "1.6.2") in itertools.pairwise(kuberay)
    assert 'image.repository="localhost/tensafe-operator"' in tensafe
    assert 'trainer.image.repository="localhost/tensafe-trainer"' in tensafe
    assert 'podAnnotations={"tensafe.io/image-id": "sha256:1"}' in tensafe
    assert 'jobs.egressCIDRs=["10.244.0.0/16"]' in tensafe
