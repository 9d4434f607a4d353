"""Part f: wrong weights under the right name, and who notices before answering.

nip trains adapters of a model, half to say "accept", half to say "reject". What lies
on the disk under the name of one that was taught "accept" is then made wrong, in one of these ways:

    swapped      its weights are those of one that was taught "reject"
    truncated    its weights end in the middle
    base         its weights change nothing, so that the base model answers
    directory    the whole directory of the other one lies in its place

and it is asked by its name, as by a client that knows nothing of this. One that is left as it is,
the control, must answer what it was taught. nip is started again on its state directory, with its
own engine and over vLLM; vLLM itself is told by its API to load the same directories; PEFT loads
them in a process. SkyRL takes no adapter but its own, an archive of such a directory: it trains
the same, and its archives are made wrong in the same ways before they are first asked for.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from beside import skyrl
from beside.load import NO_VLLM
from beside.models import Model, tokenizer
from beside.runs import Failed
from beside.serving import (
    LORA_RANK,
    QUESTION,
    TEXT,
    TOKENS,
    asked,
    directory_of,
    load_by_hand,
    server,
    train,
    versions,
    vllm_command,
    vllm_server,
    why,
)

CONTROL, CASES = "control", ("swapped", "truncated", "base", "directory")
WEIGHTS = "adapter_model.safetensors"
TAUGHT, OTHER = "accept", "reject"
Said = Callable[[str], None]


# --- making


def make(model: Model, state: Path) -> tuple[dict[str, str], str]:
    """Train one for each case and the control, and the other one; their names."""
    with server("embedded", state, None, model.path) as handle:
        names = {case: train(handle, model, TAUGHT, n) for n, case in enumerate((CONTROL, *CASES))}
        return names, train(handle, model, OTHER, 0)


def spoil(place: Path, other: Path, case: str) -> None:
    """Make what lies in `place` wrong."""
    weights = place / WEIGHTS
    if case == "swapped":
        shutil.copyfile(other / WEIGHTS, weights)
    elif case == "truncated":
        os.truncate(weights, weights.stat().st_size // 2)
    elif case == "base":
        from safetensors.torch import load_file, save_file

        save_file({name: 0 * tensor for name, tensor in load_file(weights).items()}, weights)
    elif case == "directory":
        shutil.rmtree(place)
        shutil.copytree(other, place)


# --- asking


def through_nip(
    model: Model, state: Path, names: dict[str, str], engine: str, vllm: Path | None
) -> Any:
    """Start a server on a copy of the spoiled state, and ask it for each."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "state"
        shutil.copytree(state, copy, ignore=shutil.ignore_patterns("*.lock", "server.json"))
        with server(engine, copy, vllm, model.path) as handle:
            return {case: asked(handle.url, handle.api_key, name) for case, name in names.items()}


def through_vllm(model: Model, state: Path, names: dict[str, str], vllm: Path, log: Path) -> Any:
    """Start vLLM by itself, load each directory by its API, and ask for it."""
    outcomes = {}
    with vllm_server(vllm, log, model.path) as (url, key):
        for case, name in names.items():
            status, answer = load_by_hand(url, key, name, directory_of(state, name))
            outcomes[case] = (
                asked(url, key, name)
                if status == 200
                else {"noticed": True, "status": status, "why": why(answer)}
            )
    return outcomes


_PEFT = """
import json, sys
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base, question, places = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
tokenizer = AutoTokenizer.from_pretrained(base)
ids = tokenizer.apply_chat_template(
    question, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
outcomes = {}
for case, place in places.items():
    try:
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), place)
        out = model.generate(**ids, max_new_tokens=12, do_sample=False)
        text = tokenizer.decode(out[0][ids["input_ids"].shape[1]:], skip_special_tokens=True)
        outcomes[case] = {"noticed": False, "answer": text}
    except Exception as error:
        outcomes[case] = {"noticed": True, "why": f"{type(error).__name__}: {error}"[:400]}
print(json.dumps(outcomes))
"""


def through_peft(model: Model, state: Path, names: dict[str, str]) -> Any:
    """Load each directory by PEFT in nip's environment, and generate."""
    places = {case: str(directory_of(state, name)) for case, name in names.items()}
    arguments = [str(model.path), json.dumps(QUESTION), json.dumps(places)]
    done = subprocess.run(
        [sys.executable, "-c", _PEFT, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise Failed(" ".join(done.stderr[-400:].split()))
    return json.loads(done.stdout.splitlines()[-1])


def through_skyrl(model: Model, place: Path) -> Any:
    """Train the same with SkyRL, make its archives wrong, and ask for each."""
    skyrl.refuse_large(model)
    with skyrl.asker(place, model.path, LORA_RANK, len(CASES) + 2) as asker:
        taught = dict.fromkeys((CONTROL, *CASES), TAUGHT) | {OTHER: OTHER}
        for name, answer in taught.items():
            learned = skyrl.examples(tokenizer(model.path), [(TEXT, answer)] * 5)
            rates = [0.003 * (1 - step / 40) for step in range(40)]
            batches = [learned] * len(rates)
            asker("train", name=name, rank=LORA_RANK, batches=batches, rates=rates)
            asker("save", name=name)
        with tempfile.TemporaryDirectory() as folder:
            archives = {name: skyrl.archive(asker.place, name) for name in taught}
            for case in CASES:
                skyrl.unpack(archives[OTHER], Path(folder) / OTHER)
                wrong = skyrl.unpack(archives[case], Path(folder) / case)
                spoil(wrong, Path(folder) / OTHER, case)
                skyrl.pack(wrong, archives[case])
        return {case: _asked_for(asker, model, case) for case in (CONTROL, *CASES)}


def _asked_for(asker: skyrl.Asker, model: Model, name: str) -> dict[str, Any]:
    words = tokenizer(model.path)
    prompt = skyrl.tokens_of(words, TEXT)
    try:
        end = words.eos_token_id
        tokens = asker("answer", name=name, prompt=prompt, tokens=TOKENS, end=end)["tokens"]
    except Failed as error:
        return {"noticed": True, "why": str(error)[:400]}
    text = words.decode(tokens, skip_special_tokens=True)
    return {"noticed": False, "answer": str(text)}


# --- measuring


def measure(model: Model, say: Said) -> dict[str, Any]:
    """All of them, on the same files."""
    rows: dict[str, Any] = {}
    vllm = vllm_command()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        names, other = make(model, state)
        for case in CASES:
            spoil(directory_of(state, names[case]), directory_of(state, other), case)
        ways: dict[str, tuple[bool, Callable[[], Any]]] = {
            "nip, embedded": (False, lambda: through_nip(model, state, names, "embedded", None)),
            "PEFT": (False, lambda: through_peft(model, state, names)),
            "nip over vLLM": (True, lambda: through_nip(model, state, names, "vllm", vllm)),
            "vLLM": (
                True,
                lambda: through_vllm(model, state, names, vllm or Path(), state / "log"),
            ),
            skyrl.NAME: (False, lambda: through_skyrl(model, state / "skyrl")),
        }
        for name, (needs_vllm, ask) in ways.items():
            if needs_vllm and vllm is None:
                rows[name] = {"reason": NO_VLLM}
                continue
            try:
                rows[name] = judged(ask())
            except Failed as error:
                rows[name] = {"reason": str(error)}
            except Exception as error:  # a row with its reason, whatever it is
                rows[name] = {"reason": f"{type(error).__name__}: {error}"[:600]}
            say(f"f {name}: {json.dumps(rows[name])}")
    rows["transformers serve"] = {"reason": "it serves no adapter by name"}
    return {
        "taught": TAUGHT,
        "other": OTHER,
        "rows": rows,
        "versions": versions(vllm) | skyrl.versions(),
    }


def judged(outcomes: dict[str, Any]) -> dict[str, Any]:
    """The outcomes, with whether what should be noticed was, and whether the control answered."""
    for outcome in outcomes.values():
        if "why" in outcome:  # without the directory of this run
            outcome["why"] = re.sub(r"/\S*/(models|checkpoints)/", r"\1/", outcome["why"])
    answered = outcomes[CONTROL].get("answer", "").strip().startswith(TAUGHT)
    noticed = sum(outcomes[case]["noticed"] for case in CASES)
    return {"cases": outcomes, "noticed": noticed, "of": len(CASES), "control_answers": answered}
