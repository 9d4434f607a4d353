"""The model and the games of benchmarks/native_calls.py.

CountedArithmetic  the scenario, with a line in a file for each use of the tool
point              the prover's script
teach              the teacher's answer to a request
make_folder        a model's files with a chat template that has tools
train              a model that has learned the teacher's answers
"""

import json
import os
import random
import re
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nip_core.scenarios.scripts import ScriptedTurn
from nip_games.arithmetic import Arithmetic
from nip_games.arithmetic.chains import read_steps

USES, PER_TURN = "NATIVE_CALLS_USES", 2
BATCH, RATE, RANK = 4, 1e-3, 16
TEMPLATE = """
{%- set has_system = messages[0]['role'] == 'system' -%}
{%- if tools -%}
<|im_start|>system
{{ messages[0]['content'] + '\\n\\n' if has_system }}You can call one of these functions:
<tools>
{% for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor -%}
</tools>
A call has this form:
<tool_call>
{"name": NAME, "arguments": {...}}
</tool_call><|im_end|>{{ '\\n' }}
{%- endif -%}
{%- for message in (messages[1:] if tools and has_system else messages) -%}
{%- set text, is_result = message['content'] or '', message['role'] == 'tool' -%}
<|im_start|>{{ 'user\\n<tool_response>' if is_result else message['role'] }}
{{ text -}}
{%- for call in message['tool_calls'] or [] -%}
{%- set given = call['function']['arguments'] -%}
{{ '\\n' if text or not loop.first }}<tool_call>
{"name": {{ call['function']['name'] | tojson }}, "arguments": {{
given if given is string else given | tojson }}}
</tool_call>
{%- endfor -%}
{{ '\\n</tool_response>' if is_result }}<|im_end|>{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif -%}
""".strip()


class CountedArithmetic(Arithmetic):
    """`arithmetic`, with a line in a file for each use of the tool."""

    async def use_tool(self, argument: str, texts: Mapping[str, str]) -> str:
        """Note the use, and calculate the step."""
        note_use(argument)
        return await super().use_tool(argument, texts)


def note_use(argument: str) -> None:
    """Add a line to the file of uses."""
    with open(os.environ[USES], "a", encoding="utf-8") as file:
        print(json.dumps(argument), file=file)


def point(turn: ScriptedTurn) -> str:
    """Name the steps to look at, a wrong one among them; of a right calculation at times none."""
    draw, steps = random.Random(turn.seed), read_steps(turn.texts["solution"])
    wrong = {n for n, step in enumerate(steps, 1) if step.result != step.true_result}
    count = draw.choices((0, 1, 2, 3), (3, 9, 5, 3))[0]
    right = [n for n in range(1, len(steps) + 1) if n not in wrong]
    if not count and not wrong:
        return "No step is wrong."
    named = sorted(wrong | {*draw.sample(right, max(count, 1) - len(wrong))})
    return f"Look at {' and '.join(f'step {n}' for n in named)}."


def teach(body: dict[str, Any]) -> dict[str, Any]:
    """Answer as the teacher: compare what was shown with what is written, call, or decide."""
    if len(body["messages"]) == 1:  # nip asks before the run whether tools are taken
        return {"role": "assistant", "content": "Hello."}
    first, second, *others = body["messages"]
    written = dict(re.findall(r"^(\d): (.*)$", first["content"], re.M))
    shown = [m["content"] for m in others if m["role"] == "tool"]
    steps = re.findall(r"step (\d)", second["content"])
    remark = ""
    if shown and (result := re.search(r"(\d): .* = (.*)", shown[-1])):
        step, number = result.groups()
        named = written[step].rpartition(" = ")[2]
        word = "right" if number == named else "wrong"
        remark = f"Step {step}: {named} and {number}, {word}.\n"
    is_over = "wrong" in remark or len(shown) in (len(steps), PER_TURN + 1)
    if is_over:
        verdict = "reject" if "wrong" in remark else "accept"
        return {"role": "assistant", "content": f"{remark}Decision: {verdict}"}
    function = {"name": "check", "arguments": json.dumps({"argument": steps[len(shown)]})}
    call = {"id": secrets.token_hex(5), "type": "function", "function": function}
    return {"role": "assistant", "content": remark.strip(), "tool_calls": [call]}


def make_folder(model: Path, folder: Path) -> Path:
    """Copy a model's files, with the template in the place of its own."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def read_lessons(tokenizer: Any, pairs: list[Any]) -> list[tuple[list[int], list[int]]]:
    """Make a pair for each game: the tokens of its last chat, and the places of answers' tokens."""
    games: dict[str, list[Any]] = {}
    for body, answer in pairs:
        games.setdefault(json.dumps(body["messages"][:2]), []).append((body, answer))
    lessons = []
    for asked in games.values():
        spans, whole = [], ""
        for body, answer in sorted(asked, key=lambda pair: len(pair[0]["messages"])):
            chat, tools = body["messages"], body["tools"]
            prompt, text = (
                tokenizer.apply_chat_template(
                    messages, tools=tools, tokenize=False, add_generation_prompt=is_prompt
                )
                for messages, is_prompt in ((chat, True), ([*chat, answer], False))
            )
            assert text.startswith(prompt) and prompt.startswith(whole)
            whole = text.removesuffix("\n")  # no answer goes on behind its end token
            spans.append((len(prompt), len(whole)))
        read = tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        places = [
            place
            for place, (start, _) in enumerate(read["offset_mapping"])
            if any(begin <= start < end for begin, end in spans)
        ]
        lessons.append((read["input_ids"], places))
    return lessons


def train(parent: Path, pairs: list[Any], folder: Path) -> dict[str, Any]:
    """Teach a model the answers, and save it with the LoRA merged into its weights."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(parent)
    model = AutoModelForCausalLM.from_pretrained(parent, dtype=torch.float32)
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
    with_lora, lessons = get_peft_model(model, lora), read_lessons(tokenizer, pairs)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    order = random.Random(0).sample([*range(len(lessons))], len(lessons))
    batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    optimizer = torch.optim.AdamW(weights, RATE, weight_decay=0.0)
    rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, len(batches), pct_start=0.1)
    losses, began = [], time.monotonic()
    for number, batch in enumerate(batches):
        chosen = [lessons[n] for n in batch]
        tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(t) for t, _ in chosen], True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones(len(t)) for t, _ in chosen], True)
        row = torch.tensor([i for i, (_, places) in enumerate(chosen) for _ in places])
        place = torch.tensor([p for _, places in chosen for p in places])
        with torch.autocast("cpu", torch.bfloat16):
            hidden = model.model(input_ids=tokens, attention_mask=mask).last_hidden_state
            logits = model.lm_head(hidden[row, place - 1])
            loss = torch.nn.functional.cross_entropy(logits, tokens[row, place])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rates.step()
        losses.append(loss.item())
        print(f"step {number + 1} of {len(batches)}: loss {losses[-1]:.4f}", flush=True)
    with_lora.merge_and_unload().save_pretrained(make_folder(parent, folder))
    return {
        **{"lessons": len(lessons), "steps": len(batches)},
        "tokens": sum(len(tokens) for tokens, _ in lessons),
        "learned_tokens": sum(len(places) for _, places in lessons),
        "loss": [round(losses[0], 3), round(sum(losses[-5:]) / 5, 4)],
        "seconds": round(time.monotonic() - began),
    }
