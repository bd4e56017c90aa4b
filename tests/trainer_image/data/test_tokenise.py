"""Records to tokens: what is learned, what is dropped, and that nothing depends on other records."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

from e2e.platform.trainer.tokenising import tokeniser
from tensorguard.data.errors import DataError
from tensorguard.data.recipe import Recipe, columns_of
from tensorguard.data.tokenise import is_fast, label_or_none, token_ids, token_spans

PAIR = {"prompt": "p", "completion": "c"}


def words(tokenizer, ids):
    return " ".join(tokenizer.convert_ids_to_tokens(ids))


def learned(tokenizer, example):
    return words(tokenizer, [token for token, is_learned in zip(example.inputs, example.target) if is_learned])


def test_recipe_resolves_the_default_loss(make_spec):
    loss = {
        "Completion": {"prompt": "p", "completion": "c"},
        "Assistant": {"messages": "m"},
        "All": {"text": "t"},
    }
    for expected, columns in loss.items():
        assert Recipe.from_spec(make_spec(columns)).loss_on == expected
    recipe = Recipe.from_spec(make_spec({"text": "t", "label": "l"}, labels=2, label_names=["no", "yes"]))
    assert (recipe.loss_on, recipe.labels, recipe.label_names) == (None, 2, ("no", "yes"))
    spec = make_spec(PAIR, unit={"kind": "User", "column": "id", "maxExamplesPerUnit": 2}, overLength="Drop")
    assert columns_of(spec) == {**PAIR, "user": "id"}
    assert not Recipe.from_spec(spec).truncate


def test_completion_and_end_token_are_learned(make_tokenizer):
    tokenizer = make_tokenizer(bos=True)
    encode = tokeniser(tokenizer, Recipe(PAIR, 32, loss_on="Completion"))
    [example] = encode({"prompt": ["a b"], "completion": ["c d"]})
    assert words(tokenizer, example.inputs) == "<s> a b c d </s>"
    assert example.target == [0, 0, 0, 1, 1, 1]
    assert tokenizer.pad_token_id == example.inputs[-1]  # learned although padding looks the same

    encode = tokeniser(tokenizer, Recipe(PAIR, 32, loss_on="All"))
    assert learned(tokenizer, encode({"prompt": ["a b"], "completion": ["c"]})[0]) == "a b c </s>"


def test_text_is_learned_except_its_first_token(make_tokenizer):
    tokenizer = make_tokenizer()
    encode = tokeniser(tokenizer, Recipe({"text": "t"}, 32, loss_on="All"))
    first, ended = encode({"text": ["a b", "a </s>"]})
    assert (words(tokenizer, first.inputs), first.target) == ("a b </s>", [0, 1, 1])
    assert words(tokenizer, ended.inputs) == "a </s>"


@pytest.mark.parametrize("truncate", [True, False])
def test_tokenizer_receives_a_bounded_part_of_a_long_text(make_tokenizer, chatml, truncate):
    received = []

    class Recorded:
        def __init__(self, tokenizer):
            self.tokenizer = tokenizer

        def __getattr__(self, name):
            return getattr(self.tokenizer, name)

        def __call__(self, texts, **options):
            received.extend([texts] if isinstance(texts, str) else texts)
            return self.tokenizer(texts, **options)

    tokenizer = Recorded(make_tokenizer(template=chatml))
    long = "a " * 1_000_000
    turns = [{"role": "user", "content": "b"}, {"role": "assistant", "content": long}]
    for columns, loss, record in (
        (PAIR, "Completion", {"prompt": "b", "completion": long}),
        ({"text": "t"}, "All", {"text": long}),
        ({"messages": "m"}, "Assistant", {"messages": turns}),
        ({"text": "t", "label": "l"}, None, {"text": long, "label": 1}),
        ({"tokens": "t", "tags": "l"}, None, {"tokens": ["a"] * 100_000, "tags": [1] * 100_000}),
    ):
        encode = tokeniser(tokenizer, Recipe(columns, 16, truncate, loss, labels=2))
        [example] = encode({role: [value] for role, value in record.items()})
        assert max(map(len, received)) <= 64 * 16
        if truncate:
            assert len(example.inputs) == 16 and "a" in words(tokenizer, example.inputs)
        else:
            assert example is None


def test_texts_are_tokenised_in_groups_of_bounded_size(make_tokenizer, monkeypatch):
    tokenizer = make_tokenizer()
    texts = ["a b", "c", "", "d e f", "a " * 50, "b"]
    whole = list(token_spans(tokenizer, texts))
    sizes = []

    def counted(texts, **options):
        sizes.append([len(text) for text in texts])
        return tokenizer(texts, **options)

    counted.is_fast = True
    monkeypatch.setattr("tensorguard.data.tokenise._CHARACTERS_AT_ONCE", 8)
    assert list(token_spans(counted, texts)) == whole
    assert list(token_ids(counted, texts)) == [ids for ids, _ in whole]
    assert sizes == [[3, 1, 0], [5], [100], [1]] * 2
    assert list(token_ids(counted, [])) == []


def test_record_without_text_is_dropped(make_tokenizer):
    tokenizer = make_tokenizer(template=None)
    for columns, loss, kept, dropped in (
        ({"text": "t"}, "All", {"text": "a"}, {"text": " \n"}),
        ({"text": "t", "label": "l"}, None, {"text": "a", "label": 1}, {"text": "", "label": 1}),
        (PAIR, "Completion", {"prompt": "", "completion": "a"}, {"prompt": "a", "completion": " "}),
    ):
        encode = tokeniser(tokenizer, Recipe(columns, 16, True, loss, labels=2))
        found = encode({role: [kept[role], dropped[role]] for role in kept})
        assert found[0] is not None and found[1] is None


def test_over_length_record_is_truncated_or_dropped(make_tokenizer):
    tokenizer = make_tokenizer()
    records = {"prompt": ["a", "a a a a"], "completion": ["b", "b b"]}
    cut = tokeniser(tokenizer, Recipe(PAIR, 5, loss_on="Completion"))(records)
    assert [words(tokenizer, example.inputs) for example in cut] == ["a b </s>", "a a a a b"]
    assert cut[1].target == [0, 0, 0, 0, 1]
    dropped = tokeniser(tokenizer, Recipe(PAIR, 5, truncate=False, loss_on="Completion"))(records)
    assert dropped == [cut[0], None]
    assert tokeniser(tokenizer, Recipe(PAIR, 2, loss_on="Completion"))(records)[1].target == [0, 0]


def test_malformed_value_drops_only_its_record(make_tokenizer):
    encode = tokeniser(make_tokenizer(), Recipe(PAIR, 32, loss_on="Completion"))
    odd = [None, 7, ["x"], {"x": 1}, 1.5]
    found = encode({"prompt": ["a", *odd, "a", b"a"], "completion": ["b", *["c"] * 5, None, b"\xff"]})
    assert [example is not None for example in found] == [True, *[False] * 6, True]


def test_tokenizer_without_an_end_token_is_refused(make_tokenizer):
    with pytest.raises(DataError, match=r"^spec.model.name: .* no end token"):
        tokeniser(make_tokenizer(eos=None), Recipe(PAIR, 32, loss_on="Completion"))


@given(
    texts=st.lists(st.text() | st.none(), min_size=1, max_size=6),
    at=st.integers(0, 5),
)
@settings(max_examples=40)
def test_tokens_of_a_record_depend_on_no_other_record(make_tokenizer, texts, at):
    encode = tokeniser(make_tokenizer(), Recipe({"text": "t"}, 8, loss_on="All"))
    at %= len(texts)
    assert encode({"text": texts})[at] == encode({"text": [texts[at]]})[0]


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (0, 0), (2, 2), ("1", 1), (" 1 ", 1), (1.0, 1), (True, 1), ("red", 0), (b"blue", 2), ("2", 1),
        (3, None), (-1, None), ("-1", None), ("1.0", 1), (" 1. ", 1), ("1.5", None), ("1.0.", None),
        ("grey", None), (None, None), (1.5, None), ("", None),
        (float("nan"), None), (float("inf"), None), ("9" * 400, None), ([1], None), ("²", None), (10**400, None),
    ],
)  # fmt: skip
def test_label_is_a_number_or_a_name(value, label):
    names = ("red", "2", "blue")  # a name that looks like a number is a name
    assert label_or_none(value, Recipe({"text": "t", "label": "l"}, 8, labels=3, label_names=names)) == label


@pytest.mark.model
def test_classification_with_the_real_tokenizer(minilm):
    recipe = Recipe({"text": "t", "label": "l"}, 8, labels=2)
    records = {"text": ["hello world", "x " * 600, None, "fine"], "label": ["1", 0, 1, 7]}
    short, long, *dropped = tokeniser(minilm, recipe)(records)
    assert (minilm.decode(short.inputs), short.target) == ("[CLS] hello world [SEP]", 1)
    assert (len(long.inputs), long.inputs[-1]) == (8, minilm.sep_token_id)
    assert dropped == [None, None]
    encode = tokeniser(minilm, Recipe(recipe.columns, 8, truncate=False, labels=2))
    assert pickle.loads(pickle.dumps(encode))(records) == [short, None, None, None]


@pytest.mark.model
def test_long_record_is_not_mentioned_in_logs(minilm, capfd, caplog):
    tokeniser(minilm, Recipe({"text": "t", "label": "l"}, 600, truncate=False, labels=2))(
        {"text": ["x " * 700], "label": [0]}
    )
    assert "".join(capfd.readouterr()) + caplog.text == ""


def test_spaces_divide_long_words_for_a_tokenizer_without_a_fast_version():
    """Many of them take time that grows with the square of a word's length."""
    tokenizer = ByT5Tokenizer()
    assert not tokenizer.is_fast
    long, usual, fast = token_ids(tokenizer, ["x" * 2500, "a " * 1000, "y" * 1000])
    assert tokenizer.decode(long, skip_special_tokens=True) == " ".join(["x" * 1000, "x" * 1000, "x" * 500])
    assert tokenizer.decode(usual, skip_special_tokens=True) == "a " * 1000
    assert tokenizer.decode(fast, skip_special_tokens=True) == "y" * 1000
    assert not is_fast(object())
