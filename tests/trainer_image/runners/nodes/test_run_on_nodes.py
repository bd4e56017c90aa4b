"""`tensafe run --address` and the Python API on two Ray nodes with separate folders, which share only some of them.

Each node has its own temporary folder and key file. The second one has another, empty folder in place of `local`, like
a machine on which that path is a local disk.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorguard.ledger.file import FileLedger
from tensorguard.runners.nodes.node_files import KEY_FILE_VARIABLE
from tensorguard.training.config import RUN_LOG
from tensorguard.training.run_log import LogRecord, RunLogReader, Started, Stepped
from tests.support.polling import TIMEOUT_SECONDS, wait_until
from tests.support.trainer.rank_harness import MANIFEST, make_model, records
from tests.support.trainer.ray_nodes import RayNodes, can_unshare

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(not can_unshare(), reason="this user cannot give a process its own mounts"),
]

RECORD = "w1 "
STEPS = 150
SCRIPT = """
import sys
from tensorguard.distributed import DistributedDPConfig, TenSafeTrainer, TenSafeTrainingConfig
data, model, out = sys.argv[1:]
config = TenSafeTrainingConfig(
    model_name=model, num_labels=2, lora_rank=2, lora_target_modules=["query", "value"], num_epochs=1,
    per_device_batch_size=8, gradient_accumulation_steps=2, num_workers=2, max_seq_length=16, checkpoint_dir=out,
    unit_at_least=200, columns={"text": "text", "label": "label"}, dp_config=DistributedDPConfig(target_epsilon=20.0),
)
if __name__ == "__main__":
    result = TenSafeTrainer(config).fit(data)
    print(result.phase, result.metrics["steps"], result.metrics["total_steps"])
"""


class Site:
    """Two nodes and what they share: the data, the model and the folder `shared`."""

    def __init__(self, base: Path) -> None:
        self.base, self.shared, self.local = base, base / "shared", base / "local"
        self.folders = [base / "first", base / "second"]
        self.key = secrets.token_bytes(32)
        for folder in (self.shared, self.local, *self.folders):
            folder.mkdir()
        for folder in self.folders:
            (folder / "job.key").touch(mode=0o600)
        self.give_keys(self.key, self.key)
        make_model(base / "model")
        (base / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records(240)))
        text = MANIFEST.replace("MODEL", str(base / "model")).replace("CHECKPOINTS", str(self.shared / "checkpoints"))
        (base / "job.yaml").write_text(text.replace("unused.jsonl", str(base / "data.jsonl")))
        self.nodes = RayNodes()

    def start(self) -> None:
        first, second = ({KEY_FILE_VARIABLE: str(folder / "job.key")} for folder in self.folders)
        self.nodes.start_head(self.folders[0], cpus=1, **first)
        self.nodes.start_node(self.folders[1], cpus=1, unshared=self.local, **second)

    def give_keys(self, *keys: bytes) -> None:
        for folder, key in zip(self.folders, keys, strict=True):
            (folder / "job.key").write_bytes(key)

    def run(self, output: Path, *arguments: str) -> subprocess.Popen[str]:
        """`tensafe run --address` on the first node, in its own process group."""
        command = [sys.executable, "-m", "tensorguard.cli.main", "run", str(self.base / "job.yaml"), "-o", "json"]
        changes = (f"spec.training.steps={STEPS}", "spec.privacy.noiseMultiplier=4", "spec.checkpoint.everySteps=10")
        overrides = [part for change in changes for part in ("--set", change)]
        return subprocess.Popen(
            [*command, *overrides, "--address", self.nodes.address, "--output-dir", str(output), *arguments],
            env=self.nodes.environment | {"TMPDIR": str(self.folders[0] / "tmp")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def files_with(self, content: bytes, *folders: Path) -> list[Path]:
        """The files in `folders` that hold `content`."""
        every = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        assert every
        return [path for path in every if content in path.read_bytes()]

    def assert_nothing_private_is_left(self, *folders: Path) -> None:
        """Neither the key nor a record is in `folders` or Ray's sessions, and no shard is left on a node."""
        for content in (self.key, self.key.hex().encode(), RECORD.encode()):
            assert self.files_with(content, self.nodes.session, *folders) == []
        assert self.files_with(RECORD.encode(), self.base) == [self.base / "data.jsonl"]
        for folder in self.folders:
            assert not list((folder / "tmp").glob("tensafe-*"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        site.start()
        yield site
    finally:
        site.nodes.stop()


@pytest.fixture(autouse=True)
def same_keys(site: Site) -> Iterator[None]:
    yield
    site.give_keys(site.key, site.key)


def test_nodes_with_different_keys_are_refused_before_anything_is_spent(site: Site) -> None:
    site.give_keys(site.key, secrets.token_bytes(32))
    command = site.run(site.shared / "refused")
    _, err = command.communicate(timeout=TIMEOUT_SECONDS)
    assert command.returncode == 2, err
    assert "have different job keys" in err
    assert not (site.shared / "refused" / "ledger.jsonl").exists()


def test_output_folder_that_nodes_do_not_share_is_refused(site: Site) -> None:
    command = site.run(site.local / "out")
    _, err = command.communicate(timeout=TIMEOUT_SECONDS)
    assert command.returncode == 2, err
    assert f"does not share {site.local / 'out'} with this machine" in err
    assert not (site.local / "out" / "ledger.jsonl").exists()


def test_run_survives_a_killed_worker_and_ctrl_c_and_is_resumed_to_its_end(site: Site) -> None:
    output = site.shared / "out"
    log, seen = RunLogReader(output / RUN_LOG), list[LogRecord]()

    def wait_for_steps_after_starts(starts: int, command: subprocess.Popen[str]) -> None:
        def stepped() -> bool:
            assert command.poll() is None, command.communicate()
            seen.extend(log.read())
            places = [number for number, record in enumerate(seen) if isinstance(record, Started)]
            return len(places) == starts and any(isinstance(record, Stepped) for record in seen[places[-1] :])

        wait_until(stepped)

    command = site.run(output)
    wait_for_steps_after_starts(1, command)
    assert sorted(path.stat().st_mode & 0o777 for folder in site.folders for path in shards_of(folder)) == [0o700] * 2
    os.kill(int(FileLedger(output).read().charges[-1].holder.rpartition("/")[2]), signal.SIGKILL)
    wait_for_steps_after_starts(2, command)
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=TIMEOUT_SECONDS)
    assert command.returncode == 130, err
    ledger = FileLedger(output).read()
    assert (ledger.attempt, ledger.incarnation, ledger.outcome) == (1, 2, "Suspended")
    command = site.run(output, "--resume")
    out, err = command.communicate(timeout=TIMEOUT_SECONDS)
    assert command.returncode == 0, err
    status = json.loads(out)["status"]
    assert (status["phase"], status["progress"]["step"]) == ("Succeeded", STEPS)
    statement = json.loads(Path(status["finalModel"]["statementURI"].removeprefix("file://")).read_text())
    assert any("on the nodes of a Ray cluster" in sentence for sentence in statement["assumed"])
    assert FileLedger(output).read().outcome == "Completed"
    assert status["privacy"]["stepsCharged"] >= ledger.steps_charged
    site.assert_nothing_private_is_left(site.shared)


def test_python_api_trains_from_a_path_on_the_joined_cluster(site: Site, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    output = site.shared / "from-python"
    done = subprocess.run(
        [sys.executable, tmp_path / "train.py", site.base / "data.jsonl", site.base / "model", output],
        env=site.nodes.environment | {"RAY_ADDRESS": site.nodes.address, "TMPDIR": str(site.folders[0] / "tmp")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    phase, step, planned = done.stdout.split()
    assert (phase, step) == ("Succeeded", planned)
    site.assert_nothing_private_is_left(output)


def shards_of(folder: Path) -> list[Path]:
    return list((folder / "tmp").glob("tensafe-*"))
