"""Conversations: the assistant's turns, and what templates leave out, with suitable and unsuitable templates."""

import json
import time
import tracemalloc

import pytest

from tensorguard.data.chat import RENDERED_CHARACTERS, assistant_turns, is_written, renderer, rendering_cost
from tensorguard.data.errors import DataError
from tensorguard.data.recipe import Recipe
from tensorguard.data.unusable import Unusable
from tests.support.trainer.tokenising import tokeniser

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
        return [example if example is None or isinstance(example, Unusable) else words(example) for example in found]

    def words(example):
        return " ".join(
            tokenizer.convert_ids_to_tokens([token for token, kept in zip(example.inputs, example.target) if kept])
        )

    return learned


def test_every_assistant_turn_kept_with_its_end_token(make_tokenizer, chatml):
    learned = encode_with(make_tokenizer(template=chatml))
    assert learned(chat("hello", "good morning", "how are you ?", "fine")) == [
        "good morning <|im_end|> fine <|im_end|>"
    ]
    assert learned(chat("hello", "good", "a b")) == ["good <|im_end|>"]


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


def test_unusable_conversation_is_unusable_alone(make_tokenizer, chatml):
    learned = encode_with(make_tokenizer(template=STRICT + chatml))
    odd = [None, [], "{", "[1]", 7, [{"content": "no role"}], [{"role": "user", "content": 7}]]
    refused = [{"role": "system", "content": "refused by the template"}]
    found = learned(chat("a", "b"), *odd, refused, chat("a", "c"))
    assert found == ["b <|im_end|>", *[Unusable.NO_CONVERSATION] * 7, Unusable.REWRITTEN, "c <|im_end|>"]


def test_unusable_tools_make_the_conversation_unusable(make_tokenizer, chatml):
    template = "{{ tools | tojson if tools else '' }}" + chatml
    learned = encode_with(make_tokenizer(template=template), columns={"messages": "m", "tools": "t"})
    found = learned(*[chat("a", "b")] * 3, tools=["[]", 7, ["x"]])
    assert found == ["b <|im_end|>", *[Unusable.NO_CONVERSATION] * 2]


def test_conversation_without_a_learned_token_is_unusable(make_tokenizer, chatml):
    nothing = Unusable.NOTHING_TO_LEARN
    learned = encode_with(make_tokenizer(template=chatml), max_length=7)
    critic = [*chat("a"), {"role": "critic", "content": "b"}]
    assert learned(chat("hello"), critic, chat("a a a a", "b")) == [nothing] * 3
    learned = encode_with(make_tokenizer(template=chatml), max_length=7, truncate=False)
    assert learned(chat("hello"), chat("a a a a", "b")) == [nothing, None]


def test_text_in_parts_is_learned_as_a_text(make_tokenizer, chatml):
    learned = encode_with(make_tokenizer(template=chatml))
    answer = {"role": "model", "content": [{"type": "text", "text": "b "}, {"type": "text", "text": "c"}]}
    assert learned([*chat("a"), answer]) == ["b c <|im_end|>"]


EACH = "{% for m in messages %}<m>{{ TEXT }}</m>{% endfor %}"


@pytest.mark.parametrize(
    ("template", "kept"),
    [
        (EACH.replace("TEXT", "m.content"), True),
        (EACH.replace("TEXT", "m.content | trim"), True),
        (EACH.replace("TEXT", "m.content | tojson"), True),
        (EACH.replace("TEXT", "m.content | trim | tojson if m.role == 'tool' else m.content"), True),
        (
            EACH.replace("TEXT", "'' if loop.first else messages[0].content + m.content if loop.last else m.content"),
            True,
        ),
        (EACH.replace("TEXT", "m.content if m.role != 'system'"), False),
        (EACH.replace("TEXT", "m.content if m.role != 'tool'"), False),
        (EACH.replace("TEXT", "m.content if m.role != 'assistant'"), False),
        (EACH.replace("TEXT", "m.content[:9]"), False),
        (EACH.replace("TEXT", "m.content | lower"), False),
        (EACH.replace("TEXT", "m.content | e"), False),
        (EACH.replace("messages", "messages[-2:]").replace("TEXT", "m.content"), False),
        (EACH.replace("messages", "messages | reverse").replace("TEXT", "m.content"), False),
    ],
)
def test_message_that_a_template_leaves_out_or_changes_is_found(make_tokenizer, template, kept):
    messages = [
        {"role": "system", "content": " Be brief.\n"},
        *chat('What is "good"?\nSay it. ', "Nothing <is>."),
        {"role": "tool", "content": '{"a": "b\\n"}'},
        *chat("And the rest?", "No."),
    ]
    text = make_tokenizer().apply_chat_template(messages, chat_template=template, tokenize=False)
    assert is_written(messages, None, text) == kept


def answered(tokenizer, messages, answer, tools=None):
    """The rendering of messages by a template that writes those of the assistant as `answer`."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}ANSWER{% else %}{{ m.content }}{% endif %}|{% endfor %}"
    )
    return tokenizer.apply_chat_template(
        messages, tools=tools, chat_template=template.replace("ANSWER", answer), tokenize=False
    )


@pytest.mark.parametrize(
    ("message", "whole", "lossy"),
    [
        ({"content": "yes"}, "{{ m.content }}", ""),
        ({"content": "<think>hm</think>yes"}, "{{ m.content }}", "{{ m.content.split('</think>')[1] }}"),
        ({"content": "hm</think> yes"}, "<think>\n{{ m.content }}", "{{ m.content[:11] }}"),
        ({"content": "yes", "reasoning_content": "hm"}, "{{ m.reasoning_content }}{{ m.content }}", "{{ m.content }}"),
        ({"content": "yes", "thinking": "hm", "reasoning": "hm"}, "{{ m.thinking }}{{ m.content }}", "{{ m.content }}"),
        ({"tool_calls": [{"function": {"name": "lab"}}]}, "{{ m.tool_calls[0].function.name }}", "{{ m.content }}"),
        ({"content": "yes", "function_call": {"name": "lab"}}, "{{ m.content }}lab", "{{ m.content }}"),
        ({"content": "yes", "tool_calls": [{"name": "lab"}]}, "{{ m.content }}lab", "lab"),
    ],
)
def test_reasoning_and_calls_of_an_answer_must_be_written(make_tokenizer, message, whole, lossy):
    messages = [*chat("hello"), {"role": "assistant", **message}]
    assert is_written(messages, None, answered(make_tokenizer(), messages, whole))
    assert not is_written(messages, None, answered(make_tokenizer(), messages, lossy))


def test_tools_must_be_written(make_tokenizer, chatml):
    tools = [{"function": {"name": "dose"}}, {"name": "lab"}, {"unnamed": 1}]
    assert is_written(chat("a", "b"), tools, "dose, lab a b")
    assert not is_written(chat("a", "b"), tools, "dose a b")
    learned = encode_with(make_tokenizer(template=chatml), columns={"messages": "m", "tools": "t"})
    assert learned(*[chat("a", "b")] * 2, tools=[tools, None]) == [Unusable.REWRITTEN, "b <|im_end|>"]


DROPS_EARLIER = "{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}"
DROPS_ALWAYS = "{{ m.content.split('</think>')[-1] }}"


def test_earlier_reasoning_may_be_left_out_but_carries_no_loss(make_tokenizer, chatml):
    """Models read earlier answers without their reasoning, so templates such as that of Qwen 3 leave it out."""
    both, earlier = chat("a", "c</think>b", "a", "c</think>d"), chat("a", "c</think>b", "a", "d")

    def learned(template, loss_on):
        template = chatml.replace("{{ m.content }}", template)
        return encode_with(make_tokenizer(template=template), loss_on)(both, earlier)

    last = "c </ think > d <|im_end|>".replace("</ think >", "<unk> <unk> <unk>")
    assert learned(DROPS_EARLIER, "Assistant") == [last, "d <|im_end|>"]
    assert learned(DROPS_ALWAYS, "Assistant") == [Unusable.REWRITTEN, "d <|im_end|>"]
    assert learned(DROPS_EARLIER, "All") == learned(DROPS_ALWAYS, "All") == [Unusable.REWRITTEN] * 2


def test_turn_before_which_a_template_cannot_render_carries_no_loss(make_tokenizer, chatml):
    needs_a_user = (
        "{% if not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('') }}{% endif %}"
    )
    learned = encode_with(make_tokenizer(template=needs_a_user + chatml))
    assert learned([{"role": "assistant", "content": "hello"}, *chat("a", "b")]) == ["b <|im_end|>"]


@pytest.mark.slow
def test_time_to_find_the_texts_grows_with_the_length_of_the_rendering():
    """Each message is found late, and each only as a JSON string."""
    messages = [{"role": "tool", "content": '"'}, *chat("x" * 2_000_000)] + [{"role": "tool", "content": '"'}] * 20_000
    text = "".join(json.dumps(message["content"]) for message in messages).replace('"\\""', '\\"')
    start = time.process_time()
    assert is_written(messages, None, text) and not is_written(messages[::-1], None, text)
    assert time.process_time() - start < 2


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_values_that_a_template_only_reads_cost_time_as_well(make_tokenizer, chatml):
    rendered = []

    def silent(messages, tools, generation_prompt):
        rendered.append(len(messages))
        return "".join(message["role"] for message in messages)

    parts = {"role": "user", "content": [{"type": "unknown"}] * 100_000}
    assert assistant_turns([parts, *chat(*["a"] * 40)], None, silent, "user", 100) == []
    assert len(rendered) <= 1
    learned = encode_with(make_tokenizer(template=chatml))
    large = {"role": "user", "content": "c", "notes": [[]] * 200_000}
    assert learned([large, *chat("a", "b")], chat("a", "b")) == [Unusable.TOO_LARGE, "b <|im_end|>"]


@pytest.mark.slow
def test_nested_values_cost_the_spaces_that_a_template_indents_them_with(make_tokenizer, chatml):
    """100,000 numbers in 250 lists are 0.2 MB of JSON text, and 100 million characters after `tojson(indent=4)`."""
    learned = encode_with(make_tokenizer(template=chatml), columns={"messages": "m", "tools": "t"})
    flat, deep = ('[{"a":' + "[" * depth + "7," * 100_000 + "7" + "]" * depth + "}]" for depth in (1, 250))
    assert learned(*[chat("a", "b")] * 2, tools=[flat, deep]) == ["b <|im_end|>", Unusable.TOO_LARGE]


@pytest.mark.slow
def test_tools_with_nested_schemas_are_rendered(make_tokenizer, chatml):
    template = "{% if tools %}{{ tools | tojson(indent=4) }}{% endif %}" + chatml
    schema = {"type": "string", "description": "the name of a ward"}
    for _ in range(4):
        schema = {"type": "object", "properties": {"left": schema, "right": schema}, "required": ["left", "right"]}
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": schema}} for i in range(60)]
    assert len(json.dumps(tools)) > 100_000 and rendering_cost(tools) < RENDERED_CHARACTERS / 20
    learned = encode_with(make_tokenizer(template=template), max_length=10**6, columns={"messages": "m", "tools": "t"})
    assert learned(chat(*"abcd"), tools=[tools]) == ["b <|im_end|> d <|im_end|>"]


@pytest.mark.slow
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
    assert learned(chat("a", long, "c", "d")) == [Unusable.NOTHING_TO_LEARN], "it loses the mark that is not read"


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (None, "has no chat template"),
        (COUNTS, "assistant's turns cannot be located"),
        (
            "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}",
            "it leaves out the text",
        ),
        ("{{ raise_exception('never') }}", r"cannot render a greeting and its answer \(never\)"),
        ("{% for %}", "cannot render a greeting"),
    ],
)
def test_unsuitable_template_is_refused(make_tokenizer, template, sentence):
    with pytest.raises(DataError, match=rf"^spec.model.chatTemplate: .*{sentence}"):
        tokeniser(make_tokenizer(template=template), Recipe(MESSAGES, 32, loss_on="Assistant"))
