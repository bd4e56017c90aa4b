"""Inspects a job: reads its data set and its evaluation set in this process, and counts what a training would use.

In: a completed job with absolute paths, or data in memory in place of its URIs. Out: an `Inspection`. The model's
weights are not read; its tokenizer is. What refuses a run is found by the functions that refuse it there, and the
inspection has all that was counted nevertheless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

from tensafe_api.resources.job import Spec, TenSafeTrainingJob
from tensorguard.data.errors import DataError
from tensorguard.data.overlap import Overlap
from tensorguard.data.partition import NO_RECORD
from tensorguard.data.raw_table import Wanted
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import IGNORE_INDEX, Pixels, Target
from tensorguard.data.tokenise import Tokeniser
from tensorguard.data.unusable import Tally, Unusable, refused_kinds
from tensorguard.inspection.collect import Collector, small, whole_recipe
from tensorguard.inspection.evaluation import EvaluationCollector
from tensorguard.inspection.files import describe_files
from tensorguard.inspection.inspection import Evaluation, Example, Inspection, Part, Unit, UnusableRecords
from tensorguard.inspection.reading import Reading, read_files, read_memory
from tensorguard.inspection.suggestions import suggestions
from tensorguard.models.source import resolve_model
from tensorguard.models.tasks import task_of
from tensorguard.runners.preflight import RunRefused, check_evaluation_is_public

_NO_LIMIT = 1 << 24
"""A tokenizer that knows no limit has a larger `model_max_length`."""


class Watcher(Protocol):
    """What is called while a job is inspected. The counts are private."""

    def stage(self, sentence: str) -> None:
        """A stage begins."""
        ...

    def read(self, records: int, done: int, total: int) -> None:
        """So many records are counted in this stage, and `done` of `total` bytes are read."""
        ...


class NoWatcher:
    """A watcher that shows nothing."""

    def stage(self, sentence: str) -> None:
        pass

    def read(self, records: int, done: int, total: int) -> None:
        pass


def inspect_job(
    job: TenSafeTrainingJob,
    *,
    train: Any = None,
    evaluation: Any = None,
    show_records: bool = False,
    watcher: Watcher | None = None,
) -> Inspection:
    """Inspect a job.

    Args:
        job: completed, with absolute paths.
        train: data in memory, used in place of the URI: anything that `fit` takes.
        evaluation: the same for the evaluation set.
        show_records: whether the inspection may have content of records, ids, and texts of labels.
        watcher: of the progress.

    Raises:
        Exception: the tokenizer of the model cannot be loaded, or does not fit the job.
    """
    watcher = watcher or NoWatcher()
    watcher.stage("Loading the tokenizer")
    spec = job.spec
    task, recipe = task_of(spec), Recipe.from_spec(spec)
    processor = task.load_processor(resolve_model(spec.model.name, spec.model.revision), spec.model)
    tokenise = task.tokeniser(processor, recipe)
    whole = None if isinstance(tokenise.inputs, Pixels) else task.tokeniser(processor, whole_recipe(recipe))

    refusals = _Refusals()
    if train is None and evaluation is None:
        refusals.catch(lambda: check_evaluation_is_public(job))
    public = _evaluation(spec, tokenise, evaluation, watcher, refusals) if spec.evaluation else None
    compared = spec.evaluation is not None and spec.evaluation.visibility == "Public" and public is not None
    overlap = Overlap(public.collector.contents()) if public and compared else None

    collector = Collector(spec, tokenise, whole, overlap=overlap, show_records=show_records)
    wanted = Wanted.of(spec)
    if train is not None:
        wanted = replace(wanted, where="train_dataset")
    reading = _open(spec, wanted, spec.dataset.uri, spec.dataset.format, train, refusals)
    complete = reading is not None and _read(reading, collector, tokenise, watcher, refusals)
    if reading is not None:
        _check(collector.tally, spec, reading, "spec.dataset", refusals)
    if overlap is not None:
        refusals.catch(lambda: overlap.check("spec.evaluation.uri" if evaluation is None else "eval_dataset"))
    if complete and not collector.usable:
        refusals.found.append(f"spec.dataset: {NO_RECORD}")

    unit, units, per_unit = spec.dataset.unit, collector.units(), collector.records_per_unit()
    lengths, other_labels, trained = collector.lengths(), collector.other_labels(), collector.trained()
    longest = getattr(processor, "model_max_length", _NO_LIMIT)
    suggested = suggestions(
        spec,
        units=len(units),
        trained=trained,
        usable=collector.usable,
        per_unit=per_unit,
        lengths=lengths,
        other_labels=other_labels,
        longest=longest if longest < _NO_LIMIT else None,
    )
    return Inspection(
        job=job.metadata.name,
        complete=complete,
        records=collector.records,
        usable=collector.usable,
        left_out=collector.left_out,
        unusable=_unusable(collector.tally, reading, no_id=Unusable.NO_ID in refused_kinds(spec.dataset)),
        records_without_id=collector.without_id if unit.kind == "User" else None,
        units=len(units),
        unit=Unit(unit.kind, unit.column, unit.max_examples_per_unit, unit.missing),
        records_per_unit=per_unit,
        trained=trained,
        labels=collector.labels(),
        other_labels=other_labels,
        lengths=lengths,
        duplicates=collector.duplicates(),
        ids=collector.ids(),
        reading=reading.summary if reading else "",
        files=describe_files(reading.source, reading.sizes, collector.files, show_records)
        if reading is not None and reading.source is not None
        else (),
        evaluation=public.result(overlap) if public else None,
        suggestions=suggested if complete else (),
        refusals=tuple(refusals.found),
        examples=tuple(_example(*each, tokenise, recipe, processor) for each in collector.shown)
        if show_records
        else None,
    )


@dataclass
class _Refusals:
    """Why a run would be refused, in the order in which it would find out."""

    found: list[str] = field(default_factory=list)

    def catch(self, call: Callable[[], object]) -> bool:
        """Call a function; return whether it succeeded. The refusal of another one is noted."""
        try:
            call()
        except (DataError, RunRefused) as error:
            self.found.append(str(error))
            return False
        return True


@dataclass(frozen=True)
class _Public:
    """An evaluation set that was read."""

    collector: EvaluationCollector
    reading: Reading

    def result(self, overlap: Overlap | None) -> Evaluation:
        """Its figures. `overlap`: with the data set, if it is compared."""
        collector = self.collector
        return Evaluation(
            records=collector.records,
            usable=collector.usable,
            left_out=collector.left_out,
            unusable=_unusable(collector.tally, self.reading, no_id=False),
            reading=self.reading.summary,
            compared=None if overlap is None else len(set(collector.contents().tolist())),
            in_dataset=None if overlap is None else len(overlap.found),
        )


def _evaluation(spec: Spec, tokenise: Tokeniser, data: Any, watcher: Watcher, refusals: _Refusals) -> _Public | None:
    """Read the evaluation set; None if it cannot be listed."""
    assert spec.evaluation is not None
    wanted = Wanted.for_evaluation(spec)
    if data is not None:
        wanted = replace(wanted, where="eval_dataset")
    reading = _open(spec, wanted, spec.evaluation.uri, spec.evaluation.format, data, refusals)
    if reading is None:
        return None
    collector = EvaluationCollector(tokenise)
    if _read(reading, collector, tokenise, watcher, refusals) and _check(
        collector.tally, spec, reading, "spec.evaluation", refusals
    ):
        refusals.catch(lambda: collector.check("spec.evaluation"))
    return _Public(collector, reading)


def _open(
    spec: Spec,
    wanted: Wanted,
    uri: str,
    format: str | None,  # noqa: A002
    data: Any,
    refusals: _Refusals,
) -> Reading | None:
    """The data set at `uri`, or `data` if it is not None; None where it cannot be listed."""
    try:
        return read_files(uri, wanted, format, spec.storage) if data is None else read_memory(data, wanted)
    except DataError as error:
        refusals.found.append(str(error))
        return None


def _read(
    reading: Reading,
    collector: Collector | EvaluationCollector,
    tokenise: Tokeniser,
    watcher: Watcher,
    refusals: _Refusals,
) -> bool:
    """Count all records. Returns whether all could be read."""
    watcher.stage(reading.summary)
    total = sum(reading.sizes.values())

    def count() -> None:
        for table, done in reading.tables:
            for piece in small(table, tokenise):
                collector.add(piece)
                watcher.read(collector.records, done, total)

    return refusals.catch(count)


def _check(tally: Tally, spec: Spec, reading: Reading, where: str, refusals: _Refusals) -> bool:
    """Whether a run would accept the records that cannot be used. Its refusal is noted."""
    refused = refused_kinds(spec.dataset)
    return refusals.catch(lambda: tally.check(refused=refused, where=where, publish_numbers=True, place=reading.place))


def _unusable(tally: Tally, reading: Reading | None, *, no_id: bool) -> tuple[UnusableRecords, ...]:
    """The records that cannot be used. `no_id`: whether those without an id are among them."""
    if reading is None:
        return ()
    return tuple(
        UnusableRecords(kind, count, reading.place(file, at))
        for kind, (count, file, at) in tally.by_kind().items()
        if no_id or kind is not Unusable.NO_ID
    )


def _example(inputs: Any, target: Any, tokenise: Tokeniser, recipe: Recipe, processor: Any) -> Example:
    """A record as the model reads it, with the tokens that it learns."""
    if tokenise.target is Target.RECORD_LABEL:
        what = f"an image of {_size(tokenise.inputs)}" if isinstance(tokenise.inputs, Pixels) else None
        return Example((Part(what or processor.decode(inputs), False),), _class(target, recipe))
    if tokenise.target is Target.TOKEN_LABELS:
        tags = " ".join(_class(number, recipe) for number in target if number != IGNORE_INDEX)
        return Example(_parts(inputs, [number != IGNORE_INDEX for number in target], processor), tags)
    return Example(_parts(inputs, [bool(each) for each in target], processor), None)


def _parts(inputs: Sequence[int], learned: Sequence[bool], processor: Any) -> tuple[Part, ...]:
    groups = groupby(zip(inputs, learned), key=lambda pair: pair[1])
    return tuple(Part(processor.decode([token for token, _ in group]), known) for known, group in groups)


def _class(number: int, recipe: Recipe) -> str:
    return recipe.label_names[number] if recipe.label_names else str(number)


def _size(pixels: Pixels) -> str:
    return f"{pixels.width} x {pixels.height} pixels"
