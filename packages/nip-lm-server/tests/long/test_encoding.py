"""What is trained on is what is served, token for token."""

import pytest

pytest.importorskip("transformers")

from tiny_model import TEMPLATE, make_tokenizer

from nip_lm_server.chats import chat_template
from nip_lm_server.training.methods.encoding import IGNORED, ExampleError, encode_example


def encode(tokenizer, *turns, max_length=500):
    messages = [
        {"role": role, "content": text, **({"weight": weight[0]} if weight else {})}
        for role, text, *weight in turns
    ]
    stops = chat_template.stop_token_ids(tokenizer)
    return messages, encode_example(
        tokenizer, messages, stop_tokens=stops, max_length=max_length, line=7
    )


def learned_text(tokenizer, example):
    return tokenizer.decode([label for label in example.labels if label != IGNORED])


CHAT = [
    ("system", "S"),
    ("user", "U1"),
    ("assistant", "A1"),
    ("user", "U2"),
    ("assistant", "A2"),
]


def test_one_sequence_learns_every_assistant_message_with_its_stop_token():
    tokenizer = make_tokenizer()
    messages, examples = encode(tokenizer, *CHAT)
    (example,) = examples
    whole = chat_template.render(tokenizer, messages, generation=False)
    assert tokenizer.decode(example.input_ids) == whole
    assert learned_text(tokenizer, example) == "A1<|end|>A2<|end|>"
    assert example.learned == 6
    for token, label in zip(example.input_ids, example.labels, strict=True):
        assert label in (IGNORED, token)


def test_the_context_of_each_learned_token_is_the_prompt_that_is_served():
    tokenizer = make_tokenizer()
    messages, (example,) = encode(tokenizer, *CHAT)
    for index in (2, 4):
        prompt = chat_template.encode_prompt(tokenizer, messages[:index])
        assert list(example.input_ids[: len(prompt)]) == prompt
        answer = chat_template.encode(tokenizer, messages[index]["content"])
        end = len(prompt) + len(answer) + 1
        assert list(example.labels[len(prompt) : end]) == [*answer, tokenizer.eos_token_id]


def test_a_message_of_weight_0_is_context_only():
    tokenizer = make_tokenizer()
    _, (example,) = encode(tokenizer, ("user", "U"), ("assistant", "no", 0), *CHAT[3:])
    assert learned_text(tokenizer, example) == "A2<|end|>"
    assert "no" in tokenizer.decode(example.input_ids)
    with pytest.raises(ExampleError) as caught:
        encode(tokenizer, ("user", "U"), ("assistant", "no", 0))
    assert caught.value.code == "nothing_to_learn"


def test_names_reach_the_template_and_weights_do_not():
    template = (
        "{% for m in messages %}{{ m.name }}:{{ m.weight }}:{{ m.content }}<|end|>{% endfor %}"
    )
    tokenizer = make_tokenizer(template)
    messages = [{"role": "user", "content": "c", "name": "n", "weight": 1}]
    assert chat_template.render(tokenizer, messages, generation=False) == "n::c<|end|>"


def test_a_template_that_rewrites_earlier_turns_gives_one_sequence_per_turn():
    # Thoughts are only kept in the last message, as in several public templates.
    template = TEMPLATE.replace(
        "message['content']",
        "(message['content'] if loop.last else message['content'].split('T')[-1])",
    )
    tokenizer = make_tokenizer(template)
    _, examples = encode(
        tokenizer, ("user", "U1"), ("assistant", "whyTA1"), ("user", "U2"), ("assistant", "orTA2")
    )
    assert [learned_text(tokenizer, e) for e in examples] == ["whyTA1<|end|>", "orTA2<|end|>"]
    assert tokenizer.decode(examples[1].input_ids) == (
        "<|user|>U1<|end|><|assistant|>A1<|end|><|user|>U2<|end|><|assistant|>orTA2<|end|>"
    )


def test_what_follows_the_stop_token_is_not_learned():
    tokenizer = make_tokenizer(TEMPLATE.replace("<|end|>'", "<|end|>\\n'"))
    _, (example,) = encode(tokenizer, *CHAT)
    assert learned_text(tokenizer, example) == "A1<|end|>A2<|end|>"
    assert tokenizer.decode(example.input_ids).endswith("A2<|end|>")


def test_a_template_without_a_stop_token_still_teaches_to_stop():
    tokenizer = make_tokenizer(TEMPLATE.replace("<|end|>", ""))
    _, examples = encode(tokenizer, *CHAT)
    assert [learned_text(tokenizer, e) for e in examples] == ["A1<|end|>", "A2<|end|>"]
    assert tokenizer.decode(examples[1].input_ids).count("<|end|>") == 1


def test_a_template_whose_prompt_is_no_prefix_is_refused():
    tokenizer = make_tokenizer(
        "{{ messages | length }}" + TEMPLATE.replace("<|assistant|>'", "<|assistant|>'")
    )
    with pytest.raises(ExampleError, match="line 7") as caught:
        encode(tokenizer, *CHAT)
    assert caught.value.code == "chat_template_not_prefix"


def test_an_example_that_is_too_long_is_refused_with_its_line_and_never_cut():
    tokenizer = make_tokenizer()
    _, (example,) = encode(tokenizer, *CHAT)
    size = len(example.input_ids)
    encode(tokenizer, *CHAT, max_length=size)
    with pytest.raises(ExampleError, match=f"line 7: the example has {size} tokens") as caught:
        encode(tokenizer, *CHAT, max_length=size - 1)
    assert caught.value.code == "example_too_long"


def test_the_stop_tokens_come_from_tokenizer_template_and_generation_config():
    tokenizer = make_tokenizer(TEMPLATE.replace("<|end|>", "<|pad|>"))
    ids = {t: tokenizer.convert_tokens_to_ids(t) for t in ("<|end|>", "<|pad|>", "<|user|>")}

    class Config:
        eos_token_id = (ids["<|user|>"],)

    assert chat_template.stop_token_ids(tokenizer) == {ids["<|end|>"], ids["<|pad|>"]}
    assert chat_template.stop_token_ids(tokenizer, Config()) == set(ids.values())


def test_a_template_that_drops_the_system_message_does_not_accept_it():
    dropping = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    shapes = chat_template.check_shapes(make_tokenizer(dropping))
    assert shapes["user_assistant_user"]
    assert not shapes["system_user"]
    assert not shapes["system_user_assistant_user"]
