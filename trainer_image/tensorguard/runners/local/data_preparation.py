"""Reads, tokenises and shards the data of a local run, before the workers take the CPUs.

In come the completed job, the file of its job key, and data in memory where the Python API has some; out come the paths
of the shards and of the tokenised evaluation set. The imports are inside the function: the driver starts without Ray
Data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.runners.preflight import RunRefused


@dataclass(frozen=True)
class InMemoryData:
    """Data in memory, used in place of the manifest's URIs (the Python API).

    Either is anything that `data.read.from_memory` accepts; None reads the URI.
    """

    train: Any = None
    evaluation: Any = None

    def refuse_on_nodes(self) -> None:
        """Refuse data in memory where workers run on other machines.

        Raises:
            RunRefused: naming the field.
        """
        for field, found in (("spec.dataset", self.train), ("spec.evaluation", self.evaluation)):
            if found is not None:
                raise RunRefused(
                    field,
                    "the data is in this process's memory, and this process has joined a Ray cluster whose workers may "
                    "run on other machines, to which Ray would send every record in the clear; pass a URI or path that "
                    "each node can read, or train in a process that has not joined the cluster",
                )


@dataclass(frozen=True)
class PreparedData:
    """The data on the disk of this machine.

    Attributes:
        shards: absolute path of each rank's shard, by rank.
        evaluation: absolute path of the tokenised evaluation set; None without one.
        digest: keyed digest of the data set.
    """

    shards: tuple[str, ...]
    evaluation: str | None
    digest: str


def prepare_data(
    job: TenSafeTrainingJob, data: InMemoryData, key_file: Path, directory: Path, report: Callable[[str], None]
) -> PreparedData:
    """Write the shards and the evaluation set to `directory`. Needs a running Ray.

    `report` is called with each stage: which files are read, and which ones are left out.

    Raises:
        Exception: the model's tokenizer or the data cannot be read; `describe_error` gives the reason.
    """
    from tensorguard.data.raw_table import Wanted
    from tensorguard.data.read import from_memory, read
    from tensorguard.data.shards import prepare, prepare_public
    from tensorguard.models.source import resolve_model
    from tensorguard.models.tasks import tokeniser_of

    spec = job.spec
    report("Loading the tokenizer")
    tokenise = tokeniser_of(spec, resolve_model(spec.model.name, spec.model.revision))
    wanted = Wanted.of(spec)
    if data.train is not None:
        dataset = from_memory(data.train, wanted)
    else:
        uri = spec.dataset.uri
        dataset = read(uri, wanted, format=spec.dataset.format, storage=spec.storage, report=report)
    examples = evaluation = None
    if spec.evaluation is not None:
        wanted = Wanted.for_evaluation(spec)
        if data.evaluation is not None:
            examples = from_memory(data.evaluation, wanted, where="eval_dataset")
        else:
            uri, form = spec.evaluation.uri, spec.evaluation.format
            examples = read(uri, wanted, format=form, storage=spec.storage, report=report)
    report("Reading and tokenising the data set")
    if examples is not None:
        evaluation = prepare_public(examples, spec, tokenise, directory=directory)
    prepared = prepare(
        dataset,
        spec,
        tokenise,
        workers=spec.cluster.ranks,
        key_file=key_file,
        directory=directory,
        public=evaluation if spec.evaluation and spec.evaluation.visibility == "Public" else None,
        public_name="spec.evaluation.uri" if data.evaluation is None else "eval_dataset",
    )
    return PreparedData(
        shards=tuple(str(path.absolute()) for path in prepared.shards),
        evaluation=str(evaluation.absolute()) if evaluation else None,
        digest=prepared.digest,
    )
