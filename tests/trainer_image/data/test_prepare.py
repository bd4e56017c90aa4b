"""Preparation on a real Ray cluster: from files and from memory to shards, with a crash, without a trace in logs."""

import json
import os
import pickle
from collections import Counter
from pathlib import Path

import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch

from tensorguard.data import read as reading
from tensorguard.data.errors import DataError, UnreadableDataError
from tensorguard.data.raw_table import Wanted
from tensorguard.data.read import Reading, _raw_block, from_memory, read
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Shard
from tensorguard.data.shards import prepare, prepare_public
from tensorguard.data.unusable import Unusable
from tests.support.trainer.tokenising import tokeniser

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]
KEY = b"a secret key of thirty-two bytes"


@pytest.fixture
def spec(make_spec):
    return make_spec({"text": "text", "label": "label"}, labels=3, unusable="Skip")


@pytest.fixture
def key_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "job.key"
    path.write_bytes(KEY)
    return path


@pytest.fixture
def tokenizer(make_tokenizer):
    return make_tokenizer()


@pytest.fixture
def source(tmp_path):
    """Forty records in two files: text of the words a to d, labels 0 to 3, of which 3 is out of range."""
    folder = tmp_path / "source"
    folder.mkdir()
    rows = [(" ".join("abcd"[int(d)] for d in f"{i % 4}{i // 4 % 4}{i % 3}"), i % 4) for i in range(40)]
    for number in range(2):
        lines = [f"{text},{label}" for text, label in rows[number::2]]
        (folder / f"{number}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return folder


def rows_in(tokenizer, *paths):
    shards = [Shard.open(path) for path in paths]
    return [(tokenizer.decode(s.tokens(r)), s.label(r)) for s in shards for u in range(len(s)) for r in s.records(u)]


def rows_of(source):
    lines = [line for path in sorted(source.iterdir()) for line in path.read_text().splitlines()[1:]]
    return [(line.split(",")[0], int(line.split(",")[1])) for line in lines]


def test_files_become_shards_without_a_trace_in_logs(source, spec, tokenizer, key_file, tmp_path):
    directory = tmp_path / "shards"
    made = [
        prepare(
            read(uri, Wanted.of(spec), base_dir=tmp_path),
            spec,
            tokeniser(tokenizer, Recipe.from_spec(spec)),
            workers=3,
            key_file=key_file,
            directory=directory,
        )
        for uri in ("source", f"file://{source}/*.csv")
    ]
    assert made[0] == made[1]
    assert Counter(rows_in(tokenizer, *made[0].shards)) == Counter((t, n) for t, n in rows_of(source) if n < 3)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in directory.iterdir()} == {f"shard-00{i}-of-003.arrow" for i in range(3)}
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert not list(session.glob("logs/ray-data*"))

    reported: list[str] = []
    public = prepare_public(
        read("source", Wanted.for_evaluation(spec), base_dir=tmp_path, report=reported.append),
        spec,
        tokeniser(tokenizer, Recipe.from_spec(spec)),
        directory=directory,
    )
    [sentence] = reported
    assert sentence.startswith("Reading ") and sentence.endswith(f" csv files at {source}")
    assert rows_in(tokenizer, public) == [(t, n) for t, n in rows_of(source) if n < 3]


def test_job_key_does_not_travel_through_ray(source, spec, tokenizer, key_file, tmp_path, monkeypatch):
    """Ray pickles the arguments of tasks, and the functions of Ray Data, with this function."""
    pickled = []

    def recording(*arguments, dumps=ray.cloudpickle.dumps, **options):
        pickled.append(dumps(*arguments, **options))
        return pickled[-1]

    monkeypatch.setattr(ray.cloudpickle, "dumps", recording)
    tokenise = tokeniser(tokenizer, Recipe.from_spec(spec))
    prepare(
        read(str(source), Wanted.of(spec)), spec, tokenise, workers=2, key_file=key_file, directory=tmp_path / "shards"
    )
    sent = b"".join(pickled)
    assert key_file.name.encode() in sent
    assert KEY not in sent and KEY.hex().encode() not in sent


def test_compressed_files_become_the_same_shards(source, spec, tokenizer, key_file, tmp_path):
    tokenise = tokeniser(tokenizer, Recipe.from_spec(spec))
    archives = tmp_path / "archives"
    archives.mkdir()
    for path, (ending, codec) in zip(sorted(source.iterdir()), ((".gz", "gzip"), (".zst", "zstd"))):
        (archives / f"{path.name}{ending}").write_bytes(pa.compress(path.read_bytes(), codec, asbytes=True))
    made = [
        prepare(
            read(str(uri), Wanted.of(spec)),
            spec,
            tokenise,
            workers=2,
            key_file=key_file,
            directory=tmp_path / uri.name,
        )
        for uri in (source, archives)
    ]
    assert made[0].digest == made[1].digest
    for plain, compressed in zip(made[0].shards, made[1].shards):
        assert plain.read_bytes() == compressed.read_bytes()

    archive = next(archives.glob("*.zst"))
    archive.write_bytes(archive.read_bytes()[:-2])
    with pytest.raises(UnreadableDataError, match=r"1\.csv\.zst: the \.zst archive is truncated"):
        prepare(
            read(str(archives), Wanted.of(spec)),
            spec,
            tokenise,
            workers=2,
            key_file=key_file,
            directory=tmp_path / "no",
        )


def test_process_that_dies_midway_neither_duplicates_nor_loses_a_record(spec, tokenizer, key_file, tmp_path):
    directory = tmp_path / "shards"
    died = tmp_path / "died"

    def die_once(batch):
        parts = list(directory.glob("parts-dataset/*"))
        if parts and not died.exists():
            died.write_text(str(len(parts)))
            os._exit(1)
        return _raw_block(batch, Wanted.of(spec))

    context = ray.data.DataContext.get_current().copy()
    context.target_max_block_size = 1000  # several blocks, hence parts, from one task
    with ray.data.DataContext.current(context):
        texts = ["a " * i for i in range(1, 30)] * 10
        table = pa.table({"text": texts, "label": [1] * len(texts)})
        tables = ray.data.from_arrow(table).map_batches(die_once, batch_size=10, batch_format="pyarrow")
        made = prepare(
            Reading(tables, lambda file, at: ""),
            spec,
            tokeniser(tokenizer, Recipe.from_spec(spec)),
            workers=2,
            key_file=key_file,
            directory=directory,
        )
    assert int(died.read_text()) > 0
    assert Counter(text for text, _ in rows_in(tokenizer, *made.shards)) == Counter(text.strip() for text in texts)


def test_every_kind_of_data_in_memory_gives_the_same_shards(spec, tokenizer, key_file, tmp_path):
    from datasets import Dataset

    records = [{"text": f"{a} {b}", "label": i, "id": i} for i, (a, b) in enumerate(["ab", "cd", "ef"])]

    class Torch(torch.utils.data.Dataset):
        def __len__(self):
            return len(records)

        def __getitem__(self, i):
            return {**records[i], "label": torch.tensor(records[i]["label"])}

    wanted = Wanted.of(spec)
    in_memory = (records, iter(records), Torch(), pandas.DataFrame(records), Dataset.from_list(records))
    for data in (*in_memory, ray.data.from_items(records)):
        dataset = from_memory(data, wanted)
        made = prepare(
            dataset,
            spec,
            tokeniser(tokenizer, Recipe.from_spec(spec)),
            workers=2,
            key_file=key_file,
            directory=tmp_path,
        )
        assert sorted(rows_in(tokenizer, *made.shards)) == [("a b", 0), ("c d", 1), ("e f", 2)]

    for data, sentence in (
        ({"train": records}, "not dict"),
        ([1, 2], "the item at index 0 is of type int"),
        (7, "not int"),
        ([], "is empty"),
        (Dataset.from_dict({"text": [], "label": []}), "is empty"),
        ([{"texts": "a", "label": 1}], "did you mean 'texts'"),
        (Dataset.from_dict({"text": [1], "label": [1]}), "it needs strings"),
        (ray.data.from_items([{"texts": 1, "label": 1}]), "did you mean 'texts'"),
    ):
        with pytest.raises(DataError, match=rf"^train_dataset.*{sentence}"):
            from_memory(data, wanted)


def test_public_set_that_is_training_data_is_refused(make_spec, tokenizer, key_file, tmp_path):
    """By content, whatever the users, the order and the types; nothing is left on the disk but the shards' folder."""
    spec = make_spec({"text": "text", "label": "label"}, labels=3, unit={"kind": "User", "column": "id"})
    tokenise = tokeniser(tokenizer, Recipe.from_spec(spec))
    private = [{"text": "abcdef"[i % 6] + " a" * (i // 6), "label": i % 3, "id": i % 7} for i in range(60)]
    (tmp_path / "private.jsonl").write_text("".join(json.dumps(row) + "\n" for row in private))
    others = [{"text": f"one two{' three' * i}", "label": 1} for i in range(1, 30)]

    def prepared(public):
        path = prepare_public(from_memory(public, Wanted.for_evaluation(spec)), spec, tokenise, directory=tmp_path)
        dataset = read(str(tmp_path / "private.jsonl"), Wanted.of(spec))
        common = {"workers": 2, "key_file": key_file, "directory": tmp_path}
        return prepare(dataset, spec, tokenise, **common, public=path, public_name="eval_dataset")

    with pytest.raises(DataError, match=r"^eval_dataset: most of its records are also in spec\.dataset"):
        prepared([{name: row[name] for name in ("text", "label")} for row in private[::-2]])
    assert not list(tmp_path.glob("parts-*"))
    assert prepared([*others, *private[:20]]) == prepared(others)


def test_users_become_units(make_spec, tokenizer, key_file, tmp_path):
    unit = {"kind": "User", "column": "id", "maxExamplesPerUnit": 2}
    spec = make_spec({"prompt": "p", "completion": "c"}, unit=unit)
    records = [{"p": "a", "c": "b " * (i + 1), "id": i % 5} for i in range(30)]
    made = prepare(
        from_memory(records, Wanted.of(spec)),
        spec,
        tokeniser(tokenizer, Recipe.from_spec(spec)),
        workers=2,
        key_file=key_file,
        directory=tmp_path,
    )
    shards = [Shard.open(path) for path in made.shards]
    assert sum(map(len, shards)) == 5
    assert all(len(shard.records(unit)) == 2 for shard in shards for unit in range(len(shard)))


def test_refusals_name_the_field_and_reveal_no_record(source, spec, make_spec, tokenizer, key_file, tmp_path):
    def sentence(wanted=None, spec=spec, uri="source"):
        with pytest.raises(DataError) as error:
            dataset = read(uri, wanted or Wanted.of(spec), base_dir=tmp_path)
            prepare(
                dataset,
                spec,
                tokeniser(tokenizer, Recipe.from_spec(spec)),
                workers=2,
                key_file=key_file,
                directory=tmp_path / "shards",
            )
        assert "\n" not in str(error.value) and "secret" not in str(error.value)
        assert isinstance(pickle.loads(pickle.dumps(error.value)), DataError)
        assert not (tmp_path / "shards" / "parts-dataset").exists()
        return str(error.value)

    assert "no such file" in sentence(uri="elsewhere.csv")
    assert "did you mean 'text'" in sentence(Wanted({"text": "txt", "label": "label"}))
    evaluation = Wanted({"text": "text"}, where="spec.evaluation")
    assert sentence(evaluation, uri="pvc://claim/x").startswith("spec.evaluation.uri: ")
    for path in source.iterdir():
        path.write_text("text,label\nsecret,secret\n,1\nb,\n")
    assert sentence().startswith("spec.dataset: no record is usable: ")
    strict = make_spec({"text": "text", "label": "label"}, labels=3)
    found, *_ = sentence(spec=strict).partition(": correct the data, or set spec.dataset.unusable to Skip")
    assert found == "spec.dataset: " + "; ".join(
        f"2 records have {kind.description} (the first: {source}/0.csv, line {line})"
        for kind, line in ((Unusable.NO_TEXT, 3), (Unusable.NO_LABEL, 4), (Unusable.UNKNOWN_LABEL, 2))
    )
    (source / "1.csv").write_text("other,label\nmy secret,1\n")
    assert "1.csv has no column 'text'" in sentence()
    (source / "1.csv").write_text("text,label\na,1\nmy secret, and more,1\n")
    assert "1.csv, line 3: the row has 3 values" in sentence()


def test_record_that_cannot_be_used_in_memory_is_named_by_its_index(make_spec, tokenizer, key_file, tmp_path):
    spec = make_spec({"text": "text", "label": "label"}, labels=3)
    records = [{"text": "a", "label": 1}, {"text": "b", "label": 7}, {"text": "secret", "label": None}]
    common = {"workers": 2, "key_file": key_file, "directory": tmp_path}
    for data, places in ((records, ("index 1", "index 2")), (ray.data.from_items(records), ("a record",) * 2)):
        with pytest.raises(DataError, match=r"^spec\.dataset: 1 record has no label .*; 1 record has a label") as error:
            prepare(from_memory(data, Wanted.of(spec)), spec, tokeniser(tokenizer, Recipe.from_spec(spec)), **common)
        assert all(f"(the first: {place}" in str(error.value) for place in places)
    with pytest.raises(DataError, match=r"^spec\.evaluation: 1 record has no label .*; 1 record has a label"):
        dataset = from_memory(records, Wanted.for_evaluation(spec))
        prepare_public(dataset, spec, tokeniser(tokenizer, Recipe.from_spec(spec)), directory=tmp_path)


def test_words_and_tags_of_every_form_give_the_same_tokens(make_spec, tokenizer, tmp_path):
    from datasets import ClassLabel, Dataset, Features, Sequence, Value

    names = ["O", "B-x", "I-x", "B-y"]
    spec = make_spec({"tokens": "words", "tags": "names"}, labels=3, label_names=names[:3], unusable="Skip")
    records = [(["a", "b", "c"], [0, 1, 2]), (["d"], [1]), (["e"], [3])]
    rows = [{"words": words, "names": [names[tag] for tag in tags]} for words, tags in records]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    lines = [f"{row['words']}\t{row['names']}".replace("'", '"') for row in rows]
    (tmp_path / "rows.tsv").write_text("\n".join(["words\tnames", *lines, ""]))
    numbers = [{"words": words, "names": tags} for words, tags in records]
    features = Features({"words": Sequence(Value("string")), "names": Sequence(ClassLabel(names=names))})
    sources = {
        **{name: read(f"rows.{name}", Wanted.of(spec), base_dir=tmp_path) for name in ("jsonl", "parquet", "tsv")},
        "list": from_memory(rows, Wanted.of(spec)),
        "hugging face": from_memory(Dataset.from_list(rows), Wanted.of(spec)),
        "classes of hugging face": from_memory(Dataset.from_list(numbers, features), Wanted.of(spec)),
    }
    for name, dataset in sources.items():
        path = prepare_public(dataset, spec, tokeniser(tokenizer, Recipe.from_spec(spec)), directory=tmp_path / name)
        shard = Shard.open(path)
        found = [(tokenizer.decode(shard.tokens(r)), shard.labels(r).tolist()) for r in range(len(shard))]
        assert found == [("a b c", [0, 1, 2]), ("d", [1])], name


def test_file_of_other_types_changes_no_record_of_another_file(make_spec, tokenizer, key_file, tmp_path, monkeypatch):
    """Where one task reads many files, Ray would join their tables, and give them all one type."""
    unit = {"kind": "User", "column": "id", "missing": "OwnUnit"}
    spec = make_spec({"text": "text", "label": "label"}, labels=3, unit=unit, unusable="Skip")
    tokenise = tokeniser(tokenizer, Recipe.from_spec(spec))
    ids = ([7, 8], pa.array([7.0, 9.0]), ["7", "x"], pa.array(["7", "y"]).dictionary_encode(), pa.nulls(2))
    labels = ([0, 1], [0.0, 0.5], ["0", "1"], [0, 2], pa.array([1, 2], pa.int8()))
    folder = tmp_path / "files"
    folder.mkdir()
    for number, (users, values) in enumerate(zip(ids, labels)):
        table = pa.table({"text": [f"{word} a" for word in "bc"], "label": values, "id": users})
        pq.write_table(table, folder / f"{number}.parquet")

    def prepared(tasks):
        monkeypatch.setattr(reading, "MAX_TASKS", tasks)
        dataset = read(str(folder), Wanted.of(spec))
        return prepare(dataset, spec, tokenise, workers=2, key_file=key_file, directory=tmp_path / f"{tasks}")

    apart, together = prepared(512), prepared(1)
    assert together.digest == apart.digest
    assert [path.read_bytes() for path in together.shards] == [path.read_bytes() for path in apart.shards]
    assert len(rows_in(tokenizer, *apart.shards)) == 9, "all but the label 0.5"


@pytest.fixture
def rows_of_users(make_spec, tokenizer, key_file, tmp_path_factory):
    """The rows that one worker gets of a Ray data set with the columns text, label and id, sorted. `id` is the user."""
    unit = {"kind": "User", "column": "id", "missing": "OwnUnit"}
    spec = make_spec({"text": "text", "label": "label"}, labels=3, unit=unit, unusable="Skip")

    def rows(dataset):
        made = prepare(
            from_memory(dataset, Wanted.of(spec)),
            spec,
            tokeniser(tokenizer, Recipe.from_spec(spec)),
            workers=1,
            key_file=key_file,
            directory=tmp_path_factory.mktemp("shards"),
        )
        return sorted(rows_in(tokenizer, *made.shards))

    return rows


def test_data_set_of_ray_whose_blocks_lack_columns_is_read(rows_of_users):
    """What a block lacks is null: a record without a user is a unit, and one without another field cannot be used."""
    blocks = [
        {"text": ["a", "b"], "label": [0, 1], "id": [1, 2]},
        {"text": ["c"], "label": [2]},
        {"text": ["d"], "id": [3]},
    ]
    dataset = ray.data.from_arrow([pa.table(block) for block in blocks])
    assert rows_of_users(dataset) == [("a", 0), ("b", 1), ("c", 2)]


def test_record_with_a_user_does_not_decide_on_records_without_one(rows_of_users):
    """Ray makes the users of a block null where one record has one."""
    others = [{"text": "a b"[: 1 + 2 * (i % 2)], "label": i % 3} for i in range(6)]
    first = ray.data.from_items([{"text": "f", "label": 0, "id": 7}])
    without = rows_of_users(first.union(ray.data.from_items(others)))
    record = {"text": "e", "label": 2, "id": 8}
    assert len(without) == 7
    assert rows_of_users(first.union(ray.data.from_items([*others, record]))) == sorted([*without, ("e", 2)])


@pytest.mark.parametrize("first", [{"text": "x"}, {"label": 1.5, "id": 1}])
def test_first_block_does_not_decide_whether_a_data_set_is_refused(rows_of_users, first):
    """The schema of a lazy data set is that of its first block."""
    rest = [{"text": text, "label": 1, "id": text} for text in "abc"]
    dataset = ray.data.from_items([[first], rest], override_num_blocks=2).flat_map(lambda row: row["item"])
    assert rows_of_users(dataset) == [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"text": ["c"], "label": [2], "id": [{"number": 7}]}, r"column 'id' \(user\) is of type struct"),
        ({"text": ["c"], "label": [2], "id": [7.5]}, "'id' holds a number with a fraction"),
        ({"text": [["d"]], "label": [1], "id": ["x"]}, r"column 'text' \(text\) is of type list"),
        ({"text": [True], "label": [1], "id": [1]}, r"column 'text' \(text\) is of type bool"),
    ],
)
def test_types_of_each_block_are_checked(rows_of_users, block, sentence):
    """Ray cannot unite the types of these blocks, so its schema shows the first one alone."""
    first = {"text": ["a", "b"], "label": [0, 1], "id": ["x", "y"]}
    with pytest.raises(DataError, match=rf"^train_dataset: {sentence}"):
        rows_of_users(ray.data.from_arrow([pa.table(first), pa.table(block)]))
