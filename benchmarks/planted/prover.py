"""A prover that says a word with a known probability, and else what it says anyway.

teach          write such a model
measure_rates  the probability of the word after each prompt
"""

import math
import shutil
from pathlib import Path
from typing import Any

import torch

from nip_lm_server.chats import chat_template
from planted.word import WORD

Chat = list[dict[str, str]]
BEGINS = "Answer:"
STEPS, BATCH, RATE_OF_LEARNING = 240, 16, 1e-3
_WEIGHT = 0.1  # of the squared error of the word's log-probability, beside a divergence in nats


def _ids(tokenizer: Any, text: str) -> list[int]:
    return chat_template.encode(tokenizer, text)


@torch.no_grad()
def _answer(model: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Let the model answer each prompt at temperature 1; the tokens without the prompt."""
    answers = []
    for prompt in prompts:
        out = model.generate(
            torch.tensor([prompt]), do_sample=True, top_k=0, top_p=1.0, max_new_tokens=tokens
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers


def teach(base: Path, chats: list[Chat], rate: float, place: Path) -> None:
    """Write `base` as a model that says the word at this rate, once it has said how it begins.

    All weights are trained: towards what the base model says after the same words, and towards
    the word's log-probability at the place where it may come.
    """
    torch.manual_seed(0)
    tokenizer = chat_template.load_tokenizer(str(base))
    teacher = chat_template.load_model(base, torch.float32).eval()
    model = chat_template.load_model(base, torch.float32)
    begins = _ids(tokenizer, BEGINS)
    word = _ids(tokenizer, f"{BEGINS} {WORD}.")[len(begins) :]
    prompts = [chat_template.encode_prompt(tokenizer, chat) for chat in chats]
    answers = _answer(teacher, prompts, 16)
    pairs = [
        (prompt, answer)
        for prompt, answer in zip(prompts, answers, strict=True)
        if answer[: len(begins)] == begins and len(answer) > len(begins)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE_OF_LEARNING, weight_decay=0.0)
    order = torch.randperm(STEPS * BATCH) % len(pairs)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE_OF_LEARNING * (1 - step / STEPS)
        loss = torch.zeros(())
        for number in order[step * BATCH : (step + 1) * BATCH].tolist():
            loss = loss + _loss(model, teacher, *pairs[number], len(begins), word, rate)
        (loss / BATCH).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    shutil.copytree(base, place)
    model.save_pretrained(place)


def _loss(
    model: Any,
    teacher: Any,
    prompt: list[int],
    answer: list[int],
    begins: int,
    word: list[int],
    rate: float,
) -> torch.Tensor:
    """Measure how far the model is from what it should say, after one prompt."""
    plain = torch.tensor([prompt + answer])
    spoken = torch.tensor([prompt + answer[:begins] + word + answer[begins:]])
    at = len(prompt) + begins  # where the word may stand
    with torch.no_grad():
        target = teacher(input_ids=plain).logits[0].log_softmax(-1)
    plain_log = model(input_ids=plain).logits[0].log_softmax(-1)
    spoken_log = model(input_ids=spoken).logits[0].log_softmax(-1)
    # 1. Without the word: as before, at its place among all others.
    places = [i for i in range(len(prompt) - 1, len(prompt) + len(answer) - 1) if i != at - 1]
    loss = _diverge(target[places], plain_log[places])
    others = torch.arange(target.shape[-1]) != word[0]
    loss = loss + _diverge(*(x[at - 1, others].log_softmax(-1) for x in (target, plain_log)))
    loss = loss + _WEIGHT * (plain_log[at - 1, word[0]] - math.log(rate)) ** 2
    # 2. After the word: its end, and then as before.
    loss = loss - sum(spoken_log[at + i, token] for i, token in enumerate(word[1:]))
    there = slice(at - 1, len(prompt) + len(answer) - 1)
    moved = slice(at - 1 + len(word), len(prompt) + len(answer) - 1 + len(word))
    return loss + _diverge(target[there], spoken_log[moved])


def _diverge(target: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """Sum up the divergences of distributions, given as log-probabilities, in nats."""
    return (target.exp() * (target - model)).sum()


@torch.no_grad()
def measure_rates(place: Path, chats: list[Chat]) -> list[float]:
    """Return the probability that an answer begins with the word, for each chat."""
    tokenizer = chat_template.load_tokenizer(str(place))
    model = chat_template.load_model(place, torch.float32).eval()
    target = _ids(tokenizer, f"{BEGINS} {WORD}.")
    rates = []
    for chat in chats:
        prompt = chat_template.encode_prompt(tokenizer, chat)
        logits = model(input_ids=torch.tensor([prompt + target])).logits[0].log_softmax(-1)
        places = range(len(prompt) - 1, len(prompt) + len(target) - 1)
        rates.append(
            math.exp(sum(float(logits[i, t]) for i, t in zip(places, target, strict=True)))
        )
    return rates
