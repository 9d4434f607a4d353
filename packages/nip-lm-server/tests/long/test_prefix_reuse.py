"""The embedded engine reads no prompt's beginning twice, and answers as if it had."""

import asyncio
import json
import platform
import shutil

import pytest
import pytest_asyncio

pytest.importorskip("torch")
pytest.importorskip("peft")

from tiny_model import make_adapter, make_model, peft_logprobs

from nip_lm_server.engines.base import EngineError, GenerationRequest
from nip_lm_server.engines.embedded.decoding import slot_decoder
from nip_lm_server.engines.embedded.decoding.batching import Decoder, Row
from nip_lm_server.engines.embedded.decoding.plain_llama import (
    Copies,
    computes_the_same,
    find_copies,
    halve,
    read_plain_llama,
)
from nip_lm_server.engines.embedded.decoding.sampling import Settings, row_random
from nip_lm_server.engines.embedded.decoding.slot_decoder import SlotDecoder
from nip_lm_server.engines.embedded.embedded_engine import EmbeddedEngine
from nip_lm_server.lora.rowwise_lora import LoraFiles, RowwiseLora

pytestmark = pytest.mark.asyncio(loop_scope="module")
IS_X86 = platform.machine() in ("x86_64", "AMD64")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "tiny", context=1024)


@pytest.fixture(scope="module")
def adapter(base):
    return make_adapter(base, base.parent / "a", seed=1)


@pytest_asyncio.fixture(loop_scope="module")
async def engine(base, adapter):
    engine = EmbeddedEngine(str(base), threads=1)
    await engine.start()
    await engine.load_adapter("a", adapter)
    yield engine
    await engine.stop()


def ask(prompt, model="tiny", **more):
    settings = {"max_tokens": 12, "seed": 7, "return_token_ids": True, "logprobs": True, **more}
    return GenerationRequest(model, prompt=tuple(prompt), **settings)


def counters(engine):
    status = engine.status()
    return tuple(status[f"prompt_tokens_{kind}"] for kind in ("asked", "done", "reused"))


def prompt_of(number, length):
    return [5 + (number * 7 + i * (1 + number % 5)) % 200 for i in range(length)]


async def test_nine_turns_compute_each_token_of_their_prompts_once(engine, base):
    prompt, asked = prompt_of(0, 60), 0
    for turn in range(9):
        result = await engine.generate(ask(prompt, seed=turn))
        asked += len(prompt)
        # The last token of an answer is chosen and not read: it is new to the next turn.
        assert counters(engine) == (
            asked,
            len(prompt) - 12 * turn + turn,
            asked - counters(engine)[1],
        )
        answer = result.choices[0]
        expected = peft_logprobs(base, None, [*prompt, *answer.token_ids])[-len(answer.token_ids) :]
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)
        prompt += [*answer.token_ids, *prompt_of(turn, 10)]


async def test_what_prompts_begin_with_is_computed_once_though_they_come_at_once(engine, base):
    system = prompt_of(1, 100)
    prompts = [[*system, 5 + i, *prompt_of(i, 20)] for i in range(12)]
    results = await asyncio.gather(
        *(engine.generate(ask(p, seed=i)) for i, p in enumerate(prompts))
    )
    assert counters(engine) == (12 * 121, 100 + 12 * 21, 11 * 100)
    for prompt, result in zip(prompts, results, strict=True):
        answer = result.choices[0]
        expected = peft_logprobs(base, None, [*prompt, *answer.token_ids])[-len(answer.token_ids) :]
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)


async def test_nothing_is_shared_between_the_base_and_an_adapter(engine, base, adapter):
    prompt = prompt_of(2, 80)
    for model, path in (("tiny", None), ("a", adapter), ("tiny", None), ("a", adapter)):
        answer = (await engine.generate(ask([*prompt, 9], model))).choices[0]
        expected = peft_logprobs(base, path, [*prompt, 9, *answer.token_ids])[
            -len(answer.token_ids) :
        ]
        assert answer.logprobs == pytest.approx(expected, abs=1e-4)
    assert counters(engine) == (4 * 81, 81 + 81 + 1 + 1, 80 + 80)


async def test_what_an_adapter_has_computed_goes_with_it_and_all_of_it_in_sleep(engine, adapter):
    kept = engine._worker.decoder.kept
    await engine.generate(ask(prompt_of(3, 50)))
    of_base = kept.bytes
    await engine.generate(ask(prompt_of(3, 50), "a"))
    assert kept.bytes == 2 * of_base > 0
    await engine.unload_adapter("a")
    assert kept.bytes == of_base
    await engine.sleep()
    assert kept.bytes == 0
    await engine.wake()


async def test_what_is_kept_has_the_bytes_that_running_rows_leave(base):
    engine = EmbeddedEngine(str(base), threads=1, cache_bytes=2_000_000)
    await engine.start()
    decoder = engine._worker.decoder
    for number in range(30):
        await engine.generate(ask(prompt_of(number, 100 + number), seed=number))
        assert 0 < decoder.kept.bytes <= 2_000_000
    await engine.stop()


async def test_a_long_prompt_is_read_in_pieces_beside_those_that_are_answered(engine, monkeypatch):
    monkeypatch.setattr(slot_decoder, "BESIDE_TOKENS", 100)
    decoder = engine._worker.decoder
    sizes = ((4, 20, 40), (5, 650, 5))

    def rows():
        greedy = Settings(temperature=0.0)
        return [Row(prompt_of(i, n), None, m, greedy, row_random(0)) for i, n, m in sizes]

    alone = [(await engine.generate(ask(prompt_of(i, n), temperature=0.0, max_tokens=m)))
             for i, n, m in sizes]  # fmt: skip
    decoder.clear()
    short, long = rows()

    def play():
        progress = []
        decoder.admit([[short]])
        decoder.step()
        decoder.admit([[long]])
        while short.finish_reason is None or long.finish_reason is None:
            before = decoder.prompt_tokens_done
            decoder.step()
            progress.append((decoder.prompt_tokens_done - before, len(short.generated)))
        return progress

    progress = await engine._worker.run(play)
    assert [read for read, _ in progress[:7]] == [100] * 6 + [50]
    assert [tokens for _, tokens in progress[:7]] == list(range(3, 10))
    answers = [tuple(row.generated) for row in (short, long)]
    assert answers == [result.choices[0].token_ids for result in alone]


async def test_a_row_that_is_given_up_while_its_prompt_is_read_holds_up_nobody(engine, monkeypatch):
    monkeypatch.setattr(slot_decoder, "BESIDE_TOKENS", 50)
    monkeypatch.setattr(slot_decoder, "PREFILL_TOKENS", 50)
    decoder = engine._worker.decoder
    greedy = Settings(temperature=0.0)
    gone, other = (Row(prompt_of(i, 200), None, 5, greedy, row_random(0)) for i in (6, 7))

    def play():
        decoder.admit([[gone]])
        decoder.step()
        gone.cancelled = True
        decoder.admit([[other]])
        for _ in range(10):
            decoder.step()
        return decoder.rows

    assert await engine._worker.run(play) == 0
    assert (len(gone.generated), len(other.generated)) == (0, 5)


async def test_what_ends_at_the_end_of_its_slot_while_others_are_read_is_kept_as_it_was(
    engine, base, monkeypatch
):
    monkeypatch.setattr(slot_decoder, "BESIDE_TOKENS", 50)
    decoder = engine._worker.decoder
    decoder.clear()
    monkeypatch.setattr(decoder, "_stop_tokens", frozenset())
    places = 192  # of the slots, by the first prompt
    ended = Row(prompt_of(1, 100), None, places - 100 + 1, Settings(), row_random(3))
    beside = Row(prompt_of(2, 20), None, 200, Settings(), row_random(4))
    read = Row(prompt_of(3, 150), None, 1, Settings(), row_random(5))

    def play():
        decoder.admit([[ended], [beside]])
        while len(ended.generated) < ended.max_tokens - 1:
            decoder.step()
        decoder.admit([[read]])
        capacities = []
        while not read.finish_reason:
            decoder.step()
            capacities.append((ended.cached, decoder._slots.places))
        beside.cancelled = True
        decoder.step()
        return capacities

    capacities = await engine._worker.run(play)
    assert capacities[0] == (places, places)  # its slot was full
    turn = [*ended.history, 9]
    before = counters(engine)[2]
    result = await engine.generate(ask(turn, max_tokens=4))
    assert counters(engine)[2] - before == places
    answer = result.choices[0]
    expected = peft_logprobs(base, None, [*turn, *answer.token_ids])[-len(answer.token_ids) :]
    assert answer.logprobs == pytest.approx(expected, abs=1e-4)


async def test_scores_that_are_no_numbers_end_one_answer_and_touch_no_other(base, tmp_path):
    from safetensors.torch import load_file, save_file

    broken = make_adapter(base, tmp_path / "broken", seed=2)
    file = broken / "adapter_model.safetensors"
    huge = {n: t * 0 + 1e38 if "lora_B" in n else t for n, t in load_file(file).items()}
    save_file(huge, file, metadata={"format": "pt"})
    engine = EmbeddedEngine(str(base), threads=1)
    await engine.start()
    await engine.load_adapter("broken", broken)
    long, short = prompt_of(4, 30), prompt_of(5, 60)
    alone = await engine.generate(ask(short))
    beside = asyncio.create_task(engine.generate(ask(long, max_tokens=200)))
    while not engine._worker.decoder.rows:
        await asyncio.sleep(0.01)
    for temperature in (0.0, 1.0):
        with pytest.raises(EngineError, match="scores of adapter broken are no finite numbers"):
            await engine.generate(ask(prompt_of(6, 120), "broken", temperature=temperature))
        after = await engine.generate(ask(short))  # in its slot
        assert after.choices[0].token_ids == alone.choices[0].token_ids
        assert after.choices[0].logprobs == pytest.approx(alone.choices[0].logprobs, abs=1e-4)
    await beside
    nan = {n: t * float("nan") for n, t in huge.items()}
    save_file(nan, file, metadata={"format": "pt"})
    with pytest.raises(EngineError, match=r"A or B of 'model\..*' has a number that is not finite"):
        await engine.load_adapter("other", broken)
    await engine.stop()


async def test_the_prompt_that_has_waited_longest_is_read_however_long_the_others_are(
    engine, monkeypatch
):
    monkeypatch.setattr(slot_decoder, "BESIDE_TOKENS", 100)
    monkeypatch.setattr(slot_decoder, "PREFILL_TOKENS", 100)
    decoder = engine._worker.decoder
    short = Row(prompt_of(1, 40), None, 1, Settings(), row_random(0))
    longer = [Row(prompt_of(i, 90), None, 1, Settings(), row_random(0)) for i in range(40, 60)]

    def play():
        decoder.clear()
        waiting = iter(longer)
        decoder.admit([[next(waiting)], [short], [next(waiting)]])
        for _ in range(10):
            decoder.admit([[next(waiting)]])  # as many come as are read
            decoder.step()
        decoder.clear()

    await engine._worker.run(play)
    assert short.finish_reason and sum(row.finish_reason is not None for row in longer) == 9


@pytest.mark.parametrize(
    ("name", "value"),
    [("alora_invocation_tokens", [1, 2]), ("init_lora_weights", "pissa_niter_4")],
)
async def test_an_adapter_that_is_more_than_its_matrices_is_refused(
    engine, adapter, tmp_path, name, value
):
    shutil.copytree(adapter, tmp_path / "a")
    file = tmp_path / "a" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    with pytest.raises(EngineError, match=f"{name}=.* can't be served"):
        await engine.load_adapter("more", tmp_path / "a")


def configurations():
    from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

    sizes = {
        "vocab_size": 60, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3,
        "max_position_embeddings": 128,
    }  # fmt: skip
    llama3 = {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
    }  # fmt: skip
    return {
        "llama": LlamaConfig(**sizes, attention_bias=True, mlp_bias=True),
        "llama3": LlamaConfig(**sizes, rope_parameters=llama3, tie_word_embeddings=True),
        "mistral": MistralConfig(**sizes, sliding_window=None),
        "qwen2": Qwen2Config(**sizes),
        "qwen3": Qwen3Config(**sizes),
        "another activation": LlamaConfig(**sizes, hidden_act="gelu"),
        "a window": MistralConfig(**sizes, sliding_window=16),
    }


BOTH = {"packed", "half"} if IS_X86 else set()


def random_lora(model, path):
    """An adapter of rank 2 over three layers."""
    import torch

    pairs = {}
    for name in ("model.layers.0.self_attn.v_proj", "model.layers.1.mlp.down_proj", "lm_head"):
        rows, columns = model.get_submodule(name).weight.shape
        pairs[name] = (torch.randn(2, columns), torch.randn(rows, 2))
    return LoraFiles(path, pairs, 1.0, False, "digest")


@pytest.mark.parametrize(
    ("name", "copies"),
    [
        *((name, BOTH) for name in ("llama", "llama3", "mistral", "qwen2", "qwen3")),
        *(("llama", copies) for copies in ([set(), {"packed"}, {"half"}] if IS_X86 else [])),
    ],
)
async def test_the_plain_pass_is_that_of_the_models_own_library(name, copies, tmp_path):
    """Three prompts are read together, and one by itself on each side of `_HALF_ROWS`."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(configurations()[name]).eval()
    with torch.inference_mode():
        for parameter in model.parameters():  # norms and biases too, which begin as ones and zeros
            parameter.add_(torch.randn_like(parameter) * 0.1)
            if "half" in copies:
                parameter.copy_(parameter.bfloat16())
        lora = RowwiseLora(model)
        adapter = lora.attach("a", random_lora(model, tmp_path))
        plain = read_plain_llama(model, lora, Copies(*(it in copies for it in ("packed", "half"))))
        assert plain is not None and computes_the_same(plain, model, range(2, 58))
        for copy in ("packed", "half"):
            assert (getattr(plain._head, copy) is not None) == (copy in copies)
        library, slots = (
            Decoder(model, lora, frozenset()),
            SlotDecoder(model, lora, frozenset(), plain),
        )
        slots.most_bytes = 1 << 20
        answers, greedy = [], Settings(temperature=0.0)
        asked = ((6, adapter), (33, None), (90, adapter), (48, adapter), (47, None))
        for decoder in (library, slots):
            rows = [
                Row(
                    [2 + (size + i) % 56 for i in range(size)],
                    weights,
                    9,
                    greedy,
                    row_random(0),
                    True,
                )
                for size, weights in asked
            ]
            for together in (rows[:3], rows[3:4], rows[4:]):
                decoder.admit([[row] for row in together])
                decoder.step()
            while decoder.rows:
                decoder.step()
            answers.append(rows)
        for one, other in zip(*answers, strict=True):
            assert one.generated == other.generated
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        model.model.layers[1].mlp.act_fn = torch.nn.GELU()
        assert not computes_the_same(plain, model, range(2, 58))


@pytest.mark.parametrize("name", ["another activation", "a window"])
async def test_a_model_that_computes_anything_else_is_left_to_its_library(name):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(configurations()[name])
    assert read_plain_llama(model, RowwiseLora(model), Copies()) is None


async def test_weights_are_copied_where_it_pays_and_the_copies_have_room(base):
    import torch
    from transformers import AutoModelForCausalLM

    size = 64 << 20
    large = torch.nn.Linear(4096, size // (4 * 4096), bias=False)
    assert find_copies(large, 3 * size) == Copies()
    assert find_copies(large, 7 * size) == Copies(half=IS_X86)
    assert find_copies(large, 9 * size) == Copies(packed=IS_X86, half=IS_X86)
    assert find_copies(large.bfloat16(), 9 * size) == Copies()
    assert find_copies(AutoModelForCausalLM.from_pretrained(base), 9 * size) == Copies()


@pytest.mark.parametrize(
    ("space", "missing"),
    [
        ("mkldnn", "_linear_pointwise"),
        ("mkldnn", "_reorder_linear_weight"),
        ("quantized", "linear_prepack_fp16"),
        ("quantized", "linear_dynamic_fp16"),
    ],
)
async def test_a_torch_without_one_of_the_operations_makes_no_copies(monkeypatch, space, missing):
    import torch

    class Without:
        def __getattr__(self, name, operations=getattr(torch.ops, space)):
            if name == missing:
                raise AttributeError(name)
            return getattr(operations, name)

    large = torch.nn.Linear(4096, 4096, bias=False)
    monkeypatch.setattr(torch.ops, space, Without())
    assert find_copies(large, 1 << 40) == Copies()


@pytest.mark.skipif(not IS_X86, reason="measured there alone")
async def test_weights_are_halved_where_float16_holds_them_as_well_as_float32():
    import torch

    torch.manual_seed(0)
    weight, x = torch.randn(300, 64) * 0.02, torch.randn(9, 64)
    assert halve(weight, None) is None  # numbers of float32 alone
    saved = weight.bfloat16().float()
    saved[0, :3] = 1e-6  # below float16's whole precision, by no more than float32 rounds
    multiply, exact = torch.ops.quantized.linear_dynamic_fp16, x.double() @ saved.double().T
    output = multiply(x, halve(saved, None))
    assert float((output - exact).abs().max()) < 1e-6
    assert torch.equal(multiply(x[:1], halve(saved, None)), output[:1])  # in any company
    for wrong in (1e5, torch.nan, torch.inf):
        saved[299, 0] = wrong
        assert halve(saved, None) is None
