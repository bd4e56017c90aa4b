"""Records to tokens: what is learned, what is dropped, and that nothing depends on other records."""

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import ByT5Tokenizer

from tensorguard.data.errors import DataError
from tensorguard.data.recipe import Recipe, columns_of
from tensorguard.data.tokenise import is_fast, token_ids, token_spans
from tensorguard.data.unusable import Unusable
from tests.support.trainer.tokenising import tokeniser

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
        ({"text": "t", "label": "l"}, None, {"text": long, "label": "1"}),
        (
            {"tokens": "t", "tags": "l"},
            None,
            {"tokens": json.dumps(["a"] * 100_000), "tags": json.dumps(["1"] * 100_000)},
        ),
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


@pytest.mark.parametrize(
    ("columns", "usable", "unusable"),
    [
        ({"text": "t"}, [("a",), (" a\n",)], [("",), (" \n",), (None,)]),
        (PAIR, [("", "a"), (" ", "a"), ("b", "a")], [("a", ""), ("a", " "), ("a", None), (None, "a"), (None, None)]),
    ],
)
def test_record_without_text_is_unusable_alone(make_tokenizer, columns, usable, unusable):
    loss = "Completion" if "prompt" in columns else "All"
    encode = tokeniser(make_tokenizer(), Recipe(columns, 16, loss_on=loss))
    found = encode(dict(zip(columns, zip(*usable, *unusable))))
    assert [type(example).__name__ for example in found[: len(usable)]] == ["Example"] * len(usable)
    assert found[len(usable) :] == [Unusable.NO_TEXT] * len(unusable)


def test_record_whose_only_token_is_the_first_has_nothing_to_learn(make_tokenizer):
    encode = tokeniser(make_tokenizer(), Recipe({"text": "t"}, 16, loss_on="All"))
    assert encode({"text": ["</s>", "a"]})[0] is Unusable.NOTHING_TO_LEARN
    encode = tokeniser(make_tokenizer(), Recipe({"text": "t"}, 1, loss_on="All"))
    assert encode({"text": ["a b"]}) == [Unusable.NOTHING_TO_LEARN]


def test_text_that_is_too_long_keeps_its_beginning(make_tokenizer):
    tokenizer = make_tokenizer()
    [example] = tokeniser(tokenizer, Recipe({"text": "t"}, 3, loss_on="All"))({"text": ["a b c d"]})
    assert words(tokenizer, example.inputs) == "a b c"


@pytest.mark.parametrize(
    ("prompt", "completion", "expected"),
    [
        ("a b", "c d", "<s> a b | c d </s>"),
        ("a b c d a b", "c d", "<s> c d a b | c d </s>"),
        ("a b c d", "a b c d", "<s> c d | a b c d </s>"),  # the completion stays
        ("a b c d", "a b c d a b", "<s> d | a b c d a b"),  # but a quarter is left to the prompt
        ("a b c d", "a b c d a b c d", "<s> d | a b c d a b"),
        ("", "a b c d a b c d", "<s> | a b c d a b c"),
    ],
)
def test_prompt_loses_its_beginning_for_its_completion(make_tokenizer, prompt, completion, expected):
    tokenizer = make_tokenizer(bos=True)
    records = {"prompt": [prompt], "completion": [completion]}
    [example] = tokeniser(tokenizer, Recipe(PAIR, 8, loss_on="Completion"))(records)
    assert words(tokenizer, example.inputs) == expected.replace("| ", "")
    assert learned(tokenizer, example) == expected.partition("| ")[2]
    [whole] = tokeniser(tokenizer, Recipe(PAIR, 8, loss_on="All"))(records)
    assert whole.inputs == example.inputs and sum(whole.target) == len(whole.inputs) - 1


def test_over_length_record_is_left_out_where_the_job_says_so(make_tokenizer):
    records = {"prompt": ["a", "a a a a", "a"], "completion": ["b", "b b", "b b b b b"]}
    encode = tokeniser(make_tokenizer(), Recipe(PAIR, 5, truncate=False, loss_on="Completion"))
    assert [example and example.target for example in encode(records)] == [[0, 1, 1], None, None]


@given(
    prompt=st.lists(st.sampled_from("ab"), max_size=20),
    completion=st.lists(st.sampled_from("cd"), min_size=1, max_size=20),
    length=st.integers(3, 24),
    bos=st.booleans(),
)
@settings(max_examples=50)
def test_some_of_each_completion_is_learned(make_tokenizer, prompt, completion, length, bos):
    tokenizer = make_tokenizer(bos=bos)
    encode = tokeniser(tokenizer, Recipe(PAIR, length, loss_on="Completion"))
    [example] = encode({"prompt": [" ".join(prompt)], "completion": [" ".join(completion)]})
    found = words(tokenizer, example.inputs).split()[bos:]
    given = [word for word in found if word in "ab"]
    whole = [*prompt, *completion, "</s>"]
    start = len(prompt) - len(given)
    assert found == whole[start : start + len(found)], "the end of the prompt, and the beginning of the completion"
    assert len(example.inputs) == min(length, bos + len(whole))
    assert example.target == [int(at >= max(1, bos + len(given))) for at in range(len(example.inputs))]


def test_end_of_a_long_prompt_reaches_the_tokenizer(make_tokenizer):
    tokenizer = make_tokenizer()
    encode = tokeniser(tokenizer, Recipe(PAIR, 8, loss_on="Completion"))
    [example] = encode({"prompt": ["a " * 10_000 + "b c"], "completion": ["d"]})
    assert words(tokenizer, example.inputs) == "a a a a b c d </s>"


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


@pytest.mark.model
def test_classification_with_the_real_tokenizer(minilm):
    recipe = Recipe({"text": "t", "label": "l"}, 8, labels=2)
    records = {"text": ["hello world", "x " * 600, "fine"], "label": ["1", "0", "7"]}
    short, long, unknown = tokeniser(minilm, recipe)(records)
    assert (minilm.decode(short.inputs), short.target) == ("[CLS] hello world [SEP]", 1)
    assert (len(long.inputs), long.inputs[-1]) == (8, minilm.sep_token_id)
    assert unknown is Unusable.UNKNOWN_LABEL
    encode = tokeniser(minilm, Recipe(recipe.columns, 8, truncate=False, labels=2))
    assert pickle.loads(pickle.dumps(encode))(records) == [short, None, unknown]


@pytest.mark.model
def test_long_record_is_not_mentioned_in_logs(minilm, capfd, caplog):
    tokeniser(minilm, Recipe({"text": "t", "label": "l"}, 600, truncate=False, labels=2))(
        {"text": ["x " * 700], "label": ["0"]}
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
