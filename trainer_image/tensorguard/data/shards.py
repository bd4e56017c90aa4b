"""Prepare the shards of all workers on Ray before training: tokenise, compute keys, and partition by unit.

`prepare` runs in the driver and receives no record. Ray Data's tasks read blocks, tokenise them and write **parts**:
small files, one for each worker and block, with random names. The tasks return only these names, for the digest the
sums of record keys, and the tally of records that cannot be used. Then one task for each
worker sorts its parts into the file that the worker maps (`shard`). Only parts whose names were returned are used: if
Ray runs a task again because a process died, the parts of the first run are ignored, and no record is in a shard twice.

The job's key is a file, and each task reads it: Ray keeps what its tasks receive in its object store and its logs.

A shard is sorted by the keys of unit and record, so it depends on the data set and the job's key alone. A training that
resumes from a checkpoint finds the same units at the same places. Nothing here returns or logs a number of records.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import ray
import ray.data
from ray.exceptions import RayTaskError

from tensafe_api.resources.job import Spec
from tensorguard.data import keys
from tensorguard.data.errors import DataError
from tensorguard.data.overlap import Overlap, save_contents
from tensorguard.data.packed import tables_in
from tensorguard.data.partition import (
    NO_RECORD,
    Partition,
    Split,
    concatenate,
    merge,
    split_by_unit,
    tokenise_public,
)
from tensorguard.data.read import Reading, error_without_content, silence_ray_data
from tensorguard.data.shard import Input, write
from tensorguard.data.tokenise import Tokeniser
from tensorguard.data.unusable import Tally, refused_kinds


@dataclass(frozen=True)
class PreparedShards:
    """The result of `prepare`.

    Attributes:
        shards: one file for each worker, by rank.
        digest: of the data set, keyed (`keys.dataset_digest`).
    """

    shards: tuple[Path, ...]
    digest: str


def prepare(
    dataset: Reading,
    spec: Spec,
    tokenise: Tokeniser,
    *,
    workers: int,
    key_file: Path,
    directory: Path,
    public: Path | None = None,
    public_name: str = "spec.evaluation.uri",
) -> PreparedShards:
    """Write the private data set's shards into `directory`, which is created with mode 0700.

    Args:
        dataset: the result of `read` or `from_memory` for `Wanted.of(spec)`.
        spec: the spec of the job.
        tokenise: the tokeniser of the job's task.
        workers: number of shards.
        key_file: has the job key, at least 16 secret bytes, the same for all runs of one job. Every process of Ray on
            this machine can read it.
        directory: of the shards.
        public: the evaluation set, the result of `prepare_public`, if the job declares it public.
        public_name: the field of the evaluation set in an error.

    Raises:
        DataError: if a record is not usable and the job does not skip it, if none is, if the public set is training
            data, and whatever reading raises.
    """
    split = partial(_split, tokenise=tokenise, key_file=key_file.absolute(), workers=workers, public=public)
    limit = spec.dataset.unit.max_examples_per_unit
    shards = tuple(directory / f"shard-{rank:03d}-of-{workers:03d}.arrow" for rank in range(workers))
    with _written_parts(dataset.tables, split, directory, "dataset", tokenise.batch_rows) as parts:
        _check(parts.tally, spec, "spec.dataset", dataset)
        if public is not None:
            ray.get(_check_overlap.remote(public, parts.of(workers), public_name))
        empty = ray.get(
            [_merge.remote(parts.of(rank), limit, tokenise.inputs, path) for rank, path in enumerate(shards)]
        )
    if all(empty):
        raise DataError(f"spec.dataset: {NO_RECORD}")
    return PreparedShards(shards, keys.dataset_digest(key_file.read_bytes(), parts.totals))


def prepare_public(dataset: Reading, spec: Spec, tokenise: Tokeniser, *, directory: Path) -> Path:
    """Write the evaluation set as one file into `directory`, in its own order, each record a unit. See `prepare`."""
    split = partial(tokenise_public, tokenise=tokenise)
    path = directory / "evaluation.arrow"
    with _written_parts(dataset.tables, split, directory, "evaluation", tokenise.batch_rows) as parts:
        _check(parts.tally, spec, "spec.evaluation", dataset)
        if ray.get(_concatenate.remote(parts.of(0), tokenise.inputs, path)):
            raise DataError(f"spec.evaluation: {NO_RECORD}")
    return path


def _check(tally: Tally, spec: Spec, where: str, dataset: Reading) -> None:
    tally.check(refused=refused_kinds(spec.dataset), where=where, place=dataset.place, publish_numbers=True)


@dataclass(frozen=True)
class _Parts:
    """The parts of a data set, in the order of its blocks.

    Attributes:
        totals: of each block, the sum of the keys of its records.
        tally: the records that cannot be used.
    """

    folder: Path
    names: list[str]
    totals: list[int]
    tally: Tally

    def of(self, worker: int) -> list[Path]:
        """The parts of one worker."""
        return [_part(self.folder, name, worker) for name in self.names]


@contextmanager
def _written_parts(
    dataset: ray.data.Dataset, split: Split, directory: Path, what: str, batch_rows: int
) -> Iterator[_Parts]:
    """Write the data set's parts, yield them, and remove them at the end."""
    silence_ray_data()
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    folder = directory / f"parts-{what}"
    shutil.rmtree(folder, ignore_errors=True)  # left by a run that was killed
    folder.mkdir(mode=0o700)
    try:
        written = dataset.map_batches(
            _write_parts,  # type: ignore[arg-type] # Ray's types do not allow for fn_args
            fn_args=(split, folder, batch_rows),
            batch_size=None,
            batch_format="pyarrow",
        )
        written.context.execution_options.preserve_order = True
        written.context.raise_original_map_exception = True
        rows = written.take_all()
        tally = Tally()
        for row in rows:
            tally.merge(Tally.from_json(row["tally"]))
        totals = [int.from_bytes(row["total"], "big") for row in rows]
        yield _Parts(folder, [row["part"] for row in rows], totals, tally)
    except RayTaskError as error:
        raise error_without_content(error, f"spec.{what}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_parts(block: pa.Table, split: Split, directory: Path, batch_rows: int) -> Iterator[pa.Table]:
    pieces = (each.slice(at, batch_rows) for each in tables_in(block) for at in range(0, len(each), batch_rows))
    for piece in pieces:
        name = secrets.token_hex(16)
        partition = split(piece)
        for worker, table in enumerate(partition.tables):
            path = _part(directory, name, worker)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        total, tally = partition.total.to_bytes(keys.WIDTH, "big"), partition.tally.to_json()
        yield pa.table({"part": [name], "total": [total], "tally": [tally]})


def _split(
    block: pa.Table,
    *,
    tokenise: Tokeniser,
    key_file: Path,
    workers: int,
    public: Path | None,
) -> Partition:
    """The tables of all workers; after them, with a public set, one of what the block has in common with it."""
    overlap = Overlap.load(public) if public else None
    key = key_file.read_bytes()
    found = split_by_unit(block, tokenise=tokenise, key=key, workers=workers, overlap=overlap)
    return replace(found, tables=[*found.tables, pa.table({"content": overlap.found})]) if overlap else found


@ray.remote
def _merge(parts: list[Path], limit: int | None, inputs: Input, path: Path) -> bool:
    """Write a worker's shard, and return whether it is empty."""
    if not parts:
        return True
    batch = merge([_open(part) for part in parts], limit, inputs)
    write(batch, path)
    return bool(batch.num_rows == 0)


@ray.remote
def _check_overlap(public: Path, parts: list[Path], name: str) -> None:
    """Raise DataError if the public set is training data, and return nothing else about what they have in common."""
    overlap = Overlap.load(public)
    for part in parts:
        overlap.add_found(_open(part).column("content").to_numpy())
    overlap.check(name)


@ray.remote
def _concatenate(parts: list[Path], inputs: Input, path: Path) -> bool:
    """Write the public file, and return whether it is empty."""
    records = concatenate([_open(part) for part in parts], inputs)
    if records is not None:
        batch, contents = records
        write(batch, path)
        save_contents(path, contents)
    return records is None


def _part(directory: Path, name: str, worker: int) -> Path:
    return directory / f"{name}-{worker:03d}.arrow"


def _open(part: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(part))).read_all()
