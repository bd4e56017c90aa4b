"""Tags of words: their place among the tokens, the records that cannot be used, and the entities that are counted."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tensorguard.data.errors import DataError
from tensorguard.data.raw_table import Rows, Wanted, raw_table
from tensorguard.data.recipe import Recipe
from tensorguard.data.shard import IGNORE_INDEX, Target
from tensorguard.data.unusable import Unusable
from tensorguard.models.batch_losses import EvaluationSums
from tensorguard.models.tasks import task_named
from tensorguard.models.tasks.token_classification import entities, first_token_labels, iob2_tags
from tests.support.trainer.entity_f1 import entity_f1

COLUMNS = {"tokens": "words", "tags": "names"}
NAMES = ("O", "B-per", "I-per", "B-loc", "I-loc")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "an", "##na", "went", "to", "par", "##is", ".", "a"]


def word_piece():
    words = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def byte_level():
    """Tokens are bytes, and a space belongs to the word behind it, as in GPT-2, RoBERTa and Qwen."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "o"), ("Ġ", "to"), ("Ġ", "p")]
    vocabulary = [*alphabet, "to", "Ġto", "Ġp", "<end>"]
    model = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, merges))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<end>", pad_token="<end>")


def encoder(tokenizer=None, max_length=32, truncate=True, names=NAMES):
    recipe = Recipe(COLUMNS, max_length, truncate=truncate, labels=5, label_names=names)
    return task_named("TokenClassification", labels=5, label_names=names).tokeniser(tokenizer or word_piece(), recipe)


def encoded(encode, tokens, tags):
    """The examples of values as a source has them; in place of each record that cannot be used, why."""
    table = raw_table(Rows({"words": tokens, "names": tags}, range(len(tokens))), Wanted(COLUMNS)).to_pylist()
    kept = [row for row in table if row["fault"] is None]
    found = iter(encode({role: [row[role] for row in kept] for role in COLUMNS}))
    return [next(found) if row["fault"] is None else Unusable(row["fault"]) for row in table]


def one(encode, tokens, tags):
    [example] = encoded(encode, [tokens], [tags])
    return example


def shown(example, tokenizer=None):
    """Each token with the name of its label, such as `an/B-per`."""
    tokens = (tokenizer or word_piece()).convert_ids_to_tokens(example.inputs)
    return " ".join(t if n == IGNORE_INDEX else f"{t}/{NAMES[n]}" for t, n in zip(tokens, example.target, strict=True))


def test_tag_is_the_label_of_the_words_first_token():
    example = one(encoder(), ["anna", "went", "to", "paris", "."], ["B-per", "O", "O", "B-loc", "O"])
    assert shown(example) == "[CLS] an/B-per ##na went/O to/O par/B-loc ##is ./O [SEP]"


def test_labels_are_those_of_the_tokenizers_own_word_numbers():
    """Most training scripts pass the words separately and map tokens to words by `word_ids`."""
    words, numbers = ["anna", "to", "unheard", "paris.", "a"], [1, 0, 2, 3, 4]
    encoded = word_piece()(words, is_split_into_words=True)
    firsts = [i for i, w in enumerate(encoded.word_ids()) if w is not None and w != ([None, *encoded.word_ids()])[i]]
    expected = [IGNORE_INDEX] * len(encoded.input_ids)
    for i, number in zip(firsts, numbers, strict=True):
        expected[i] = number
    example = one(encoder(names=()), words, numbers)
    assert (example.inputs, example.target) == (encoded.input_ids, expected)


def test_space_that_belongs_to_a_token_is_not_a_word():
    tokenizer = byte_level()
    example = one(encoder(tokenizer), ["to", "to", "pé"], ["O", "B-per", "I-per"])
    assert shown(example, tokenizer) == "to/O Ġto/B-per Ġp/I-per Ã ©"


@pytest.mark.parametrize(
    ("names", "tags"),
    [
        ((), [1, 0, 3]),
        ((), ["1", " 0 ", 3.0]),
        ((), '["1", 0, "3"]'),
        ((), (1, 0, 3)),
        ((), np.array([1, 0, 3])),
        (NAMES, ["B-per", "O", "B-loc"]),
        (NAMES, ["b-PER", " O ", "B-loc\n"]),
        (NAMES, b'["B-per", "O", "B-loc"]'),
        (("2", "0", "1", "3", "4"), [0, 2, 3]),
    ],
)
def test_forms_of_tags(names, tags):
    example = one(encoder(names=names), ["anna", "to", "paris"], tags)
    assert example.target == [-100, 1, -100, 0, 3, -100, -100]


def test_columns_of_text_files_hold_json():
    encode = encoder(names=())
    assert one(encode, '["anna", "to"]', "[1, 0]") == one(encode, ["anna", "to"], [1, 0])


@pytest.mark.parametrize(
    ("tokens", "tags", "kind"),
    [
        (["a", "to"], ["O"], Unusable.UNEVEN),
        (["a"], ["O", "O"], Unusable.UNEVEN),
        ([], [], Unusable.NO_WORDS),
        (["a"], [5], Unusable.UNKNOWN_LABEL),
        (["a"], [0], Unusable.UNKNOWN_LABEL),
        (["a"], ["B-org"], Unusable.UNKNOWN_LABEL),
        (["a", None], ["O", "O"], Unusable.NO_TEXT),
        (["a", 7], ["O", "O"], Unusable.NOT_TEXT),
        (["a"], [None], Unusable.NO_LABEL),
        (["a"], [], Unusable.NO_WORDS),
        (None, None, Unusable.NO_WORDS),
        ("a to", ["O", "O"], Unusable.NO_WORDS),
        ('{"a": 1}', ["O"], Unusable.NO_WORDS),
        ("[" * 10_000, ["O"], Unusable.NO_WORDS),
        (["a"], "O", Unusable.NO_WORDS),
        ({"a": 1}, ["O"], Unusable.NO_WORDS),
        ([["a"]], [["O"]], Unusable.NOT_TEXT),
        ([""], ["O"], Unusable.NOTHING_TO_LEARN),
    ],
    ids=lambda value: str(value)[:20],
)
def test_record_that_does_not_fit_is_unusable_alone(tokens, tags, kind):
    encode = encoder()
    found = encoded(encode, [["a"], tokens, ["to"]], [["O"], tags, ["B-per"]])
    assert found == [one(encode, ["a"], ["O"]), kind, one(encode, ["to"], ["B-per"])]


def test_long_records_are_truncated_or_dropped():
    words, tags = ["anna", "to", "paris"], ["B-per", "O", "B-loc"]
    cut = one(encoder(max_length=5), words, tags)
    assert shown(cut) == "[CLS] an/B-per ##na to/O [SEP]"
    assert one(encoder(max_length=5, truncate=False), words, tags) is None
    assert shown(one(encoder(max_length=7, truncate=False), words, tags)).endswith("par/B-loc ##is [SEP]")


def test_word_without_a_token_has_no_label():
    example = one(encoder(), ["anna", "", "to"], ["B-per", "I-per", "O"])
    assert shown(example) == "[CLS] an/B-per ##na to/O [SEP]"
    assert first_token_labels(["ab", "c"], [1, 2], [(0, 4)]) == [1]


@given(
    st.lists(
        st.tuples(st.lists(st.text() | st.none(), max_size=4), st.lists(st.integers(-1, 5), max_size=4)),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 4),
)
@settings(max_examples=60)
def test_tokens_and_labels_depend_on_no_other_record(records, at):
    encode, at = encoder(max_length=8, names=()), at % len(records)
    found = encoded(encode, [words for words, _ in records], [tags for _, tags in records])
    assert found[at] == one(encode, *records[at])


def test_slow_tokenizer_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(DataError, match=r"^spec\.model\.name: .* no fast version"):
        encoder(Slow())


def test_tokeniser_can_be_pickled():
    encode = encoder()
    assert one(pickle.loads(pickle.dumps(encode)), ["anna"], ["O"]) == one(encode, ["anna"], ["O"])
    assert encode.target is Target.TOKEN_LABELS


tag_lists = st.lists(st.sampled_from(NAMES), max_size=12)


@pytest.mark.slow
@given(st.lists(st.tuples(tag_lists, st.randoms(use_true_random=False)), max_size=4))
@settings(max_examples=300)
def test_f1_is_that_of_an_independent_count(texts):
    expected = [tags for tags, _ in texts]
    predicted = [[random.choice(NAMES) if random.random() < 0.5 else tag for tag in tags] for tags, random in texts]
    task = task_named("TokenClassification", labels=5, label_names=NAMES)
    sums = EvaluationSums()
    for gold, found in zip(expected, predicted):
        labels = torch.tensor([[-100, *map(NAMES.index, gold), -100]])
        logits = torch.nn.functional.one_hot(torch.tensor([[1, *map(NAMES.index, found), 3]]), 5).float()
        sums += EvaluationSums(0.0, 1, task.counts(logits, labels))
    found_f1 = task.metrics(sums.counts, sums.records).get("f1", 0.0)
    assert found_f1 == pytest.approx(entity_f1(expected, predicted), abs=1e-12)


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-per I-per O", {("per", 0, 2)}),
        ("B-per B-per", {("per", 0, 1), ("per", 1, 2)}),
        ("O I-per I-per", {("per", 1, 3)}),
        ("B-per I-loc", {("per", 0, 1), ("loc", 1, 2)}),
        ("I-per I-loc I-loc O I-loc", {("per", 0, 1), ("loc", 1, 3), ("loc", 4, 5)}),
        ("O O", set()),
    ],
)
def test_entities(tags, found):
    """The values are those of seqeval 1.2.2: `get_entities`."""
    assert entities(iob2_tags(tags.split())) == found


@pytest.mark.parametrize("names", [(), ("a", "b"), ("O", "B-"), ("O", "I"), ("O", "B-per", "E-per"), ("O", "per")])
def test_names_in_another_form_have_no_entities(names):
    task = task_named("TokenClassification", labels=len(names), label_names=names)
    assert task.counts(torch.zeros(1, 2, 3), torch.zeros(1, 2, dtype=torch.long)) == ()
    assert task.metrics((), 1) == {}


def test_type_may_hold_a_dash():
    assert iob2_tags(["O", "B-work-of-art"]) == [("O", ""), ("B", "work-of-art")]


def test_no_entities_at_all_give_zero():
    assert task_named("TokenClassification", labels=5, label_names=NAMES).metrics((0, 0, 0), 3) == {"f1": 0.0}


def test_only_words_count():
    """Predictions on special tokens, on later tokens of a word, and in dummy rows are not looked at."""
    task = task_named("TokenClassification", labels=5, label_names=NAMES)
    labels = torch.tensor([[-100, 1, -100, 2, -100], [-100] * 5])
    classes = np.array([[3, 1, 3, 2, 3], [1] * 5])
    logits = torch.nn.functional.one_hot(torch.from_numpy(classes), 5).float()
    assert task.counts(logits, labels) == (1, 1, 1)
    assert task.learns(labels).tolist() == [True, False]
