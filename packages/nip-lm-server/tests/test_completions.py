"""Completions: prompts that are no conversation, in OpenAI's legacy shape."""

from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Completion
from served_here import ChosenEngine, serve

from nip_lm_server.engines.base import Capabilities

PROMPT = {"model": "sim", "prompt": "hello", "seed": 1}


def test_a_completion_has_openais_shape(server) -> None:
    answer = server.client.completions.create(**PROMPT, n=2, max_tokens=30)
    Completion.model_validate(answer.model_dump(), strict=True)
    assert (answer.object, answer.model) == ("text_completion", "sim")
    assert answer.id.startswith("cmpl-") and answer.system_fingerprint.startswith("fp_")
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert {choice.finish_reason for choice in answer.choices} <= {"stop", "length"}
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_without_max_tokens_there_are_sixteen(server) -> None:
    answer = server.client.completions.create(**PROMPT, n=5)
    assert max(c.finish_reason == "length" for c in answer.choices)
    assert answer.usage.completion_tokens <= 5 * 16


def test_prompts_come_in_four_shapes(server) -> None:
    ask = lambda prompt, **more: server.client.completions.create(  # noqa: E731
        **{**PROMPT, "prompt": prompt, "max_tokens": 40, **more}
    )
    one, two = ask("one"), ask("two")
    both = ask(["one", "two"])
    assert [c.text for c in both.choices] == [one.choices[0].text, two.choices[0].text]
    assert [c.index for c in both.choices] == [0, 1]
    assert both.usage.prompt_tokens == one.usage.prompt_tokens + two.usage.prompt_tokens
    known = ask("one", extra_body={"return_token_ids": True}).choices[0].prompt_token_ids
    ids = ask(known)
    assert ids.choices[0].text == one.choices[0].text
    assert ids.usage.prompt_tokens == len(known)
    lists = ask([known, known[:1]], n=2)
    assert len(lists.choices) == 4 and lists.usage.prompt_tokens == len(known) + 1
    assert lists.choices[0].text == one.choices[0].text


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"prompt": None}, "missing_required_parameter", "prompt"),
        ({"prompt": []}, "invalid_value", "prompt"),
        ({"prompt": [[]]}, "invalid_value", "prompt"),
        ({"prompt": ["a", 1]}, "invalid_value", "prompt"),
        ({"prompt": [-1]}, "invalid_value", "prompt"),
        ({"prompt": [True]}, "invalid_value", "prompt"),
        ({"prompt": {"a": 1}}, "invalid_value", "prompt"),
        ({"prompt": ["x"] * 600, "n": 2}, "invalid_value", "prompt"),
        ({"suffix": "end"}, "unsupported_value", "suffix"),
        ({"echo": True}, "unsupported_value", "echo"),
        ({"best_of": 2}, "unsupported_value", "best_of"),
        ({"logprobs": 0}, "unsupported_value", "logprobs"),
        ({"logprobs": 6}, "invalid_value", "logprobs"),
        ({"logprobs": True}, "invalid_value", "logprobs"),
        ({"logit_bias": {"1": 1}}, "unsupported_value", "logit_bias"),
        ({"messages": []}, "unknown_parameter", "messages"),
        ({"max_completion_tokens": 1}, "unknown_parameter", "max_completion_tokens"),
        ({"prompt": "x" * 200_000}, "context_length_exceeded", "prompt"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_completion_is_named(
    server, body: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.post("/completions", body={**PROMPT, **body}, cast_to=object)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_what_makes_no_difference_is_taken(server) -> None:
    plain = server.client.completions.create(**PROMPT)
    same = server.client.completions.create(
        **PROMPT, best_of=1, echo=False, suffix=None, user="me", logit_bias={}, presence_penalty=0
    )
    assert same.choices == plain.choices


def test_one_prompt_that_is_wrong_fails_them_all(server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.completions.create(**{**PROMPT, "prompt": ["fine", "x" * 200_000]})
    assert caught.value.code == "context_length_exceeded"


async def test_the_engine_gets_the_prompt_as_it_is(tmp_path: Path) -> None:
    engine = ChosenEngine(capabilities=Capabilities(logprobs=True, max_top_logprobs=5))
    async with serve(tmp_path / "state", engine) as here:
        await here.post("/v1/completions", {**PROMPT, "logprobs": 3})
        await here.post("/v1/completions", {**PROMPT, "prompt": [[1, 2]], "max_tokens": 4})
        first, second = engine.asked
        assert (first.prompt, first.messages, first.max_tokens) == ("hello", (), 16)
        assert (first.logprobs, first.top_logprobs) == (True, 3)
        assert (second.prompt, second.max_tokens, second.logprobs) == ((1, 2), 4, False)
