"""An inspection of a whole job: what would refuse a run, what is private, and the page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tensafe_api.resources.job import TenSafeTrainingJob
from tensorguard.data.unusable import Tally, Unusable
from tensorguard.inspection.inspection import NOTICE, Inspection
from tensorguard.inspection.job import inspect_job

MakeJob = Callable[..., TenSafeTrainingJob]
CLASSES = {"text": "t", "label": "l"}
TEXTS = ["the dog runs", "the cat sleeps well", "ill fever cough", "room one two", "three four five"]


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def good_rows(number: int = 20) -> list[dict[str, Any]]:
    return [{"t": f"{TEXTS[i % 5]} {TEXTS[i // 5 % 5]}", "l": i % 2, "u": i} for i in range(number)]


def test_good_data_are_counted_and_not_refused(make_job: MakeJob, tmp_path: Path) -> None:
    rows = [{**row, "l": ["Ward", "home"][row["l"]]} for row in good_rows()]
    uri = write_rows(tmp_path / "notes.jsonl", rows)
    found = inspect_job(make_job(CLASSES, labels=2, names=["ward", "home"], uri=uri))
    assert found.refusals == () and found.complete
    json_of = found.to_json()
    assert json_of == json.loads(json.dumps(json_of))
    assert next(iter(json_of)) == "notice"
    assert json_of["records"] == json_of["usable"] == json_of["units"] == json_of["trained"] == 20
    assert json_of["unusable"] == []
    assert json_of["labels"] == {"ward": 10, "home": 10}
    assert json_of["recordsWithoutId"] is json_of["ids"] is json_of["evaluation"] is json_of["examples"] is None
    assert json_of["reading"] == f"Reading 1 jsonl file at {uri}"


def test_unusable_records_are_named_with_the_place_of_the_first(make_job: MakeJob, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = good_rows()
    rows[3]["t"] = rows[9]["t"] = " "
    rows[5]["l"] = "clinic"
    uri = write_rows(tmp_path / "notes.jsonl", rows)
    found = inspect_job(make_job(CLASSES, labels=2, uri=uri))
    assert found.to_json()["unusable"] == [
        {"kind": "NoText", "count": 2, "first": f"{uri}, line 4"},
        {"kind": "UnknownLabel", "count": 1, "first": f"{uri}, line 6"},
    ]
    assert (found.records, found.usable, found.units) == (20, 17, 17)
    [refusal] = found.refusals
    assert refusal.startswith("spec.dataset: 2 records have no text (the first: ") and f"{uri}, line 6" in refusal
    assert inspect_job(make_job(CLASSES, labels=2, uri=uri, unusable="Skip")).refusals == ()


def test_refusal_is_that_of_a_run(make_job: MakeJob, tmp_path: Path) -> None:
    rows = [{**row, "u": None} if row["u"] in (4, 7) else row for row in good_rows()]
    uri = write_rows(tmp_path / "notes.jsonl", rows)
    unit = {"kind": "User", "column": "u"}
    found = inspect_job(make_job({"text": "t"}, uri=uri, unit=unit))
    tally = Tally({(Unusable.NO_ID, uri): (2, 0)})
    with pytest.raises(ValueError) as refused:
        tally.check(
            refused={Unusable.NO_ID},
            where="spec.dataset",
            place=lambda file, at: f"{file}, line 5",
            publish_numbers=True,
        )
    assert found.refusals == (str(refused.value),)
    assert [(each.kind, each.count) for each in found.unusable] == [(Unusable.NO_ID, 2)]
    assert found.records_without_id == 2 and found.units == 18
    own = inspect_job(make_job({"text": "t"}, uri=uri, unit={**unit, "missing": "OwnUnit"}))
    assert (own.refusals, own.unusable, own.records_without_id, own.units) == ((), (), 2, 20)


def test_what_was_read_before_a_fault_is_counted(make_job: MakeJob, tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", good_rows())
    (tmp_path / "b.jsonl").write_text('{"t": "the dog", "l": 1}\n[1]\n')
    found = inspect_job(make_job(CLASSES, labels=2, uri=str(tmp_path)))
    assert not found.complete and found.records == found.usable == 20
    assert len(found.refusals) == 1 and "b.jsonl, line 2" in found.refusals[0]
    assert [file.records for file in found.files] == [20, 0]
    assert "read before reading failed" in found.text()


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (None, "spec.dataset.uri: cannot read"),
        ('{"x": 1}\n', "spec.dataset.columns: "),
        ('{"t": ""}\n', "spec.dataset: 1 record has no text (the first: "),
    ],
)
def test_unreadable_data_are_refused(content: str | None, refusal: str, make_job: MakeJob, tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    if content is not None:
        path.write_text(content)
    found = inspect_job(make_job({"text": "t"}, uri=str(path)))
    assert found.refusals[0].startswith(refusal)
    assert (found.usable, found.units, found.records_per_unit) == (0, 0, None)
    assert NOTICE in found.text() and found.html()


def test_data_without_a_usable_record_are_refused(make_job: MakeJob, tmp_path: Path) -> None:
    uri = write_rows(tmp_path / "notes.jsonl", [{"t": ""}])
    found = inspect_job(make_job({"text": "t"}, uri=uri, unusable="Skip"))
    assert len(found.refusals) == 1 and found.refusals[0].startswith("spec.dataset: no record is usable")


def evaluation(path: Path, visibility: str = "Public") -> dict[str, Any]:
    return {"evaluation": {"uri": str(path), "visibility": visibility}}


def test_evaluation_set_is_counted_and_compared(make_job: MakeJob, tmp_path: Path) -> None:
    uri = write_rows(tmp_path / "notes.jsonl", good_rows())
    public = tmp_path / "public.jsonl"
    write_rows(public, [*good_rows(4), *({"t": f"{text} dog", "l": 0} for text in TEXTS * 2), {"t": "", "l": 1}])
    job = make_job(CLASSES, labels=2, uri=uri, unusable="Skip", **evaluation(public))
    found = inspect_job(job)
    assert found.refusals == () and found.evaluation is not None
    each = found.evaluation
    assert (each.records, each.usable, each.compared, each.in_dataset) == (15, 14, 9, 4)
    assert [(one.kind, one.count, one.first) for one in each.unusable] == [(Unusable.NO_TEXT, 1, f"{public}, line 15")]
    refused = inspect_job(make_job(CLASSES, labels=2, uri=uri, **evaluation(public)))
    assert refused.refusals[0].startswith("spec.evaluation: 1 record ")


def test_private_records_as_a_public_set_are_refused(make_job: MakeJob, tmp_path: Path) -> None:
    uri = write_rows(tmp_path / "notes.jsonl", good_rows())
    public = tmp_path / "public.jsonl"
    write_rows(public, good_rows(12))
    found = inspect_job(make_job(CLASSES, labels=2, uri=uri, **evaluation(public)))
    assert [text.partition(":")[0] for text in found.refusals] == ["spec.evaluation.uri"]
    private = inspect_job(make_job(CLASSES, labels=2, uri=uri, **evaluation(public, "Private")))
    assert private.refusals == () and private.evaluation is not None and private.evaluation.compared is None
    (tmp_path / "link.jsonl").symlink_to(uri)
    same = inspect_job(make_job(CLASSES, labels=2, uri=uri, **evaluation(tmp_path / "link.jsonl")))
    assert "is also in spec.dataset" in same.refusals[0]


def test_evaluation_set_that_cannot_be_read_hides_nothing_of_the_data(make_job: MakeJob, tmp_path: Path) -> None:
    uri = write_rows(tmp_path / "notes.jsonl", good_rows())
    found = inspect_job(make_job(CLASSES, labels=2, uri=uri, **evaluation(tmp_path / "none.jsonl")))
    assert found.evaluation is None and found.units == 20
    assert [text.partition(":")[0] for text in found.refusals] == ["spec.evaluation.uri"]


SECRET_TEXTS = ["kowalski", "quincy", "xylophone"]
SECRET_IDS = ["zz-0817", "ZZ0817", "qq 4711", "unknown"]
SECRET_LABEL, SECRET_KEY = "rarediagnosis", "mrs wu"


@pytest.fixture
def secrets(make_job: MakeJob, tmp_path: Path) -> Callable[[bool], Inspection]:
    """Inspects records with words that are nowhere else."""
    rows = [
        {
            "t": f"{SECRET_TEXTS[i % 3]} {SECRET_TEXTS[i // 3 % 3]}",
            "l": SECRET_LABEL if i == 5 else "home",
            "u": SECRET_IDS[i % 4],
            SECRET_KEY: 1,
        }
        for i in range(24)
    ]
    rows[7]["t"] = None
    uri = write_rows(tmp_path / "notes.jsonl", rows)
    unit = {"kind": "User", "column": "u"}
    job = make_job(CLASSES, labels=2, names=["ward", "home"], uri=uri, unit=unit, **evaluation(Path(uri), "Private"))
    return lambda show: inspect_job(job, show_records=show)


def forms(found: Inspection) -> list[str]:
    return [form.casefold() for form in (found.text(), found.html(), json.dumps(found.to_json()), repr(found))]


def test_nothing_of_a_record_is_shown_without_show_records(
    secrets: Callable[[bool], Inspection], capfd: pytest.CaptureFixture[str]
) -> None:
    found = secrets(False)
    ids = [text.casefold() for text in SECRET_IDS if text != "unknown"]  # it is in the description of the kind
    printed = "".join(capfd.readouterr()).casefold()
    for form in (*forms(found), printed):
        assert not [word for word in (*SECRET_TEXTS, SECRET_LABEL, SECRET_KEY, *ids) if word in form]
    assert found.ids is not None
    assert {each.kind: each.ids for each in found.ids.alike} == {"Spelling": 2, "Missing": 1}
    assert found.ids.distinct == 4 and found.unusable


def test_show_records_shows_them(secrets: Callable[[bool], Inspection]) -> None:
    found = secrets(True)
    for form in forms(found)[:3]:
        assert "zz-0817" in form and SECRET_LABEL in form and SECRET_KEY in form
    assert found.examples is not None and len(found.examples) == 3


def test_learned_tokens_are_marked(make_job: MakeJob, tmp_path: Path) -> None:
    uri = write_rows(tmp_path / "notes.jsonl", [{"p": "the dog", "c": "runs well"}] * 5)
    found = inspect_job(make_job({"prompt": "p", "completion": "c"}, uri=uri), show_records=True)
    [example, *_] = found.examples or ()
    assert [(part.text, part.learned) for part in example.parts] == [("the dog", False), ("runs well <end>", True)]
    assert "⟦runs well" in found.text() and "<mark>runs well" in found.html()
    assert len(found.examples or ()) == 3


def test_markup_in_a_record_stays_text(make_job: MakeJob, tmp_path: Path) -> None:
    rows = [{"t": "the dog", "l": f"<script>alert({i})</script>\x1b[2J"} for i in range(3)]
    uri = write_rows(tmp_path / "notes.jsonl", rows)
    found = inspect_job(make_job(CLASSES, labels=2, uri=uri, unusable="Skip"), show_records=True)
    assert "<script" not in found.html() and "&lt;script" in found.html()
    assert "\x1b" not in found.text() and "\x1b" not in found.html()


class _Page(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_page_needs_nothing_else(make_job: MakeJob, tmp_path: Path) -> None:
    rows = [{**row, "u": row["u"] % 7} for row in good_rows(60)]
    uri = write_rows(tmp_path / "notes.jsonl", rows)
    unit = {"kind": "User", "column": "u"}
    page = inspect_job(make_job(CLASSES, labels=2, uri=uri, unit=unit, max_length=8)).html()
    found = _Page(page)
    assert not {"script", "link", "img", "iframe", "object", "a", "form", "use", "image"} & found.tags
    assert not {"src", "href", "xlink:href", "srcset", "action"} & found.attributes
    assert not re.search(r"https?:|url\(|@import", page)
    assert page.count("<svg") == 3 and 'class="limit"' in page
    assert page.index(NOTICE) < page.index("<h1>")


def test_data_in_memory_is_inspected(make_job: MakeJob) -> None:
    rows: list[dict[str, Any]] = good_rows()
    rows[2]["t"] = None
    job = make_job(CLASSES, labels=2, evaluation={"uri": "memory://eval", "visibility": "Public"})
    found = inspect_job(job, train=rows, evaluation=[{"t": "well", "l": 0}])
    assert [(each.count, each.first) for each in found.unusable] == [(1, "index 2")]
    assert found.files == () and found.evaluation is not None and found.evaluation.usable == 1
    assert "(the first: index 2)" in found.refusals[0]
    empty = inspect_job(job, train=[], evaluation=[{"t": "well", "l": 0}])
    assert empty.refusals[0].startswith("train_dataset: it is empty")


def test_errors_of_data_in_memory_quote_no_record(make_job: MakeJob) -> None:
    class Failing(Sequence[Any]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, i: Any) -> Any:
            raise RuntimeError("kowalski")

    found = inspect_job(make_job({"text": "t"}), train=Failing())
    assert found.refusals == ("train_dataset: reading failed (RuntimeError)",)


def test_progress_is_reported(make_job: MakeJob, tmp_path: Path) -> None:
    class Noting:
        def __init__(self) -> None:
            self.stages: list[str] = []
            self.counts: list[tuple[int, int, int]] = []

        def stage(self, sentence: str) -> None:
            self.stages.append(sentence)

        def read(self, records: int, done: int, total: int) -> None:
            self.counts.append((records, done, total))

    sizes = []
    for name in ("a", "b"):
        sizes.append(Path(write_rows(tmp_path / f"{name}.jsonl", good_rows())).stat().st_size)
    watcher = Noting()
    inspect_job(make_job({"text": "t"}, uri=str(tmp_path)), watcher=watcher)
    assert watcher.stages == ["Loading the tokenizer", f"Reading 2 jsonl files at {tmp_path}"]
    assert watcher.counts == [(20, 0, sum(sizes)), (40, sizes[0], sum(sizes))]
