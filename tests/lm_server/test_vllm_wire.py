"""Answers of vLLM 0.32, as it gave them, become what the engine interface says."""

import pytest

from nip_lm_server.engines import vllm_wire
from nip_lm_server.engines.base import (
    EngineError,
    EngineRequestError,
    GenerationRequest,
    TopLogprob,
)

MESSAGES = ({"role": "user", "content": "hello"},)
CHAT = {
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": " e l"},
            "logprobs": {
                "content": [
                    {"token": " e", "logprob": -0.25, "bytes": [32, 101], "top_logprobs": [
                        {"token": " e", "logprob": -0.25, "bytes": [32, 101]},
                        {"token": " l", "logprob": -2.5, "bytes": [32, 108]}]},
                    {"token": " l", "logprob": -1.5, "bytes": [32, 108], "top_logprobs": [
                        {"token": " e", "logprob": -0.75, "bytes": [32, 101]},
                        {"token": " l", "logprob": -1.5, "bytes": [32, 108]}]},
                ]
            },
            "finish_reason": "length",
            "token_ids": [447, 408],
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    "prompt_token_ids": [3, 76, 4],
}  # fmt: skip


def test_a_chat_request_leaves_nothing_out():
    request = GenerationRequest(
        "ft:a", MESSAGES, max_tokens=5, temperature=0.5, top_p=0.9, repetition_penalty=1.1, n=2,
        seed=3, stop=("x",), logprobs=True, top_logprobs=2, return_token_ids=True,
    )  # fmt: skip
    assert vllm_wire.request_of(request) == (
        "/v1/chat/completions",
        {
            "model": "ft:a", "messages": list(MESSAGES), "max_tokens": 5, "temperature": 0.5,
            "top_p": 0.9, "repetition_penalty": 1.1, "n": 2, "seed": 3, "stop": ["x"],
            "logprobs": True, "top_logprobs": 2, "return_token_ids": True,
        },
    )  # fmt: skip


def test_a_prompt_of_tokens_is_sent_as_it_is():
    path, body = vllm_wire.request_of(GenerationRequest("tiny", prompt=(1, 2)), stream=True)
    assert path == "/v1/completions"
    assert body["prompt"] == [1, 2] and body["add_special_tokens"] is False
    assert body["max_tokens"] is None and body["stream"] is True and "logprobs" not in body


def test_a_whole_answer_keeps_every_token():
    request = GenerationRequest(
        "tiny", MESSAGES, logprobs=True, top_logprobs=1, return_token_ids=True
    )
    result = vllm_wire.result_of(request, CHAT)
    (choice,) = result.choices
    assert (result.model, result.prompt_tokens, result.prompt_token_ids) == ("tiny", 3, (3, 76, 4))
    assert (choice.text, choice.finish_reason, choice.completion_tokens) == (" e l", "length", 2)
    assert choice.tokens == (" e", " l") and choice.token_ids == (447, 408)
    assert choice.logprobs == (-0.25, -1.5)
    assert choice.top_logprobs == ((TopLogprob(" e", -0.25),), (TopLogprob(" e", -0.75),))


def test_what_was_not_asked_for_is_not_there():
    (choice,) = vllm_wire.result_of(GenerationRequest("tiny", MESSAGES), CHAT).choices
    assert choice.tokens is choice.token_ids is choice.logprobs is choice.top_logprobs is None
    assert choice.completion_tokens == 2


def test_an_answer_without_what_was_asked_for_is_an_engine_error():
    with pytest.raises(EngineError, match="not as expected"):
        vllm_wire.result_of(GenerationRequest("tiny", MESSAGES), {"choices": []})


def test_a_chunk_becomes_a_delta_and_the_first_says_what_is_said_once():
    chunk = {
        "choices": [{"index": 1, "delta": {"content": " e"}, "token_ids": [447],
                     "logprobs": {"content": CHAT["choices"][0]["logprobs"]["content"][:1]},
                     "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3}, "prompt_token_ids": [3, 76, 4],
    }  # fmt: skip
    request = GenerationRequest("tiny", MESSAGES, n=2, logprobs=True, return_token_ids=True)
    (first,) = vllm_wire.delta_of(request, chunk, True)
    assert (first.index, first.text, first.finish_reason) == (1, " e", "stop")
    assert (first.tokens, first.token_ids, first.logprobs) == ((" e",), (447,), (-0.25,))
    assert first.prompt_tokens == 3 and first.prompt_token_ids == (3, 76, 4)
    (later,) = vllm_wire.delta_of(request, chunk, False)
    assert later.prompt_tokens is None and later.prompt_token_ids is None


@pytest.mark.parametrize(
    ("status", "message", "kind", "code"),
    [
        (404, "The model `x` does not exist.", EngineRequestError, "model_not_found"),
        (400, "greater than max_model_len=1024", EngineRequestError, "context_length_exceeded"),
        (400, "temperature must be non-negative", EngineRequestError, "invalid_value"),
        (500, "EngineCore encountered an issue", EngineError, None),
        (401, "Wrong or missing key", EngineError, None),
    ],
)
def test_errors_say_whose_fault_it_is(status, message, kind, code):
    error = vllm_wire.error_of(status, {"error": {"message": message, "param": "p"}})
    assert type(error) is kind and message in str(error)
    if isinstance(error, EngineRequestError):
        assert (error.code, error.param) == (code, "p")


def test_a_forced_token_must_be_the_one_that_came_from_the_model_that_was_asked():
    body = vllm_wire.forced("ft:a", [1, 2, 3], "salt")
    assert body["prompt"] == [1, 2] and body["allowed_token_ids"] == [3]
    choice = {"token_ids": [3], "logprobs": {"token_logprobs": [-1.25]}}
    answer = {"model": "ft:a", "choices": [choice]}
    assert vllm_wire.forced_logprob(body, answer) == -1.25
    for wrong in (
        {**answer, "model": "tiny"},
        {**answer, "choices": [{**choice, "token_ids": [4]}]},
        {**answer, "choices": [{**choice, "logprobs": None}]},
    ):
        with pytest.raises(EngineError, match="no log-probability"):
            vllm_wire.forced_logprob(body, wrong)
