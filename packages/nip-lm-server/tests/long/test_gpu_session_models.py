"""The models that benchmarks/gpu_session.py makes: real shapes would be too large here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_the_tokenizer_has_as_many_ids_as_a_real_one_and_reads_back_what_it_writes():
    from gpu_pieces.models import make_tokenizer, words

    tokenizer = make_tokenizer(128_256, 16_384)
    assert len(tokenizer) == 128_256
    text = words(500, 1)
    assert len(tokenizer.encode(text)) == 500
    # What a model of random weights says is read again as about as many tokens.
    ids = [*range(1_000, 128_000, 501)]
    assert len(tokenizer.encode(tokenizer.decode(ids))) == len(ids)


def test_a_model_of_random_weights_has_logits_like_a_trained_one(tmp_path):
    import torch
    from gpu_pieces.models import words, write
    from gpu_pieces.sizes import REHEARSAL
    from transformers import AutoModelForCausalLM, AutoTokenizer

    shape = replace(REHEARSAL.shapes[1], tied=False)
    write(tmp_path, shape, 4096, 1024)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["dtype"], config["vocab_size"]) == ("bfloat16", 4096)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.inference_mode():
        logits = model(torch.tensor([tokenizer.encode(words(40, 2))])).logits.float()
    assert 2.5 < float(logits.std()) < 6
