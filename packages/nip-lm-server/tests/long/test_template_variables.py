"""Variables of a chat template are the same where a model is served and where it is trained."""

import asyncio
import json

import pytest

pytest.importorskip("transformers")

from tiny_model import TEMPLATE, make_model, make_tokenizer

from nip_base.wire import EffectiveSettings
from nip_lm_server.chats import chat_template
from nip_lm_server.engines.base import GenerationRequest
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine
from nip_lm_server.engines.vllm.options import VllmOptions
from nip_lm_server.training.job import TrainingJob
from nip_lm_server.training.methods.encoding import IGNORED, encode_example
from nip_lm_server.training.model.loading import load_text
from nip_lm_server.vllm_keys.nip_control_tokens import (
    BreakControlTokens,
    set_template_kwargs,
    template_facts,
)

DATED = (
    "{%- if not date_string is defined %}"
    "{%- if strftime_now is defined %}{%- set date_string = strftime_now('%d %b %Y') %}"
    "{%- else %}{%- set date_string = '26 Jul 2024' %}{%- endif %}{%- endif %}"
    "{{- '<|system|>Today Date: ' + date_string + '<|end|>' }}" + TEMPLATE
)
"""As Llama 3.2's: today, unless a date is given. It knows no names."""
THINKING = """\
{%- for message in messages %}
  {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
  {%- if message.role == 'assistant' and loop.last %}
    {{- '<|assistant|><think>\n\n</think>\n\n' + content + '<|end|>' }}
  {%- else %}
    {{- '<|' + message.role + '|>' + content + '<|end|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|assistant|>' }}
  {%- if enable_thinking is defined and enable_thinking is false %}
    {{- '<think>\n\n</think>\n\n' }}
  {%- endif %}
{%- endif %}"""
"""As Qwen3's: it thinks unless told not to, and forgets earlier thoughts."""
PINNED = {"date_string": "1 Jan 2020"}
CHAT = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]
SETTINGS = EffectiveSettings(
    n_epochs=1, batch_size=1, learning_rate=1.0, learning_rate_multiplier=1.0, max_length=256, start_from="base",
    lora_rank=2, lora_alpha=4.0, lora_dropout=0.0, lora_target_modules="all-linear",
)  # fmt: skip


def tokenizer_with(template, **variables):
    tokenizer = make_tokenizer(template)
    set_template_kwargs(tokenizer, variables)
    return tokenizer


def learned(tokenizer):
    (example,) = encode_example(
        tokenizer, CHAT, stop_tokens=chat_template.stop_token_ids(tokenizer), max_length=99, line=1
    )
    return tokenizer.decode([label for label in example.labels if label != IGNORED])


def test_with_thinking_off_what_is_learned_begins_after_the_empty_thought():
    tokenizer = tokenizer_with(THINKING, enable_thinking=False)
    prompt = chat_template.render(tokenizer, CHAT[:1], generation=True)
    assert prompt == "<|user|>U<|end|><|assistant|><think>\n\n</think>\n\n"
    assert learned(tokenizer) == "A<|end|>"
    assert learned(tokenizer_with(THINKING)) == "<think>\n\n</think>\n\nA<|end|>"


def test_a_date_is_noticed_and_can_be_pinned():
    today, pinned = tokenizer_with(DATED), tokenizer_with(DATED, **PINNED)
    assert template_facts(today) == {
        "writes_date": True, "shows_names": False, "thoughts": "content", "unset": ["date_string"]
    }  # fmt: skip
    assert template_facts(pinned)["unset"] == []
    assert not template_facts(pinned)["writes_date"]
    text = chat_template.render(pinned, CHAT, generation=False)
    assert text.startswith("<|system|>Today Date: 1 Jan 2020<|end|>")
    assert "1 Jan 2020" not in chat_template.render(today, CHAT, generation=False)


def test_names_and_thinking_are_noticed():
    shown = TEMPLATE.replace("message['content']", "(message.name or '') + message['content']")
    assert template_facts(make_tokenizer(shown))["shows_names"]
    facts = template_facts(make_tokenizer(THINKING))
    assert facts["unset"] == ["enable_thinking"]


@pytest.mark.parametrize("name", ["enable_thinkin", "messages", "date_string"])
def test_a_variable_that_the_template_does_not_have_is_refused(name):
    with pytest.raises(ValueError, match=f"no variable '{name}' to set; it has enable_thinking"):
        set_template_kwargs(make_tokenizer(THINKING), {name: False})


def test_engine_training_and_vllm_render_alike(tmp_path, monkeypatch):
    path = str(make_model(tmp_path / "dated", template=DATED))
    job = TrainingJob(
        method="supervised", base_model_path=path, training_file=tmp_path, seed=0,
        hyperparameters=SETTINGS, output_dir=tmp_path, chat_template_kwargs=PINNED,
    )  # fmt: skip
    assert TrainingJob.model_validate_json(job.model_dump_json(by_alias=True)) == job
    trained = chat_template.encode_prompt(load_text(job).tokenizer, CHAT[:1])

    async def served():
        engine = EmbeddedEngine(path, threads=1, chat_template_kwargs=PINNED)
        asked = GenerationRequest("dated", tuple(CHAT[:1]))
        await engine.start()
        try:
            return await engine.tokenize(asked), engine.status()
        finally:
            await engine.stop()

    tokens, status = asyncio.run(served())
    assert list(tokens) == trained
    assert status["template_facts"]["writes_date"] is False
    # vLLM renders by itself, with the same variables; its middleware tells of the template.
    assert VllmOptions(chat_template_kwargs=PINNED).arguments()[-2:] == [
        "--default-chat-template-kwargs", json.dumps(PINNED)
    ]  # fmt: skip
    for name in ("--chat-template=x", "--default-chat-template-kwargs={}"):
        with pytest.raises(ValueError, match="can't be given"):
            VllmOptions(extra_arguments=[name])
    monkeypatch.setenv("NIP_VLLM_MODEL", path)
    monkeypatch.setenv("NIP_VLLM_TEMPLATE", json.dumps(PINNED))
    monkeypatch.setenv("NIP_VLLM_FACTS", str(tmp_path / "facts.json"))
    BreakControlTokens(None)
    assert json.loads((tmp_path / "facts.json").read_text()) == status["template_facts"]
    monkeypatch.setenv("NIP_VLLM_TEMPLATE", '{"date": "1 Jan 2020"}')
    with pytest.raises(ValueError, match="no variable 'date'"):
        BreakControlTokens(None)
