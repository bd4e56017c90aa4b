"""Partitioning without Ray: keys, splitting and merging, in every order of rows and with any other records."""

import enum
import ipaddress
import json
import uuid
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.data.extensions import ArrowPythonObjectArray, ArrowTensorArray, ArrowVariableShapedTensorArray

from e2e.platform.trainer.tokenising import tokeniser
from tensorguard.data import keys
from tensorguard.data.partition import merge, split_by_unit
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Shard, Target, write
from tensorguard.data.tokenise import Example, Tokeniser

KEY = b"0123456789abcdef"
WORKERS = 3
COLUMNS = {"text": "t", "user": "u"}

texts = st.text("abc", min_size=1, max_size=3)
users = st.sampled_from(["1", "2", "3", "4", None])
records = st.lists(st.tuples(texts, users), max_size=12)


def letters(values):
    """A fake tokenizer: one token for each letter, and None for a text with a "z"."""
    return [None if "z" in t else Example([ord(c) for c in t], [1] * len(t)) for t in values["text"]]


def split(rows, workers=WORKERS, columns=COLUMNS, key=KEY):
    data = {"t": [t for t, _ in rows], "u": [u for _, u in rows]}
    table = pa.table({name: pa.array(values, pa.string()) for name, values in data.items()})
    return split_by_unit(
        table, columns=columns, tokenise=Tokeniser(letters, Target.LEARNED_TOKENS), key=key, workers=workers
    )


def shards(rows, limit=None, batches=1, **options):
    """Each worker's units after a complete preparation, each a tuple of its records' texts; and the digest."""
    parts = [split(rows[i::batches], **options) for i in range(batches)]
    found = []
    for worker in range(len(parts[0].tables)):
        shard = Shard(merge([part.tables[worker] for part in parts], limit))
        found.append([tuple("".join(map(chr, shard.tokens(r))) for r in shard.records(u)) for u in range(len(shard))])
    return found, keys.dataset_digest(options.get("key", KEY), [part.total for part in parts])


@given(records, st.randoms(), st.integers(1, 4))
@settings(max_examples=60)
def test_shards_do_not_depend_on_the_order_of_rows_or_on_batches(rows, random, batches):
    shuffled = random.sample(rows, len(rows))
    assert shards(shuffled, limit=2, batches=batches) == shards(rows, limit=2)


@pytest.mark.parametrize(
    "arrays",
    [
        ArrowTensorArray.from_numpy(np.array([[0, 1], [1, 1]])),
        ArrowVariableShapedTensorArray.from_numpy(np.array([np.array([0, 1]), np.array([1, 1])], dtype=object)),
    ],
    ids=["of-one-length", "of-any-length"],
)
def test_columns_of_ray_arrays_hold_the_same_records_as_lists(arrays):
    def encode(values):
        return [Example(tags, tags) if isinstance(tags, list) else None for tags in values["tags"]]

    def split_tags(tags):
        tokenise = Tokeniser(encode, Target.TOKEN_LABELS)
        (shard,) = split_by_unit(
            pa.table({"c": tags}), columns={"tags": "c"}, tokenise=tokenise, key=KEY, workers=1
        ).tables
        return shard.to_pylist()

    found = split_tags(arrays)
    assert len(found) == 2
    assert found == split_tags(pa.array([[0, 1], [1, 1]]))


def test_user_in_a_column_of_objects_is_one_unit_whatever_holds_the_id():
    array = ArrowPythonObjectArray.from_objects
    for ids in ([[np.int64(7)], [7], (7,), np.array([7])], [{"id": np.array([1])}, {"id": [1]}, {"id": (np.int8(1),)}]):
        table = pa.table({"t": ["a"] * len(ids), "u": array(ids)})
        tokenise = Tokeniser(letters, Target.LEARNED_TOKENS)
        (shard,) = split_by_unit(table, columns=COLUMNS, tokenise=tokenise, key=KEY, workers=1).tables
        rows = shard.to_pylist()
        assert len(rows) == len(ids)
        assert len({row["unit"] for row in rows}) == 1


@given(records, st.tuples(texts, users))
@settings(max_examples=60)
def test_added_record_changes_only_its_own_unit(rows, extra):
    text, user = extra
    before, after = shards(rows)[0], shards([*rows, extra])[0]
    for old, new in zip(before, after):
        removed, added = Counter(old) - Counter(new), Counter(new) - Counter(old)
        if user is None:
            assert (removed, added) in [(Counter(), Counter()), (Counter(), Counter([(text,)]))]
        else:
            assert removed.total() <= 1 and added.total() <= 1
            texts_of_user = sorted(t for t, u in [*rows, extra] if u == user)
            assert all(sorted(unit) == texts_of_user for unit in added)
    assert sum(map(len, after)) - sum(map(len, before)) in (0, 1)


@given(records)
@settings(max_examples=60)
def test_user_is_one_unit_and_record_without_a_user_is_its_own_unit(rows):
    units = [tuple(sorted(unit)) for shard in shards(rows)[0] for unit in shard]
    expected = [tuple(sorted(t for t, u in rows if u == user)) for user in {u for _, u in rows if u}]
    expected += [(t,) for t, u in rows if u is None]
    assert Counter(units) == Counter(expected)


@given(records)
@settings(max_examples=40)
def test_example_rows_are_units_and_equal_rows_share_a_shard(rows):
    found, _ = shards(rows, columns={"text": "t"})
    assert Counter(unit for shard in found for unit in shard) == Counter((t,) for t, _ in rows)
    assert all(sum((t,) in shard for shard in found) == 1 for t, _ in rows)


@given(st.lists(texts, min_size=1, max_size=8), st.integers(1, 3))
@settings(max_examples=40)
def test_limit_keeps_the_same_records_whatever_other_users_exist(user_texts, limit):
    rows = [(t, "1") for t in user_texts]
    [kept] = [unit for shard in shards(rows, limit=limit)[0] for unit in shard]
    smallest = sorted(user_texts, key=lambda t: keys.record_key(KEY, keys.content_of([t, "1"])))[:limit]
    assert list(kept) == smallest
    with_others = shards([*rows, ("a", "2"), ("b", None)], limit=limit)[0]
    assert kept in [unit for shard in with_others for unit in shard]


def test_dropped_records_are_in_the_digest_but_in_no_shard():
    found, digest = shards([("a", "1"), ("zz", "1"), ("z", None)])
    expected, other = shards([("a", "1")])
    assert (found, digest == other) == (expected, False)


class Panic(BaseException):
    """What a library in Rust raises where it fails: no `Exception`."""


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, Panic])
def test_record_that_makes_a_library_raise_drops_only_itself(error):
    def failing(values):
        if any("b" in t for t in values["text"]):
            raise error("a secret")
        return letters(values)

    table = pa.table({"t": ["a", "b", "c"]})
    [part] = split_by_unit(
        table, columns={"text": "t"}, tokenise=Tokeniser(failing, Target.LEARNED_TOKENS), key=KEY, workers=1
    ).tables
    assert sorted(part.column("input_ids").to_pylist()) == [[ord("a")], [ord("c")]]


def test_ctrl_c_while_records_are_tokenised_is_raised():
    def interrupted(values):
        raise KeyboardInterrupt

    table, tokenise = pa.table({"t": ["a"]}), Tokeniser(interrupted, Target.LEARNED_TOKENS)
    with pytest.raises(KeyboardInterrupt):
        split_by_unit(table, columns={"text": "t"}, tokenise=tokenise, key=KEY, workers=1)


def test_text_that_is_not_utf8_drops_only_itself():
    broken = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    [part] = split_by_unit(
        pa.table({"t": broken}),
        columns={"text": "t"},
        tokenise=Tokeniser(letters_or_none, Target.LEARNED_TOKENS),
        key=KEY,
        workers=1,
    ).tables
    assert part.column("input_ids").to_pylist() == [[ord("a")]]


def letters_or_none(values):
    return [Example([ord(c) for c in t], [1] * len(t)) if t else None for t in values["text"]]


@given(records)
@settings(max_examples=40)
def test_digest_depends_on_every_record_and_on_the_key(rows):
    digest = shards(rows)[1]
    assert digest.startswith("hmac-sha256:") and len(digest) == 12 + 64
    assert shards(rows, workers=5)[1] == digest
    assert shards([*rows, ("a", None)])[1] != digest
    assert shards([*rows, ("a", None)])[1] != shards([*rows, ("a", "1")])[1]
    assert shards(rows, key=b"another key of16")[1] != digest


def test_units_spread_over_workers_according_to_the_key():
    rows = [(str(i), None) for i in range(300)]
    sizes = [len(shard) for shard in shards(rows)[0]]
    assert sum(sizes) == 300 and min(sizes) > 60  # expected 100 each, standard deviation 8
    assert shards(rows, key=b"another key of16")[0] != shards(rows)[0]


def test_ids_of_different_types_are_one_user():
    sevens = (7, 7.0, "7", b"7", bytearray(b"7"), "7.0", Decimal("7.00"), "7e0", "70e-1", " 7\t", "007", "+7", "٧")
    assert {keys.user_of(value) for value in sevens} == {b"7"}
    assert {keys.user_of(value) for value in (None, "", " ", float("nan"), Decimal("nan"), pd.NA, pd.NaT)} == {None}
    for same in (
        (10**20, 1e20, "1e20", "1e+20", "100000000000000000000", Decimal(10) ** 20),
        (2**53 + 1, "9007199254740993", "9007199254740992.0", float(2**53 + 1)),
        (0, "0", "-0", -0.0, "0.0", Decimal("-0.00")),
        (0.1, "0.1", ".1", "0.10", "1e-1", Decimal("0.1")),
        (float("inf"), "inf", "Infinity", "1e400", "9" * 500),
        (True, "true", "True"),
        ("Jos\u00e9", "Jose\u0301", " Jos\u00e9\n", "Jos\u00e9".encode()),
        ("\udc80", "?"),
        (b"\xff", "\ufffd"),
        ("alice", "alice\u200b", "\ufeffalice", "al\u00adice", "alice\u2060", "ali\0ce", "\uff41lice"),
        ("jose\u200d\u0301", "jos\u00e9"),
        ("ann", "ann\ufe0f", "a\u034fnn", "\u115fann", "ann\u3164", "ann\u2800", "ann\uffa0"),
        ('{"site":1,"id":7}', '{"id": 7, "site": 1}'),
    ):
        assert len({keys.user_of(value) for value in same} - {None}) == 1, same
    long = ["a" * 4097, "b" * 5000, " " + "A\u0301" * 3000, {"id": "c" * 5000}, "\ufffd"]
    assert {keys.user_of(value) for value in long} == {keys.UNREADABLE_USER.encode()}
    for one, other in (("bob", "bob" + "\u200b" * 9000), ("7", "7." + "0" * 3000), ("a", "a" + " " * 60_000)):
        assert keys.user_of(one) == keys.user_of(other) != keys.UNREADABLE_USER.encode()
    assert keys.user_of("a" * 4096) == keys.user_of(f" {'a' * 4096}" + " " * 5000) == b"a" * 4096
    apart = ("a", "A", "7a", "1_0", "1,0", "0x7", "10", "7.5", "-7", "7 0", "nan", "\u00bd", "e7", ".", "+")
    assert len({keys.user_of(value) for value in apart} - {None}) == len(apart)
    assert keys.unit_key(KEY, user=b"x", content=b"") != keys.unit_key(KEY, user=None, content=b"x")


@given(st.integers() | st.floats(allow_nan=False) | st.decimals(allow_nan=False) | st.text())
def test_user_id_is_stable_after_writing_and_reading(value):
    user = keys.user_of(value)
    assert user == keys.user_of(str(value))
    assert user is None or user == keys.user_of(user) == keys.user_of(f" {user.decode()} ")


def test_ids_that_python_cannot_hold_are_one_unit():
    odd = pa.array([b"\xff", b"\xfe", b"ok", None], pa.binary()).view(pa.string())
    table = pa.table({"t": ["a", "b", "c", "d"], "u": odd})
    [part] = split_by_unit(
        table, columns=COLUMNS, tokenise=Tokeniser(letters, Target.LEARNED_TOKENS), key=KEY, workers=1
    ).tables
    assert part.column("alone").to_pylist() == [False, False, False, True]
    assert [len(set(part.column("unit").to_pylist()[:n])) for n in (2, 3, 4)] == [1, 2, 3]


def test_keys_equal_known_values():
    """Keys decide the shards of a resumed job, so they never change. (Reference values: openssl dgst -hmac.)"""
    content = '["é",{"a":null,"b":1}]'.encode()
    unit = keys.unit_key(KEY, user=None, content=content)
    assert unit.hex() == "d798402b53239d083b535231172829cc4f3b181249a1146b6beb6f1f1b7a4e16"
    assert keys.record_key(KEY, content).hex() == "4fc10a44c283209b3b3e8bb692f821471546e032dc27591bf8c2ce9ea1bd49cc"
    assert [keys.shard_of(unit, workers) for workers in (1, 16, 1009)] == [0, 6, 377]


def test_content_is_the_same_whatever_types_other_records_give_it():
    """A file with types makes whole numbers floats where one record has a fraction, and fills objects with nulls."""
    content = b'["7.0",1,{"b":[2,{"c":3}]},null,0.5]'
    alike = (
        ["7.0", 1, {"b": [2, {"c": 3}]}, None, 0.5],
        ["7.0", 1.0, {"a": None, "b": [2.0, {"d": None, "c": Decimal("3.00")}]}, None, Decimal("0.5")],
    )
    assert {keys.content_of(values) for values in alike} == {content}
    apart = (["7"], [7], [7.5], [None], [{}], [True], [[7]], [{"a": 7}])
    assert len({keys.content_of(values) for values in apart}) == len(apart)


def test_value_is_not_formatted_to_order_the_fields_around_it():
    """It would be formatted again at each level: 26 seconds for 1 MB of numbers in 300 objects."""
    formatted = []

    class Leaf:
        def __repr__(self):
            formatted.append(self)
            return "leaf"

    value = {"b": Leaf(), "a": 1}
    for _ in range(100):
        value = {"b": value, "a": 1}
    assert list(keys.canonical(value)) == ["a", "b"] and not formatted


def test_fields_of_one_name_are_one_in_any_order():
    one, other = {1: "number", "1": "text", "0": 0}, {"0": 0, "1": "text", 1: "number"}
    assert keys.canonical_json(one) == keys.canonical_json(other) == '{"0":0,"1":"number"}'


def test_decimal_of_many_digits_is_infinite():
    """As an integer it takes seconds or forever, and pyarrow has such scales."""
    for text in ("1e400", "1e1000000", "1e999999999", "-1e999999999"):
        number = Decimal(text)
        assert keys.canonical(number) == float(text)
        assert keys.user_of(number) == keys.user_of(text) == keys.user_of(float(text))
        assert keys.content_of([number]) == keys.content_of([float(text)])
    assert keys.canonical(Decimal("1e399")) == 10**399
    assert [keys.canonical(Decimal(text)) for text in ("1e-999999999", "0e999999999")] == [0, 0]


class Id:
    """An id that compares by its number, and whose text is its address."""

    def __init__(self, number):
        self.number = number


class Colour(enum.Enum):
    RED = 1


def test_ids_without_a_text_of_their_own_are_one_user():
    """As a unit for each record, they would split a user."""
    without = [Id(1), Id(1), Id(2), object(), 10**5000]
    assert {keys.user_of(value) for value in without} == {keys.UNREADABLE_USER.encode()}
    assert keys.user_of("ward at 0x1f") == b"ward at 0x1f"


def test_ids_that_are_objects_are_the_same_in_any_spelling():
    same = [
        {"id": 7, "site": uuid.UUID(int=5)},
        {"site": str(uuid.UUID(int=5)), "id": 7.0},
        {"site": str(uuid.UUID(int=5)), "id": Decimal(7), "ward": None},
        json.dumps({"site": str(uuid.UUID(int=5)), "id": 7}),
    ]
    assert len({keys.user_of(value) for value in same}) == 1
    assert keys.user_of(("h", 7)) == keys.user_of(["h", Decimal("7.0")]) == keys.user_of('["h", 7]')
    assert keys.user_of(np.int64(7)) == keys.user_of(np.array(7.0)) == keys.user_of("7") == b"7"
    assert keys.user_of(Colour.RED) == keys.user_of(1)
    assert keys.user_of(Fraction(7)) == keys.user_of(7)
    assert keys.user_of(ipaddress.ip_address("10.0.0.1")) == keys.user_of("10.0.0.1")
    assert keys.user_of({"id": Id(1)}) == keys.user_of({"id": Id(1)}) != keys.user_of({"id": 1})


def test_shard_on_disk_is_mapped_with_the_written_content(tmp_path, make_tokenizer):
    rows = [("a", "1"), ("abc", "1"), ("ab", "2")]
    [part] = split(rows, workers=1).tables
    write(merge([part], None), tmp_path / "s.arrow")
    assert [path.name for path in tmp_path.iterdir()] == ["s.arrow"]
    before = pa.total_allocated_bytes()
    shard = Shard.open(tmp_path / "s.arrow")
    assert pa.total_allocated_bytes() == before
    assert len(shard) == 2 and shard.target is Target.LEARNED_TOKENS
    assert sorted(shard.unit_length(unit) for unit in range(2)) == [2, 3]
    assert all(shard.learned(r).tolist() == [1] * len(shard.tokens(r)) for u in range(2) for r in shard.records(u))

    encode = tokeniser(make_tokenizer(), Recipe({"tokens": "t", "tags": "l"}, 8, labels=3))
    table = pa.table({"t": [["a", "b"], ["c"], ["d"]], "l": [[2, 0], [1], [3]]})
    [part] = split_by_unit(table, columns={"tokens": "t", "tags": "l"}, tokenise=encode, key=KEY, workers=1).tables
    shard = Shard(merge([part], None))
    assert shard.target is Target.TOKEN_LABELS
    assert sorted(shard.labels(r).tolist() for r in range(2)) == [[1], [2, 0]]

    encode = tokeniser(make_tokenizer(), Recipe({"text": "t", "label": "l"}, 8, labels=3))
    table = pa.table({"t": ["a b", "c"], "l": [2, 1]})
    [part] = split_by_unit(table, columns={"text": "t", "label": "l"}, tokenise=encode, key=KEY, workers=1).tables
    shard = Shard(merge([part], None))
    assert shard.target is Target.RECORD_LABEL and {(len(shard.tokens(r)), shard.label(r)) for r in range(2)} == {
        (2, 2),
        (1, 1),
    }


def test_empty_shard_can_be_opened(tmp_path):
    empty = split([], workers=1)
    write(merge(empty.tables, 2), tmp_path / "s.arrow")
    assert (len(Shard.open(tmp_path / "s.arrow")), empty.total) == (0, 0)


def test_sum_of_record_keys_wraps_at_2_to_the_256():
    assert keys.record_key_sum([b"\xff" * 32] * 3) == (3 * (2**256 - 1)) % 2**256
    assert keys.record_key_sum([]) == 0
