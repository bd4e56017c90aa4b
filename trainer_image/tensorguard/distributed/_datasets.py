"""The column names and the length of a data set in memory, or its URI if it is not.

In comes whatever `tensorguard.data.read.from_memory` takes: a Ray, Hugging Face or torch data set, a pandas DataFrame,
or a list; or the URI of files, which only the workers read. Only the names of the columns are read, never a value.
`_manifests` uses the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from tensafe_api.tasks import TASKS, shapes_by_size
from tensorguard.data.records import MEMORY_KINDS, fields_of, is_data_frame, is_data_loader
from tensorguard.distributed._errors import ConfigurationError


def check_kind(dataset: Any, where: str) -> None:
    """Refuse what looks like a data set and is none. `where`: the argument of `fit`.

    Raises:
        ConfigurationError: `dataset` is a dict of splits, or a DataLoader.
    """
    if is_data_loader(dataset):
        raise ConfigurationError(
            f"{where}: is a DataLoader, which makes batches of its own: pass its data set, because each step draws a "
            "random batch"
        )
    if isinstance(dataset, bytes | Mapping):
        raise ConfigurationError(
            f"{where}: must be {MEMORY_KINDS}, or a URI, not {type(dataset).__name__}; if it is a dict of splits, "
            "pass one of them"
        )


def uri_of(dataset: Any) -> str | None:
    """The URI or absolute path of a data set that is not in memory; None for one that is."""
    if not isinstance(dataset, str | PurePath):
        return None
    place = str(dataset)
    return place if "://" in place else str(Path(place).expanduser().absolute())


def in_memory(dataset: Any) -> Any:
    """`dataset`, or None if it is not in memory, but a URI or path."""
    return None if uri_of(dataset) else dataset


def columns_of(dataset: Any, task: str | None) -> dict[str, str]:
    """Map each role to the column of that name.

    The roles are those of a shape in `tensafe_api.tasks`, such as prompt and completion.

    Raises:
        ConfigurationError: if no columns have these names.
    """
    if uri_of(dataset):
        raise ConfigurationError(
            f"columns: missing, and train_dataset is {dataset}, which only the workers read: write the role of each "
            "column, such as columns={'text': 'note', 'label': 'department'}"
        )
    names = _names(dataset)
    contract = TASKS.get(task or "")
    for shape in shapes_by_size():
        if (contract is None or shape in contract.shapes) and set(shape.roles) <= set(names):
            return {role: role for role in shape.roles}
    raise ConfigurationError(
        f"columns: missing, and train_dataset has {', '.join(map(repr, names[:12])) or 'no columns'}: write the "
        "role of each, such as columns={'prompt': 'question', 'completion': 'answer'}, or {'text': ..., 'label': ...}"
    )


def length_of(dataset: Any) -> int:
    """The number of records.

    Raises:
        ConfigurationError: if the data set does not know it.
    """
    if uri_of(dataset):
        raise ConfigurationError(
            f"unit_at_least: missing, and train_dataset is {dataset}, which only the workers read: write a public "
            "lower bound of the number of its records"
        )
    if _is_ray(dataset):
        _silence_ray()
        return int(dataset.count())
    try:
        return len(dataset)
    except TypeError:
        raise ConfigurationError(
            f"unit_at_least: missing, and train_dataset ({type(dataset).__name__}) has no length: "
            "write a public lower bound of the number of its records"
        ) from None


def _names(dataset: Any) -> list[str]:
    if _is_ray(dataset):
        _silence_ray()
        try:
            return list(dataset.columns() or ())
        except Exception:  # Ray cannot unite the types of its blocks, and its message names columns
            return []
    if is_data_frame(dataset):
        return list(map(str, dataset.columns))
    names = getattr(dataset, "column_names", None)
    if isinstance(names, list):
        return names
    if hasattr(dataset, "__arrow_c_stream__"):  # a DataFrame of polars, for example
        import pyarrow as pa

        return list(pa.table(dataset).column_names)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ConfigurationError(
            f"columns: missing, and train_dataset ({type(dataset).__name__}) does not list its columns: write "
            "the role of each, such as columns={'text': 'note', 'label': 'department'}"
        )
    return _names_in(dataset)


def _names_in(records: Sequence[Any]) -> list[str]:
    if not len(records):
        raise ConfigurationError("train_dataset: it is empty: pass at least one record")
    fields = fields_of(records[0])
    if fields is None:
        raise ConfigurationError(f"train_dataset: must be {MEMORY_KINDS}, and it holds {type(records[0]).__name__}")
    if "0" in fields and not isinstance(records[0], Mapping):
        raise ConfigurationError(
            f"columns: missing, and the records of train_dataset are {type(records[0]).__name__}s of {len(fields)}: "
            "write the position of each role, such as columns={'text': 0, 'label': 1}"
        )
    return list(fields)


def _is_ray(dataset: Any) -> bool:
    return type(dataset).__module__.startswith("ray.data")


def _silence_ray() -> None:
    from tensorguard.data.read import silence_ray_data

    silence_ray_data()
