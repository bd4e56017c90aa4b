"""A folder in which the local driver runs jobs in this process, with one worker and without Ray."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tensafe_api.manifest.text import dump_manifest
from tensorguard.aggregation.header import Header, HeaderAgreement
from tensorguard.runners.local import driver
from tensorguard.training.config import WorkerConfig
from tensorguard.training.worker import train
from tests.support.trainer.local_runs import Folder
from tests.support.trainer.rank_harness import SingleRankChannel, shard_records


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A new folder for jobs. The driver shards the data and trains in this process."""
    folder = Folder(tmp_path)
    agree = HeaderAgreement.agree

    def agreeing(agreement: HeaderAgreement, header: Header, stop: bool) -> bool:
        return agree(agreement, header, stop or header.step == folder.stop_at)

    @contextmanager
    def no_ray(*_: Any, **__: Any) -> Iterator[None]:
        yield

    def prepare(one: Any, work: Path) -> WorkerConfig:
        work.mkdir(exist_ok=True)
        shards, found = shard_records(work, one.job, folder.rows, one._key_file.read_bytes())
        return WorkerConfig(
            job=dump_manifest(one.job, format="json"),
            job_uid=one.job.metadata.uid,
            attempt=one.attempt,
            place="OneMachine",
            run_directory=str(one.directory),
            private_directory=str(one._private.path),
            key_file=str(one._key_file),
            shards=tuple(map(str, shards)),
            evaluation=None,
            dataset_digest=found,
            threads=1,
            identity_file=str(one.identity) if one.identity else None,
        )

    def run_workers(function: Any, config: dict[str, Any], *_: Any) -> None:
        if folder.fails:
            raise folder.fails
        train(WorkerConfig.unpack(config), SingleRankChannel(), torch.device("cpu"))

    monkeypatch.setattr(HeaderAgreement, "agree", agreeing)
    monkeypatch.setattr(driver, "local_ray", no_ray)
    monkeypatch.setattr(driver._Run, "_prepare", prepare)
    monkeypatch.setattr(driver, "run_workers", run_workers)
    return folder
