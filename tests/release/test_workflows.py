"""The workflow of a release: what it publishes is what the checksums name."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

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
