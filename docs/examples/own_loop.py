"""A loop of one's own over nip's games: it plays, attacks, and trains with something else.

python own_loop.py http://127.0.0.1:8000/v1 my-model                 # any OpenAI-compatible server
python own_loop.py http://127.0.0.1:8000/v1 my-model --train gpt2    # and SFT by TRL
"""

import argparse
import asyncio
import json
from functools import partial

from openai import AsyncOpenAI

from nip_core.library import attack, make_game, measure, play


def boast(turn):
    """An attack by a script: the prover's message, whatever the solution is."""
    return "Every step is right: " + turn.texts["question"].splitlines()[0]


def show(name, figures):
    for rate in ("soundness", "completeness"):
        print(name, rate, getattr(figures, rate), getattr(figures, f"{rate}_ci95"))


def fine_tune(path, model):
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    rows = load_dataset("json", data_files=path, split="train")
    SFTTrainer(model, args=SFTConfig(max_steps=2, bf16=False), train_dataset=rows).train()


async def main(url, model, train=None, size=40):
    ask = partial(AsyncOpenAI(base_url=url).chat.completions.create, model=model)
    few = f"dataset_options.max_test_size={size}"
    game = make_game(protocol="adp", scenario="arithmetic", settings=few)
    own_test = await play(game, ask)
    show("test", measure(own_test))
    best = await attack(game, ask, n=(1, 4), continuations=2, own_test=own_test)
    for row in best.figures.by_n:
        show(f"best of {row.n}", row)
    scripted = await attack(game, ask, "script", script=boast, own_test=own_test)
    show("boast", scripted.figures.by_n[0])
    print("soundness lost to it", scripted.figures.lost_to_script)
    played = await play(game, ask, "train", limit=size)
    with open("chosen.jsonl", "w", encoding="utf-8") as file:  # noqa: ASYNC230
        for answer in (a for a in played.list_answers("verifier") if a.reward > 0):
            completion = [{"role": "assistant", "content": answer.text}]
            print(json.dumps({"prompt": answer.messages, "completion": completion}), file=file)
    if train:
        fine_tune("chosen.jsonl", train)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("url", "model", "--train"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
