"""The same table in five formats gives the same adapter, bit for bit, where the secret streams are the same."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorguard.data.pod_shard import prepare_pod_shard
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import tokeniser_of
from tensorguard.privacy.stream import SecretStream
from tensorguard.training import setup
from tests.support.trainer.rank_harness import Job, records

pytestmark = pytest.mark.slow

Rows = Sequence[dict[str, Any]]


def write_jsonl(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_separated(path: Path, rows: Rows) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter="," if path.suffix == ".csv" else "\t")
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(list(rows)), path, row_group_size=50)


def write_compressed(path: Path, rows: Rows) -> None:
    content = "".join(json.dumps({**row, "label": f"{row['label']}.0"}) + "\n" for row in reversed(rows))
    path.write_bytes(pa.compress(content.encode(), "zstd", asbytes=True))


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "rows.jsonl": write_jsonl,
    "rows.csv": write_separated,
    "rows.tsv": write_separated,
    "rows.parquet": write_parquet,
    "rows.jsonl.zst": write_compressed,
}


def test_adapter_does_not_depend_on_the_format_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "SecretStream", lambda: SecretStream(b"k" * 32))
    found = {}
    for name, write in WRITERS.items():
        folder = tmp_path / name
        job = Job.make(folder, "spec.cluster.workers=1", "spec.training.steps=2", "spec.training.expectedBatchSize=100")
        data = folder / name
        write(data, records(240))
        spec = job.job.spec
        spec = spec.model_copy(update={"dataset": spec.dataset.model_copy(update={"uri": str(data)})})
        tokenise = tokeniser_of(spec, resolve_model(spec.model.name))
        made = prepare_pod_shard(spec, tokenise, rank=0, workers=1, key=b"k" * 32, directory=folder / "shards")
        job = replace(job, shards=(made.shard,), digest=made.digest)
        job.train_alone()
        adapter = next(Path(spec.checkpoint.uri).glob("final/**/adapter_model.safetensors")).read_bytes()
        found[name] = (made.digest, hashlib.sha256(adapter).hexdigest())
    assert len(set(found.values())) == 1, found
