"""The workflows of the code host, as far as they can be checked here: actionlint finds nothing wrong, and the release
is what `make package` writes, signed, with no more rights than it needs.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.platform.tools import tool

IMAGE = "tensafe-trainer-image-0.1.0.oci.tar"
WORKFLOWS = Path(__file__).parents[2] / ".github" / "workflows"


def release() -> dict[str, Any]:
    return dict(yaml.safe_load((WORKFLOWS / "release.yml").read_text()))


def commands(job: str) -> list[str]:
    return [step["run"] for step in release()["jobs"][job]["steps"] if "run" in step]


def run(script: str, folder: Path, **environment: str) -> str:
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.cluster
def test_actionlint_finds_nothing() -> None:
    """Marked as the other tests that build a Go program. Shell scripts and Python in steps are not checked: shellcheck
    and pyflakes may be missing.
    """
    files = sorted(map(str, WORKFLOWS.glob("*.yml")))
    assert len(files) == 2
    command = [str(tool("actionlint")), "-shellcheck=", "-pyflakes=", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.cluster
def test_actionlint_finds_a_fault(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text((WORKFLOWS / "release.yml").read_text().replace("needs: package", "needs: packing"))
    command = [str(tool("actionlint")), "-shellcheck=", "-pyflakes=", str(wrong)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "packing" in done.stdout


def test_release_is_what_make_package_writes() -> None:
    assert "make package" in commands("package")
    assert release()["jobs"]["publish"]["needs"] == "package"
    assert "sha256sum --check SHA256SUMS" in commands("publish")
    signed = "\n".join(commands("publish"))
    for command in ("cosign sign --yes", "cosign attest --yes --type spdxjson", "cosign sign-blob --yes"):
        assert command in signed
    assert "--key" not in signed, "keyless"


def test_files_of_a_release_are_those_of_the_checksums_once_the_parts_are_joined(tmp_path: Path) -> None:
    """The code host takes no file as large as the trainer's image. The reader joins the parts as the docs say."""
    files, programs, published = tmp_path / "package", tmp_path / "bin", tmp_path / "published"
    for folder in (files, programs, published):
        folder.mkdir()
    (files / IMAGE).write_bytes(random.Random(1).randbytes(5_000_000))
    (files / "tensafe-0.1.0.tgz").write_bytes(b"chart")
    run("sha256sum * > ../SHA256SUMS && mv ../SHA256SUMS .", files)
    gh = programs / "gh"
    gh.write_text(f"#!/bin/sh\nfor file; do case $file in ./*) cp $file {published};; esac; done\n")
    gh.chmod(0o755)
    (publish,) = [each for each in commands("publish") if "gh release create" in each]
    run(publish.replace("1900M", "2M"), files, PATH=f"{programs}:{os.environ['PATH']}", GITHUB_REF_NAME="v0.1.0")
    assert max(each.stat().st_size for each in published.iterdir()) == 2 * 1024**2
    page = (WORKFLOWS.parents[1] / "docs" / "how-to" / "air-gapped.md").read_text()
    (join,) = re.findall(r"^ *(cat .*)$", page, re.MULTILINE)
    (check,) = re.findall(r"^ *(sha256sum --check .*)$", page, re.MULTILINE)
    assert f"{IMAGE}: OK" in run(f"{join} && {check}", published)


def test_only_the_job_that_publishes_may_write() -> None:
    document = release()
    assert document["permissions"] == {"contents": "read"}
    assert "permissions" not in document["jobs"]["package"], "what runs the project's code keeps the right to read"
    assert not [step for step in document["jobs"]["publish"]["steps"] if "make " in step.get("run", "")]


def test_registry_is_a_variable_and_no_expression_is_in_a_script() -> None:
    text = (WORKFLOWS / "release.yml").read_text()
    assert release()["jobs"]["publish"]["env"]["REGISTRY"] == "${{ vars.REGISTRY }}"
    assert not re.search(r"docker://[a-z]|oci://[a-z]", text)
    for job in release()["jobs"]:
        assert not [script for script in commands(job) if "${{" in script], "a tag could inject a command"
