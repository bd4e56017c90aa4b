"""Conversations: the ranges of the assistant's turns, with suitable and unsuitable templates."""

import json
import tracemalloc

import pytest

from e2e.platform.trainer.tokenising import tokeniser
from tensorguard.data.chat import RENDERED_CHARACTERS, assistant_turns, conversation, renderer, rendering_cost
from tensorguard.data.errors import DataError
from tensorguard.data.recipe import Recipe

MESSAGES = {"messages": "m"}
# The last assistant turn gets a "tool" mark, and loses it when another turn follows, as Qwen 3 does with reasoning.
REWRITES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and m.role == 'assistant' %}tool {% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{% for m in messages %}{{ m.role }} : {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant :{% endif %}"
)
STRICT = "{% if messages[0].role != 'user' %}{{ raise_exception('starts with a user') }}{% endif %}"
COUNTS = "{{ messages | length }}" + PLAIN  # the rendering of the first turns is never a prefix of the whole


def chat(*turns):
    roles = ["user", "assistant"] * len(turns)
    return [{"role": role, "content": content} for role, content in zip(roles, turns)]


def encode_with(tokenizer, loss_on="Assistant", max_length=64, **recipe):
    encode = tokeniser(tokenizer, Recipe(recipe.pop("columns", MESSAGES), max_length, loss_on=loss_on, **recipe))

    def learned(*conversations, **more):
        found = encode({"messages": list(conversations), **more})
        return [
            example and " ".join(
                tokenizer.convert_ids_to_tokens([t for t, kept in zip(example.inputs, example.target) if kept])
            )
            for example in found
        ]  # fmt: skip

    return learned


def test_every_assistant_turn_kept_with_its_end_token(make_tokenizer, chatml):
    learned = encode_with(make_tokenizer(template=chatml))
    assert learned(chat("hello", "good morning", "how are you ?", "fine")) == [
        "good morning <|im_end|> fine <|im_end|>"
    ]
    assert learned(chat("hello", "good", "a b")) == ["good <|im_end|>"]
    assert learned(chat("hello")) == [""]


def test_turn_may_end_where_the_next_starts(make_tokenizer, chatml):
    tight = chatml.replace("<|im_end|>\n", "<|im_end|>")
    assert tight != chatml
    learned = encode_with(make_tokenizer(template=tight))
    assert learned(chat("a", "b", "c", "d")) == ["b <|im_end|> d <|im_end|>"]


def test_loss_on_all_learns_every_turn(make_tokenizer, chatml):
    learned = encode_with(make_tokenizer(template=chatml), loss_on="All")
    assert learned(chat("a", "b")) == ["user a <|im_end|> <|im_start|> assistant b <|im_end|>"]


def test_rewritten_turn_carries_no_loss(make_tokenizer):
    learned = encode_with(make_tokenizer(template=REWRITES))
    assert learned(chat("a", "b", "c", "d"), chat("a", "b")) == ["tool d <|im_end|>", "tool b <|im_end|>"]


def test_manifests_template_is_used_and_completed_with_an_end_token(make_tokenizer, chatml):
    learned = encode_with(make_tokenizer(template=chatml), chat_template=PLAIN)
    assert learned(chat("a", "b"), chat("a", "b", "c")) == ["b </s>", "b"]


def test_messages_as_json_text_and_with_nulls_of_arrow(make_tokenizer, chatml):
    learned = encode_with(make_tokenizer(template=chatml + "{% if messages[0].name is defined %}<s>{% endif %}"))
    with_nulls = [{**message, "name": None} for message in chat("a", "b")]
    assert learned(json.dumps(chat("a", "b")), with_nulls) == ["b <|im_end|>"] * 2


def test_typed_messages_do_not_depend_on_the_types_of_others():
    """Arrow orders the fields of objects by all records, and makes numbers floats where one record has a fraction."""
    alone = [{"role": "assistant", "call": {"dose": 5, "age": 30}}]
    beside_others = [{"call": {"age": 30.0, "dose": 5.0, "unit": None}, "role": "assistant"}]
    assert json.dumps(conversation(alone)) == json.dumps(conversation(beside_others))
    assert json.dumps(conversation(json.dumps(alone))) == json.dumps(alone), "JSON text is that of its record alone"


def test_tools_are_passed_to_the_template(make_tokenizer, chatml):
    template = "{% if tools %}<|im_start|>tool {{ tools[0].name }}<|im_end|>{% endif %}" + chatml
    columns = {"messages": "m", "tools": "t"}
    learned = encode_with(make_tokenizer(template=template), loss_on="All", columns=columns)
    tools = [[{"name": "three"}], None, '[{"name": "two"}]']
    found = learned(*[chat("a", "b")] * 3, tools=tools)
    assert [text.split(" <|im_start|> user")[0].split(" <|im_end|>")[0] for text in found] == [
        "tool three",
        "user a",
        "tool two",
    ]


def test_malformed_conversation_drops_only_itself(make_tokenizer, chatml):
    learned = encode_with(make_tokenizer(template=STRICT + chatml))
    odd = [
        None,
        [],
        "{",
        "[1]",
        7,
        [{"content": "no role"}],
        [{"role": "system", "content": "refused by the template"}],
    ]
    assert learned(chat("a", "b"), *odd, chat("a", "c")) == ["b <|im_end|>", *[None] * 7, "c <|im_end|>"]


def test_long_conversation_is_truncated_or_dropped(make_tokenizer, chatml):
    tokenizer = make_tokenizer(template=chatml)
    assert encode_with(tokenizer, max_length=7)(chat("a", "b c d")) == ["b"]
    assert encode_with(tokenizer, max_length=7, truncate=False)(chat("a", "b c d")) == [None]
    assert encode_with(tokenizer, max_length=15)(chat(*"abcdef")) == ["b <|im_end|> d"]


def test_rendering_stops_where_the_tokens_do(make_tokenizer, chatml):
    render = renderer(make_tokenizer(template=chatml), None)
    rendered = []

    def counted(messages, tools, generation_prompt):
        rendered.append(len(messages))
        return render(messages, tools, generation_prompt)

    messages = chat(*["a"] * 1000)
    whole = render(messages, None, False)
    first = whole.index("<|im_start|>user", 1)
    assert assistant_turns(messages, None, counted, whole, first + 5) == [(first - len("a<|im_end|>\n"), first)]
    assert rendered == [1, 2, 3]


def test_rendering_ends_where_it_would_take_too_long(make_tokenizer, chatml):
    """The template changes the first turns when others follow, so none of them shows that the last ones are cut."""
    render = renderer(make_tokenizer(template=chatml), None)
    rendered = []

    def changing(messages, tools, generation_prompt):
        rendered.append(len(messages))
        return f"{len(messages)}" + render(messages, tools, generation_prompt)

    messages = chat(*["a"] * 2000)
    assert assistant_turns(messages, None, changing, changing(messages, None, False), 100) == []
    assert sum(rendered[1:]) < 100_000


def test_values_that_a_template_only_reads_cost_time_as_well(make_tokenizer, chatml):
    rendered = []

    def silent(messages, tools, generation_prompt):
        rendered.append(len(messages))
        return "".join(message["role"] for message in messages)

    parts = {"role": "user", "content": [{"type": "unknown"}] * 100_000}
    assert assistant_turns([parts, *chat(*["a"] * 40)], None, silent, "user", 100) == []
    assert len(rendered) <= 1
    learned = encode_with(make_tokenizer(template=chatml))
    assert learned([{"role": "user", "content": [[]] * 400_000}, *chat("a", "b")], chat("a", "b")) == [
        None,
        "b <|im_end|>",
    ]


def test_nested_values_cost_the_spaces_that_a_template_indents_them_with(make_tokenizer, chatml):
    """300,000 numbers in 250 lists are 0.6 MB of JSON text, and 300 million characters after `tojson(indent=4)`."""
    learned = encode_with(make_tokenizer(template=chatml), columns={"messages": "m", "tools": "t"})
    flat, deep = ('[{"a":' + "[" * depth + "7," * 300_000 + "7" + "]" * depth + "}]" for depth in (1, 250))
    assert [found is None for found in learned(*[chat("a", "b")] * 2, tools=[flat, deep])] == [False, True]


def test_tools_with_nested_schemas_are_rendered(make_tokenizer, chatml):
    template = "{% if tools %}{{ tools | tojson(indent=4) }}{% endif %}" + chatml
    schema = {"type": "string", "description": "the name of a ward"}
    for _ in range(4):
        schema = {"type": "object", "properties": {"left": schema, "right": schema}, "required": ["left", "right"]}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": schema}} for i in range(60)]
    assert len(json.dumps(tools)) > 100_000 and rendering_cost(tools) < RENDERED_CHARACTERS / 20
    learned = encode_with(make_tokenizer(template=template), max_length=10**6, columns={"messages": "m", "tools": "t"})
    assert learned(chat(*"abcd"), tools=[tools]) == ["b <|im_end|> d <|im_end|>"]


def test_only_what_a_tokenizer_reads_of_a_batch_is_held(make_tokenizer):
    """The text of a record may be far longer than the record."""
    encode = tokeniser(make_tokenizer(template=PLAIN.replace("m.content", "m.content * 1000")), Recipe(MESSAGES, 8))
    conversations = [chat("a", "b " * 500) for _ in range(100)]  # each is rendered as a million characters
    tracemalloc.start()
    encode({"messages": conversations})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20_000_000


def test_turn_that_is_longer_than_what_a_tokenizer_reads_is_located_in_the_whole_text(make_tokenizer):
    mark = "{% if loop.last and m.role == 'assistant' %}tool {% endif %}"
    template = REWRITES.replace(mark, "").replace("<|im_end|>", mark + "<|im_end|>")
    learned = encode_with(make_tokenizer(template=template), max_length=8)
    long = "b " * 500
    assert learned(chat("a", long)) == ["b b"]
    assert learned(chat("a", long, "c", "d")) == [""], "it loses the mark at its end, which no tokenizer reads"


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (None, "has no chat template"),
        (COUNTS, "assistant's turns cannot be located"),
        ("{{ raise_exception('never') }}", r"cannot render a greeting and its answer \(never\)"),
        ("{% for %}", "cannot render a greeting"),
    ],
)
def test_unsuitable_template_is_refused(make_tokenizer, template, sentence):
    with pytest.raises(DataError, match=rf"^spec.model.chatTemplate: .*{sentence}"):
        tokeniser(make_tokenizer(template=template), Recipe(MESSAGES, 32, loss_on="Assistant"))
