"""An inspection as text for a terminal: tables of aligned columns, and bars. In: an `Inspection`. Out: lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tensafe_api.sanitize import clean
from tensorguard.inspection.distribution import Distribution
from tensorguard.inspection.inspection import Example, File, Inspection, Suggestion, UnusableRecords

BAR = 40
"""The longest bar, in characters."""
MAX_ROWS = 20
"""Longer tables are cut; the JSON is complete."""
LEARNED = "⟦", "⟧"
"""What encloses learned tokens."""
SUGGESTIONS_NOTE = (
    "A manifest is published, and no ε covers these values: they are rounded, and a public figure is better."
)
Row = Sequence[str]


def text_of(found: Inspection, *, refusals: bool = True) -> str:
    """The inspection as text, with an end of line at the end. `refusals`: whether they are in it."""
    blocks = [
        [found.notice],
        [f"{found.job}: {found.reading or 'the data set cannot be read'}"],
        _titled("Records", _aligned(record_rows(found))),
        _titled("Unusable records", _aligned(unusable_rows(found.unusable))),
        _titled("Records of a unit", _per_unit(found)),
        _titled("Labels", _labels(found)),
        _titled("Lengths in tokens, before records are cut", _lengths(found)),
        _titled("Ids that look alike", _aligned(alike_rows(found))),
        _titled("Files", _aligned(_cut([file_row(file) for file in found.files]))),
        _titled("Evaluation set", _aligned(evaluation_rows(found))),
        _titled("Examples", _examples(found.examples or ())),
        _titled("Suggestions", _suggestions(found.suggestions)),
        _titled("A run would be refused", found.refusals if refusals else ()),
    ]
    return "\n\n".join("\n".join(map(clean, block)) for block in blocks if block) + "\n"


def record_rows(found: Inspection) -> list[Row]:
    """The counts of records and units: a name, a number and a remark."""
    unit, by_user = found.unit, found.unit.kind == "User"
    rows = [("records", f"{found.records:,}", "read" if found.complete else "read before reading failed")]
    rows.append(("usable", f"{found.usable:,}", ""))
    if found.left_out:
        rows.append(("left out", f"{found.left_out:,}", "longer than maxLength (overLength: Drop)"))
    if found.records_without_id:
        what = "each is a unit by itself" if unit.missing == "OwnUnit" else "unusable"
        rows.append(
            ("without an id", f"{found.records_without_id:,}", f"{what} (unit.missing: {unit.missing or 'Refuse'})")
        )
    alone = found.records_without_id if by_user and unit.missing == "OwnUnit" else 0
    units = f"users of column {unit.column}" if by_user else "each record is one"
    rows.append(("units", f"{found.units:,}", f"{units}, and records without an id" if alone else units))
    limit = (
        f"at most {unit.max_examples_per_unit:,} of a unit (maxExamplesPerUnit)" if unit.max_examples_per_unit else ""
    )
    rows.append(("trained", f"{found.trained:,}", limit))
    if found.duplicates.records:
        times = f"stand several times, with {found.duplicates.copies:,} copies"
        rows.append(
            (
                "equal records",
                f"{found.duplicates.records:,}",
                times if by_user else f"{times}: each is a unit by itself",
            )
        )
    return list(rows)


def unusable_rows(unusable: Iterable[UnusableRecords]) -> list[Row]:
    """Kind, number, meaning and first place."""
    return [
        (each.kind.value, f"{each.count:,}", each.kind.description, f"the first: {each.first}") for each in unusable
    ]


def alike_rows(found: Inspection) -> list[Row]:
    """Kind, number of ids, meaning, and ids where they may be shown."""
    return [
        (
            each.kind,
            f"{each.ids:,} of {found.ids.distinct:,} ids"
            + ("" if each.records is None else f" ({each.records:,} records)"),
            each.description,
            ", ".join(each.examples or ()),
        )
        for each in (found.ids.alike if found.ids else ())
        if found.ids
    ]


def file_row(file: File) -> Row:
    """Path, size, records, encoding, columns, and the file of which it is a copy."""
    columns = [
        " ".join(filter(None, (each.name, each.type and f"({each.type})", each.role and f"= {each.role}")))
        for each in file.columns
    ]
    if file.other_columns:
        columns.append(f"and {file.other_columns:,} more (--show-records)")
    same = f"same records as {file.same_records_as}" if file.same_records_as else ""
    what = " ".join(filter(None, (file.format, file.encoding)))
    return file.path, f"{file.records:,} records", f"{file.bytes:,} bytes", what, ", ".join(columns), same


def evaluation_rows(found: Inspection) -> list[Row]:
    """The counts of the evaluation set: a name, a number and a remark."""
    each = found.evaluation
    if each is None:
        return []
    rows = [("records", f"{each.records:,}", each.reading), ("usable", f"{each.usable:,}", "")]
    if each.left_out:
        rows.append(("left out", f"{each.left_out:,}", "longer than maxLength (overLength: Drop)"))
    rows += [(kind, count, f"{meaning} ({first})") for kind, count, meaning, first in unusable_rows(each.unusable)]
    if each.compared is not None:
        rows.append(("also in the data set", f"{each.in_dataset:,}", f"of {each.compared:,} different records"))
    return list(rows)


def length_notes(found: Inspection) -> list[str]:
    """Sentences on the records that are cut."""
    lengths = found.lengths
    if lengths is None or lengths.tokens is None:
        return []
    total = sum(each.count for each in lengths.tokens.histogram)
    share = f"{100 * lengths.cut / total:.1f} %"
    notes = [f"maxLength is {lengths.max_length:,}: {lengths.cut:,} of {total:,} records ({share}) are longer"]
    if lengths.prompts_cut:
        notes.append(
            f"the prompts of {lengths.prompts_cut:,} records are cut, so that something of the completion fits"
        )
    if lengths.tokens.max >= lengths.limit:
        notes.append(f"longer texts count as {lengths.limit:,} tokens")
    return notes


def suggestion_text(each: Suggestion) -> str:
    """The field, the value, and why."""
    return f"{each.field}: {each.value} instead of {each.now}: {each.reason}"


def other_labels_text(found: Inspection) -> str:
    """A sentence on labels that are no class; empty without any."""
    others = found.other_labels
    if others is None or not others.records:
        return ""
    texts = (
        "" if others.texts is None else ": " + ", ".join(f"{text!r} {count:,}" for text, count in others.texts.items())
    )
    return f"{others.records:,} labels are no class, of {others.distinct:,} different texts{texts}"


def _titled(title: str, lines: Iterable[str]) -> list[str]:
    lines = list(lines)
    return [title, *(f"  {line}" for line in lines)] if lines else []


def _aligned(rows: Sequence[Row]) -> Iterator[str]:
    """Columns as wide as their widest cell; numbers are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = (
            cell.rjust(width) if cell.replace(",", "").isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths)
        )
        yield "  ".join(cells).rstrip()


def _cut(rows: list[Row]) -> list[Row]:
    if len(rows) <= MAX_ROWS:
        return rows
    return [*rows[:MAX_ROWS], (f"and {len(rows) - MAX_ROWS:,} more", *[""] * (len(rows[0]) - 1))]


def _quantiles(found: Distribution | None) -> list[str]:
    if found is None:
        return []
    names = ("min", "p25", "median", "p75", "p90", "p99", "max")
    return ["   ".join(f"{name} {getattr(found, name):,}" for name in names) + f"   mean {found.mean:.1f}"]


def _bars(found: Distribution | None, mark: int | None = None) -> list[str]:
    """A line for each bin. The bin that has `mark` is marked."""
    if found is None or len(found.histogram) < 2:
        return []
    bars = _bars_of({each.label: each.count for each in found.histogram})
    marks = [" ◂ maxLength" if mark is not None and each.first <= mark <= each.last else "" for each in found.histogram]
    return [bar + text for bar, text in zip(bars, marks)]


def _bars_of(counts: Mapping[str, int]) -> list[str]:
    most = max(counts.values()) or 1
    bars = {name: "█" * round(BAR * count / most) or ("▏" if count else "") for name, count in counts.items()}
    wide, digits = max(map(len, counts)), len(f"{most:,}")
    return [f"{name:>{wide}}  {count:>{digits},}  {bars[name]}".rstrip() for name, count in counts.items()]


def _per_unit(found: Inspection) -> list[str]:
    if found.unit.kind == "Example":
        return []
    return [*_quantiles(found.records_per_unit), *_bars(found.records_per_unit)]


def _labels(found: Inspection) -> list[str]:
    labels = (found.usable and found.labels) or {}
    shown = dict(sorted(labels.items(), key=lambda item: -item[1])[:MAX_ROWS]) if len(labels) > MAX_ROWS else labels
    more = [f"and {len(labels) - MAX_ROWS:,} more classes"] if len(labels) > MAX_ROWS else []
    return [*(_bars_of(shown) if shown else []), *more, *filter(None, [other_labels_text(found)])]


def _lengths(found: Inspection) -> list[str]:
    lengths = found.lengths
    if lengths is None or lengths.tokens is None:
        return []
    return [*_quantiles(lengths.tokens), *length_notes(found), *_bars(lengths.tokens, lengths.max_length)]


def _suggestions(suggestions: Sequence[Suggestion]) -> list[str]:
    if not suggestions:
        return []
    return [*map(suggestion_text, suggestions), SUGGESTIONS_NOTE]


def _examples(examples: Sequence[Example]) -> list[str]:
    lines = []
    for number, example in enumerate(examples, start=1):
        begin, end = LEARNED
        text = "".join(f"{begin}{part.text}{end}" if part.learned else part.text for part in example.parts)
        lines.append(f"{number}. {text}" + ("" if example.label is None else f"  → {example.label}"))
    return [f"(learned tokens are in {begin} {end})", *lines] if lines else []
