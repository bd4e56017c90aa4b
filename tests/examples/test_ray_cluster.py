"""The example for `ray up`: valid by Ray's own schema, and carried out by `ray up` on a head that is replaced.

The replacements of ssh and rsync record what `ray up` does on the head, and do nothing. Ray's autoscaler on the head
starts the workers with the same setup; this part needs machines.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tensorguard.runners.nodes.node_files import KEY_FILE_VARIABLE

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples" / "ray-cluster" / "cluster.yaml"
RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >> "$RECORD"
"""


@pytest.fixture
def cluster() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(CLUSTER.read_text())
    return found


def test_cluster_fits_rays_schema(cluster: dict[str, Any]) -> None:
    validate_config(prepare_config(cluster))


def test_workers_find_the_key_where_it_is_copied_and_the_head_trains_nothing(cluster: dict[str, Any]) -> None:
    (head,) = (command for command in cluster["head_start_ray_commands"] if "ray start" in command)
    (worker,) = (command for command in cluster["worker_start_ray_commands"] if "ray start" in command)
    variables = dict(part.split("=", 1) for part in worker.split() if part[0].isupper())
    assert variables[KEY_FILE_VARIABLE] in cluster["file_mounts"]
    assert "--num-cpus=0" in head
    for command in (head, worker):
        assert "RAY_AUTH_MODE=token" in command


@pytest.mark.slow
def test_ray_up_prepares_the_head_and_then_starts_ray(cluster: dict[str, Any], tmp_path: Path) -> None:
    home = tmp_path / "home"
    for folder in ("programs", "home/.ssh", "home/.tensafe", "home/.ray"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("ssh", "rsync"):
        (tmp_path / "programs" / name).write_text(RECORDER)
        (tmp_path / "programs" / name).chmod(0o755)
    for secret in (".ssh/id_ed25519", ".tensafe/job.key", ".ray/auth_token"):
        (home / secret).write_text("0" * 32)
    (tmp_path / "src").mkdir()
    done = subprocess.run(
        [Path(sys.executable).with_name("ray"), "up", "--yes", "--no-config-cache", CLUSTER],
        env=os.environ
        | {
            "PATH": f"{tmp_path / 'programs'}:{os.environ['PATH']}",
            "HOME": str(home),
            "RECORD": str(tmp_path / "record"),
            "RAY_TMPDIR": str(tmp_path / "ray"),
            "RAY_USAGE_STATS_ENABLED": "0",
        },
        cwd=tmp_path / "src",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = (tmp_path / "record").read_text()
    for needed in (*cluster["file_mounts"], *cluster["setup_commands"]):
        assert needed in record
    order = ["/home/ubuntu/.tensafe/job.key", "chmod 600", "pip install --no-deps", "mount -t nfs4", "ray start --head"]
    places = [record.index(part) for part in order]
    assert places == sorted(places)
