"""Thoughts are trained on as the model's chat template writes them, in the context it is served."""

import json

import pytest

pytest.importorskip("transformers")

from thinking_model import THINKING
from tiny_model import TEMPLATE, make_tokenizer

from nip_base import formats
from nip_base.formats.messages import parse_message
from nip_base.formats.preferences import PreferenceExample
from nip_lm_server.chats import chat_template
from nip_lm_server.training.methods.dpo import encode_pair
from nip_lm_server.training.methods.encoding import IGNORED, ExampleError, encode_example
from nip_lm_server.training.model.loading import Text
from nip_lm_server.vllm_keys.nip_control_tokens import set_template_kwargs, thought_form

CHAT = [
    {"role": "user", "content": "U1"},
    {"role": "assistant", "content": "A1", "reasoning_content": "T1"},
    {"role": "user", "content": "U2"},
    {"role": "assistant", "content": "A2", "reasoning_content": "T2"},
]
LEAVES_OUT = TEMPLATE.replace("message['content']", "message['content'].split('</think>')[-1]")
"""As some public templates do with every answer, the last one too."""


def reading(field):
    """A template that writes thoughts from this field, as a message of their own."""
    thought = "'<|system|>' + message.FIELD + '<|end|>'".replace("FIELD", field)
    said = f"({thought} if message.{field} else '') + message['content']"
    return TEMPLATE.replace("message['content']", said)


TEMPLATES = {
    "forgets": (THINKING, "reasoning_content", "<think>\n{}\n</think>\n\n{}<|end|>"),
    "plain": (TEMPLATE, "content", "<think>\n{}\n</think>\n\n{}<|end|>"),
    "begun": (TEMPLATE.replace("<|assistant|>'", "<|assistant|><think>\\n'"), "content", "{}\n</think>\n\n{}<|end|>"),
    "thinking": (reading("thinking"), "thinking", "<|system|>{}<|end|>{}<|end|>"),
    "reasoning": (reading("reasoning"), "reasoning", "<|system|>{}<|end|>{}<|end|>"),
}  # fmt: skip


def encode(tokenizer, messages):
    stops = frozenset({tokenizer.convert_tokens_to_ids("<|end|>")})
    return encode_example(tokenizer, messages, stop_tokens=stops, max_length=500, line=7)


def learned(tokenizer, sequence):
    return tokenizer.decode([label for label in sequence.labels if label != IGNORED])


@pytest.mark.parametrize("name", ["forgets", "plain", "begun"])
def test_each_answer_is_learned_with_its_thoughts_after_the_prompt_that_is_served(name):
    template, field, written = TEMPLATES[name]
    tokenizer = make_tokenizer(template)
    assert thought_form(tokenizer) == field
    sequences = encode(tokenizer, CHAT)
    assert [learned(tokenizer, s) for s in sequences] == [
        written.format("T1", "A1"), written.format("T2", "A2")
    ]  # fmt: skip
    # A client sends the conversation back without thoughts, with the text alone.
    served = [{"role": m["role"], "content": m["content"]} for m in CHAT]
    for sequence, asked in zip(sequences, (served[:1], served[:3]), strict=True):
        prompt = chat_template.encode_prompt(tokenizer, asked)
        assert list(sequence.input_ids[: len(prompt)]) == prompt
        assert "T1" not in tokenizer.decode(prompt)
        assert not any(sequence.actions[: len(prompt)])
        assert all(sequence.actions[len(prompt) :])


@pytest.mark.parametrize("name", ["thinking", "reasoning"])
def test_a_field_of_another_name_is_found(name):
    template, field, _ = TEMPLATES[name]
    tokenizer = make_tokenizer(template)
    # transformers may hand a field on under the other names, too.
    assert thought_form(tokenizer) in (field, "reasoning_content")
    whole = chat_template.render(tokenizer, CHAT[:2], generation=False, thoughts="T1")
    assert "T1" in whole and whole.index("T1") < whole.index("A1")


def test_without_thoughts_nothing_is_written_otherwise_than_before():
    plain = [{k: v for k, v in m.items() if k != "reasoning_content"} for m in CHAT]
    tokenizer = make_tokenizer()
    [sequence] = encode(tokenizer, plain)
    assert learned(tokenizer, sequence) == "A1<|end|>A2<|end|>"


@pytest.mark.parametrize(
    ("template", "variables"), [(LEAVES_OUT, {}), (THINKING, {"enable_thinking": False})]
)
def test_a_template_that_can_t_write_them_is_refused(template, variables):
    tokenizer = make_tokenizer(template)
    set_template_kwargs(tokenizer, variables)
    assert thought_form(tokenizer) is None
    with pytest.raises(ExampleError, match=r"line 7: .*reasoning_content") as caught:
        encode(tokenizer, CHAT)
    assert caught.value.code == "chat_template_refused"


def test_what_a_thought_says_is_no_control_token():
    tokenizer = make_tokenizer(THINKING)
    chat = [CHAT[0], {**CHAT[1], "reasoning_content": "<|end|><|user|>x"}]
    [sequence] = encode(tokenizer, chat)
    ends = sequence.input_ids.count(tokenizer.convert_tokens_to_ids("<|end|>"))
    assert ends == 2  # of the question and of the answer
    assert "< |end|>" in learned(tokenizer, sequence)


def test_equal_answers_can_be_told_by_their_thoughts():
    tokenizer = make_tokenizer(THINKING)
    text = Text(tokenizer, chat_template.stop_token_ids(tokenizer), None, 500)
    preferred, rejected = (
        parse_message({"role": "assistant", "content": "A", "reasoning_content": thought})
        for thought in ("so", "or")
    )
    pair = encode_pair(
        PreferenceExample((parse_message(CHAT[0]),), preferred, rejected), text, line=1
    )
    assert tokenizer.decode(pair.preferred) == "<think>\nso\n</think>\n\nA<|end|>"
    assert tokenizer.decode(pair.rejected) == "<think>\nor\n</think>\n\nA<|end|>"


def broken(method, *lines):
    found = formats.validate(method, enumerate(lines, 1), min_examples=1)
    return [(problem.code, problem.message) for problem in found]


def test_the_formats_take_thoughts_of_answers_alone():
    assert broken("supervised", {"messages": CHAT}) == []
    assert (
        broken("supervised", {"messages": [{**CHAT[0], "reasoning_content": None}, CHAT[1]]}) == []
    )
    user = [{**CHAT[0], "reasoning_content": "Hm."}, CHAT[1]]
    [(code, said)] = broken("supervised", {"messages": user})
    assert code == "invalid_reasoning_content"
    assert (
        said
        == "messages[0] has reasoning_content, but only assistant messages think (role is 'user')"
    )
    [(code, said)] = broken(
        "supervised", {"messages": [CHAT[0], {**CHAT[1], "reasoning_content": 5}]}
    )
    assert (code, said) == (
        "invalid_reasoning_content", "messages[1].reasoning_content must be a text, got 5"
    )  # fmt: skip
    pair = {"input": {"messages": CHAT[:1]}, "preferred_output": [CHAT[1]]}
    other = {**CHAT[1], "reasoning_content": "T9"}
    assert broken("dpo", {**pair, "non_preferred_output": [other]}) == []
    assert [c for c, _ in broken("dpo", {**pair, "non_preferred_output": [CHAT[1]]})] == [
        "equal_outputs"
    ]
    # A line that was read and written again has them still.
    [(_, example)] = formats.read_examples("supervised", json.dumps({"messages": CHAT}).encode())
    assert json.loads(formats.to_jsonl([example]))["messages"] == CHAT
