"""One pod's shard of the data set, made by that pod alone: neither a record nor a key leaves the pod.

Where workers share a disk, `shards` prepares for all of them. Pods share no disk, so each pod reads the whole data set,
computes every record's key under the job key, and tokenises the records of its own rank. So each worker reads the data
once, and each record is tokenised once in all, which is the slow part. No other process takes part: neither the driver,
which has no key, nor Ray Data, whose counters of rows appear on dashboards.

The result is the same file that `shards` would make. A rank that is restarted in another pod makes its shard again.

Each pod also computes the digest of the whole data set, since it reads all of it. So no pod has to send a digest of its
own shard, which the others, who have the same key, could compare with guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tensafe_api.resources.job import Spec
from tensorguard.data import keys
from tensorguard.data.errors import DataError
from tensorguard.data.files import Source
from tensorguard.data.listing import files_of
from tensorguard.data.overlap import Overlap, save_contents
from tensorguard.data.partition import NO_RECORD, concatenate, merge, no_records, split_by_unit, tokenise_public
from tensorguard.data.raw_table import Wanted
from tensorguard.data.shard import write
from tensorguard.data.tokenise import Tokeniser
from tensorguard.data.unusable import Tally, refused_kinds


@dataclass(frozen=True)
class PodShard:
    """The result of `prepare_pod_shard`.

    Attributes:
        shard: the rank's file.
        empty: whether it holds no unit.
        digest: of the whole data set (`keys.dataset_digest`), the same on each rank.
    """

    shard: Path
    empty: bool
    digest: str


def prepare_pod_shard(
    spec: Spec,
    tokenise: Tokeniser,
    *,
    rank: int,
    workers: int,
    key: bytes,
    directory: Path,
    public: Path | None = None,
    report: Callable[[str], None] | None = None,
) -> PodShard:
    """Write the shard of `rank` into `directory`, which is created with mode 0700.

    Args:
        spec: the spec of the job.
        tokenise: the tokeniser of the job's task.
        rank: the worker of this pod.
        workers: number of workers.
        key: secret, at least 16 bytes, the same for all ranks and attempts of a job.
        directory: of the shard.
        public: the evaluation set, the result of `prepare_pod_evaluation`, if the job declares it public.
        report: called with a sentence for users: how many files are read, and which ones are left out.

    Raises:
        DataError: the data cannot be read, or do not fit the job, or the public set is training data. Where records
            cannot be used, how many and where is private: it is in the message of the error's cause.
    """
    data = spec.dataset
    overlap = Overlap.load(public) if public else None
    parts, totals, tally = [no_records(tokenise)], [], Tally()
    files = files_of(data.uri, Wanted.of(spec), format=data.format, storage=spec.storage, report=report)
    for table in _small(files, tokenise):
        split = split_by_unit(table, tokenise=tokenise, key=key, workers=workers, rank=rank, overlap=overlap)
        parts.append(split.tables[rank])
        totals.append(split.total)
        tally.merge(split.tally)
    _check(tally, spec, files[0])
    if overlap is not None:
        overlap.check("spec.evaluation.uri")
    batch = merge(parts, data.unit.max_examples_per_unit, tokenise.inputs)
    path = _folder(directory) / f"shard-{rank:03d}-of-{workers:03d}.arrow"
    write(batch, path)
    return PodShard(path, batch.num_rows == 0, keys.dataset_digest(key, totals))


def prepare_pod_evaluation(
    spec: Spec, tokenise: Tokeniser, *, rank: int, directory: Path, report: Callable[[str], None] | None = None
) -> Path | None:
    """Write the whole evaluation set into `directory`, for `rank`; None if the job has none. Raises DataError.

    `report`: as for `prepare_pod_shard`.
    """
    evaluation = spec.evaluation
    if evaluation is None:
        return None
    wanted, tally = Wanted.for_evaluation(spec), Tally()
    files = files_of(evaluation.uri, wanted, format=evaluation.format, storage=spec.storage, report=report)
    split = [tokenise_public(table, tokenise=tokenise) for table in _small(files, tokenise)]
    for each in split:
        tally.merge(each.tally)
    _check(tally, spec, files[0])
    records = concatenate([part for each in split for part in each.tables], tokenise.inputs)
    if records is None:
        raise DataError(f"{wanted.where}: {NO_RECORD}")
    batch, contents = records
    path = _folder(directory) / f"evaluation-{rank:03d}.arrow"
    write(batch, path)
    save_contents(path, contents)
    return path


def _check(tally: Tally, spec: Spec, source: Source) -> None:
    tally.check(refused=refused_kinds(spec.dataset), where=source.where, place=source.place, publish_numbers=False)


def _small(files: tuple[Source, list[dict[str, Any]]], tokenise: Tokeniser) -> Iterator[pa.Table]:
    """The raw tables of all files, in pieces whose examples fit into memory."""
    source, fragments = files
    for fragment in fragments:
        for table in source.tables(**fragment):
            for start in range(0, len(table), tokenise.batch_rows):
                yield table.slice(start, tokenise.batch_rows)


def _folder(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    return directory
