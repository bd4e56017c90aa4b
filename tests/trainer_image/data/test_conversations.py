"""Messages and tools: one result for one conversation, in every format and with all the names of roles in use."""

import datetime
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorguard.data.conversations import NotAConversation, call_names, messages_of, tools_of

TOOL = {"type": "function", "function": {"name": "dose", "parameters": {"type": "object", "properties": {}}}}


def user(content, **more):
    return {"role": "user", "content": content, **more}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
contents = (
    texts | st.lists(st.builds(lambda text: {"type": "text", "text": text}, texts), min_size=1, max_size=2) | st.none()
)
numbers = st.integers(-5, 5) | st.floats(-5, 5)
calls = st.lists(
    st.fixed_dictionaries(
        {"function": st.fixed_dictionaries({"name": texts}, optional={"arguments": st.dictionaries(texts, numbers)})}
    ),
    min_size=1,
    max_size=2,
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "Assistant", "gpt", "critic"]), "content": texts},
    optional={"name": st.none() | texts, "weight": numbers, "tool_calls": calls},
)
conversations = st.lists(st.lists(messages, min_size=1, max_size=3), min_size=1, max_size=3)


@given(conversations)
@settings(max_examples=30)
def test_types_that_arrow_chooses_from_all_records_change_nothing(found):
    typed = pa.array([*found, [{"weight": 0.5, "note": "x"}]]).to_pylist()
    for conversation, with_types in zip(found, typed):
        expected = json.dumps(messages_of(conversation))
        assert json.dumps(messages_of(with_types)) == expected
        assert json.dumps(messages_of(json.dumps(conversation))) == expected
        assert json.dumps(messages_of(json.dumps(conversation).encode())) == expected
        assert json.dumps(messages_of(expected)) == expected, "the result is a conversation"


@given(contents, st.booleans())
def test_message_has_a_text_or_calls(content, calls_a_tool):
    message = {"role": "assistant", "content": content, "tool_calls": [TOOL] if calls_a_tool else None}
    if content is None and not calls_a_tool:
        with pytest.raises(NotAConversation):
            messages_of([message])
        return
    [found] = messages_of([message])
    text = "".join(part["text"] for part in content) if isinstance(content, list) else content
    assert (found.get("content"), "tool_calls" in found) == (text, calls_a_tool)


def test_numbers_of_other_libraries_are_pythons():
    weights = {"a": np.float32(2), "b": Decimal("1.50"), "c": np.array([1.0, 2.5]), "d": float("nan")}
    assert json.dumps(messages_of([user("x", weights=weights)])[0]["weights"]) == '{"a": 2, "b": 1.5, "c": [1, 2.5]}'


def test_fields_come_in_their_usual_order_in_every_format():
    call = {"function": {"arguments": {"b": 1.0, "a": 2}, "name": "dose"}, "type": "function"}
    [found] = messages_of([{"tool_calls": [call], "content": "x", "extra": 1, "role": "assistant"}])
    assert list(found) == ["role", "content", "extra", "tool_calls"]
    assert json.dumps(found["tool_calls"]) == json.dumps(
        [{"type": "function", "function": {"name": "dose", "arguments": {"a": 2, "b": 1}}}]
    )


@pytest.mark.parametrize(
    ("written", "role"),
    [
        ("user", "user"), ("human", "user"), ("Human", "user"), (" prompter\n", "user"),
        ("assistant", "assistant"), ("ASSISTANT", "assistant"), ("model", "assistant"), ("gpt", "assistant"),
        ("chatgpt", "assistant"), ("bot", "assistant"), ("AI", "assistant"),
        ("System", "system"), ("developer", "system"),
        ("tool", "tool"), ("function", "tool"), ("observation", "tool"), ("ipython", "tool"),
        ("critic", "critic"), (" Critic", " Critic"), ("function_call", "function_call"),
    ],
)  # fmt: skip
def test_roles_in_use_are_mapped_and_others_kept(written, role):
    assert messages_of([{"role": written, "content": "x"}]) == [{"role": role, "content": "x"}]


@pytest.mark.parametrize(
    "message",
    [
        {"from": "human", "value": "a b"},
        {"speaker": "human", "text": "a b"},
        {"author": "human", "content": "a b", "value": ""},
        {"role": "user", "parts": [{"text": "a "}, {"text": "b"}]},
        {"role": "user", "parts": ["a ", "b"], "content": ""},
        {"role": "user", "parts": [{"type": "text", "text": "a b"}], "content": "a b"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, " b"]},
        {"role": "user", "content": [{"type": "output_text", "text": "a b", "annotations": []}]},
        {"role": "user", "content": [{"type": "text", "text": "a b", "image_url": None}]},
    ],
)
def test_names_of_fields_and_forms_of_texts_in_use(message):
    assert messages_of([message]) == [user("a b")]


def test_other_fields_stay_as_they_are():
    message = user("x", name="Ann", weight=0, thinking="hm", tool_call_id="7", **{"from": "ward"})
    assert messages_of([{**message, "gone": None}]) == [message]
    time = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    assert messages_of([user("x", at=time)]) == [user("x", at="2024-05-01 12:00:00+00:00")]


@pytest.mark.parametrize("field", ["messages", "conversations"])
def test_conversation_in_an_object(field):
    assert messages_of({field: [user("x")]}) == messages_of(json.dumps({field: [user("x")]})) == [user("x")]


@pytest.mark.parametrize(
    "value",
    [
        None, 7, "", "{", "text", "[]", b"\xff", [], [1], ["x"], [None], [[]], {}, user("x"),
        {"messages": [user("x")], "system": "an instruction that would be lost"},
        "[" * 100_000,
        [{"content": "x"}], [user("x", role=None)], [user("x", role=" ")], [user("x", role=["user"])],
        [{"role": "user"}], [user(None)], [user(7)], [user(1.5)], [user(True)], [user({"text": "x"})], [user(b"x")],
        [{"role": "assistant", "tool_calls": []}],
        [user("x", value="y")], [user("x", text=7)],
        [user([7])], [user([["x"]])], [user([None])], [user([{"text": None}])],
        [user([{"type": "text"}])], [user([{"type": "text", "text": {"value": "x"}}])],
        [user(["x", {"type": "image_url", "image_url": {"url": "data:"}}])],
        [user(["x", {"type": "input_audio", "input_audio": {}}])],
        [user(["x", {"type": "tool_use", "name": "dose"}])],
        [user(["x", {"text": "y", "thought": True}])],
        [user("x", photo=b"png")], [user("x", photo=object())],
        [user("x"), {"role": "assistant"}],
    ],
)  # fmt: skip
def test_what_is_no_conversation(value):
    with pytest.raises(NotAConversation) as error:
        messages_of(value)
    assert "lost" not in str(error.value)


@pytest.mark.parametrize("value", [None, "", " ", "null", "[]", [], b""])
def test_no_tools(value):
    assert tools_of(value) is None


@pytest.mark.parametrize("value", [7, "x", "{}", [1], ["x"], {"name": "dose"}, b"\xff"])
def test_what_are_no_tools(value):
    with pytest.raises(NotAConversation):
        tools_of(value)


def test_tools_are_the_same_in_every_format():
    typed = pa.array([[TOOL], [{"type": "function", "function": {"name": "x", "strict": True}}]]).to_pylist()[0]
    assert json.dumps(tools_of(typed)) == json.dumps(tools_of(json.dumps([TOOL]))) == json.dumps([TOOL])


def test_names_of_the_functions_that_a_message_calls():
    message = {"tool_calls": [TOOL, {"name": "lab"}, {"function": {}}, 7], "function_call": {"name": "old"}}
    assert call_names(message) == ["dose", "lab", "old"]
    assert call_names({"tool_calls": 7, "function_call": "x"}) == []
