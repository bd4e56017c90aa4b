"""Partitioning without Ray: keys, splitting and merging, in every order of rows and with any other records."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.data.extensions import ArrowPythonObjectArray, ArrowTensorArray, ArrowVariableShapedTensorArray

from tensorguard.data import keys
from tensorguard.data.partition import merge, split_by_unit
from tensorguard.data.raw_table import Rows, Wanted, raw_table
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import Shard, Target, write
from tensorguard.data.tokenise import Example, Tokeniser
from tensorguard.data.unusable import Unusable
from tests.support.trainer.tokenising import tokeniser

KEY = b"0123456789abcdef"
WORKERS = 3
COLUMNS = {"text": "t", "user": "u"}

texts = st.text("abc", min_size=1, max_size=3)
users = st.sampled_from(["1", "2", "3", "4", None])
records = st.lists(st.tuples(texts, users), max_size=12)


def letters(values):
    """A fake tokenizer: one token for each letter. A text with a "z" cannot be used, and one with a "y" is left out."""
    examples = [Example([ord(c) for c in t], [1] * len(t)) for t in values["text"]]
    faults = {"z": Unusable.NOTHING_TO_LEARN, "y": None}
    return [next((faults[c] for c in t if c in faults), each) for t, each in zip(values["text"], examples)]


def raw(columns, **values):
    """A raw table of columns in memory."""
    return raw_table(Rows(values, range(len(next(iter(values.values()))))), Wanted(columns))


def split(rows, workers=WORKERS, columns=COLUMNS, key=KEY):
    table = raw(columns, t=[t for t, _ in rows], u=[u for _, u in rows])
    return split_by_unit(table, tokenise=Tokeniser(letters, Target.LEARNED_TOKENS), key=key, workers=workers)


def shards(rows, limit=None, batches=1, **options):
    """Each worker's units after a complete preparation, each a tuple of its records' texts; and the digest."""
    parts = [split(rows[i::batches], **options) for i in range(batches)]
    found = []
    for worker in range(len(parts[0].tables)):
        shard = Shard(merge([part.tables[worker] for part in parts], limit))
        found.append([tuple("".join(map(chr, shard.tokens(r))) for r in shard.records(u)) for u in range(len(shard))])
    return found, keys.dataset_digest(options.get("key", KEY), [part.total for part in parts])


@pytest.mark.slow
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
        ArrowPythonObjectArray.from_objects([np.array([0, 1]), (np.int8(1), 1)]),
    ],
    ids=["of-one-length", "of-any-length", "of-objects"],
)
def test_columns_of_ray_arrays_hold_the_same_records_as_lists(arrays):
    assert raw({"tags": "c"}, c=arrays).equals(raw({"tags": "c"}, c=pa.array([[0, 1], [1, 1]])))


@pytest.mark.slow
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


def test_records_that_are_not_used_are_in_the_digest_and_the_tally_but_in_no_shard():
    rows = [("a", "1"), ("zz", "1"), (None, "1"), ("z", "1"), ("y", "1"), ("b", "2")]
    found, digest = shards(rows)
    expected, other = shards([("a", "1"), ("b", "2")])
    assert (found, digest == other) == (expected, False)
    assert split(rows).tally.by_kind() == {Unusable.NO_TEXT: (1, "", 2), Unusable.NOTHING_TO_LEARN: (2, "", 1)}


class Panic(BaseException):
    """What a library in Rust raises where it fails: no `Exception`."""


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, Panic])
def test_record_that_makes_a_library_raise_drops_only_itself(error):
    def failing(values):
        if any("b" in t for t in values["text"]):
            raise error("a secret")
        return letters(values)

    table = raw({"text": "t"}, t=["a", "b", "c"])
    found = split_by_unit(table, tokenise=Tokeniser(failing, Target.LEARNED_TOKENS), key=KEY, workers=1)
    [part] = found.tables
    assert sorted(part.column("input_ids").to_pylist()) == [[ord("a")], [ord("c")]]
    assert found.tally.by_kind() == {Unusable.NOT_TOKENISED: (1, "", 1)}


def test_ctrl_c_while_records_are_tokenised_is_raised():
    def interrupted(values):
        raise KeyboardInterrupt

    table, tokenise = raw({"text": "t"}, t=["a"]), Tokeniser(interrupted, Target.LEARNED_TOKENS)
    with pytest.raises(KeyboardInterrupt):
        split_by_unit(table, tokenise=tokenise, key=KEY, workers=1)


def test_text_and_id_that_are_not_utf8_are_counted_alone():
    broken = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    found = split_by_unit(
        raw(COLUMNS, t=broken, u=broken), tokenise=Tokeniser(letters, Target.LEARNED_TOKENS), key=KEY, workers=1
    )
    assert found.tables[0].column("input_ids").to_pylist() == [[ord("a")]]
    assert found.tally.by_kind() == {Unusable.NO_ID: (1, "", 1), Unusable.NOT_UTF8: (1, "", 1)}


@pytest.mark.slow
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


def test_keys_equal_known_values():
    """Keys decide the shards of a resumed job, so they never change. (Reference values: openssl dgst -hmac.)"""
    content = '["é",{"a":null,"b":1}]'.encode()
    unit = keys.unit_key(KEY, user=None, content=content)
    assert unit.hex() == "d798402b53239d083b535231172829cc4f3b181249a1146b6beb6f1f1b7a4e16"
    assert keys.record_key(KEY, content).hex() == "4fc10a44c283209b3b3e8bb692f821471546e032dc27591bf8c2ce9ea1bd49cc"
    assert [keys.shard_of(unit, workers) for workers in (1, 16, 1009)] == [0, 6, 377]
    assert keys.content_of(["é", None]) == '["é",null]'.encode()
    assert keys.unit_key(KEY, user="x", content=b"") != keys.unit_key(KEY, user=None, content=b"x")


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
    table = raw({"tokens": "t", "tags": "l"}, t=[["a", "b"], ["c"], ["d"]], l=[[2, 0], [1], [3]])
    [part] = split_by_unit(table, tokenise=encode, key=KEY, workers=1).tables
    shard = Shard(merge([part], None))
    assert shard.target is Target.TOKEN_LABELS
    assert sorted(shard.labels(r).tolist() for r in range(2)) == [[1], [2, 0]]

    encode = tokeniser(make_tokenizer(), Recipe({"text": "t", "label": "l"}, 8, labels=3))
    table = raw({"text": "t", "label": "l"}, t=["a b", "c"], l=[2, 1])
    [part] = split_by_unit(table, tokenise=encode, key=KEY, workers=1).tables
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
