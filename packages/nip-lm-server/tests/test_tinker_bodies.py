"""Numbers of Tinker's API are numbers: no texts, no truth values, and the other way round."""

import pytest

from nip_base.api_errors import ApiError
from nip_lm_server.tinker import tinker_bodies as bodies

LORA = {"session_id": "s", "model_seq_id": 0, "base_model": "tiny"}
STEP = {"model_id": "m", "seq_id": 1}
SAMPLE = {"prompt": {"chunks": [{"tokens": [1, 2]}]}, "sampling_params": {"max_tokens": 8}}


@pytest.mark.parametrize(
    ("kind", "body", "place"),
    [
        (bodies.CreateModel, {**LORA, "model_seq_id": True}, "model_seq_id"),
        (bodies.CreateModel, {**LORA, "lora_config": {"rank": "8"}}, "lora_config.rank"),
        (bodies.CreateModel, {**LORA, "lora_config": {"rank": True}}, "lora_config.rank"),
        (bodies.CreateModel, {**LORA, "lora_config": {"rank": 8.0}}, "lora_config.rank"),
        (bodies.CreateModel, {**LORA, "lora_config": {"rank": 8, "train_mlp": 1}}, "train_mlp"),
        (bodies.OptimStep, {**STEP, "adam_params": {"learning_rate": "1e-4"}}, "learning_rate"),
        (bodies.OptimStep, {**STEP, "adam_params": {"beta1": True}}, "beta1"),
        (bodies.OptimStep, {**STEP, "seq_id": "1"}, "seq_id"),
        (bodies.Sample, {**SAMPLE, "num_samples": "2"}, "num_samples"),
        (bodies.Sample, {**SAMPLE, "sampling_params": {"temperature": True}}, "temperature"),
        (bodies.Sample, {**SAMPLE, "sampling_params": {"stop": ["a", 1]}}, "stop"),
        (bodies.Sample, {**SAMPLE, "prompt": {"chunks": [{"tokens": [True]}]}}, "tokens.0"),
        (bodies.Sample, {**SAMPLE, "prompt_logprobs": "true"}, "prompt_logprobs"),
        (bodies.SaveWeights, {**STEP, "ttl_seconds": "60"}, "ttl_seconds"),
    ],
)
def test_a_text_or_a_truth_value_is_no_number(kind, body, place):
    with pytest.raises(ApiError, match=place) as error:
        bodies.read_body(kind, body)
    assert error.value.status == 400


def test_a_whole_number_may_stand_where_a_fraction_may():
    body = {**STEP, "adam_params": {"learning_rate": 1, "beta1": 0, "eps": 1e-9}}
    read = bodies.read_body(bodies.OptimStep, body).adam_params
    assert read is not None and (read.learning_rate, read.beta1) == (1.0, 0.0)
    bodies.read_body(bodies.CreateModel, {**LORA, "lora_config": {"rank": 8, "seed": None}})
    sampled = bodies.read_body(bodies.Sample, {**SAMPLE, "sampling_params": {"stop": [5, 6]}})
    assert sampled.sampling_params.stop == [5, 6]
