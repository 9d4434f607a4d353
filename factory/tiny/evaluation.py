"""How well the tiny model plays: its messages as prover, its questions and verdicts as verifier.

Plays by itself, without server or rollout engine, so that the model can be judged when it is
built. `generate` answers a batch of conversations; the functions below it are the measurements
that stand in the model card.
"""

import re
from collections.abc import Sequence
from typing import Any

from factory.tiny.conversations import LAST_TURN, Case, Message, own, says, system

MAX_ANSWER_TOKENS = 60

_FORMS = {
    "question": re.compile(r"Question: \S.*"),
    "answer": re.compile(r"Answer: \S.*, they (match|differ)"),
    "decision": re.compile(r"Decision: (accept|reject)"),
}


def generate(
    model: Any,
    tokenizer: Any,
    conversations: Sequence[list[Message]],
    temperature: float,
    batch_size: int = 128,
    max_tokens: int = MAX_ANSWER_TOKENS,
) -> list[str]:
    """The model's next message in each conversation, sampled with torch's global generator."""
    import torch

    texts: list[str] = []
    for start in range(0, len(conversations), batch_size):
        prompts = tokenizer.apply_chat_template(
            list(conversations[start : start + batch_size]),
            add_generation_prompt=True,
            tokenize=False,
        )
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs = inputs.to(model.device)
        with torch.no_grad():
            tokens = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                do_sample=True,
                temperature=temperature,
                top_k=0,
                max_new_tokens=max_tokens,
            )
        new = tokens[:, inputs["input_ids"].shape[1] :]
        texts += tokenizer.batch_decode(new, skip_special_tokens=True)
    return texts


def valid(kind: str, text: str) -> bool:
    """Return whether a message has the form of a question, an answer or a decision."""
    return _FORMS[kind].fullmatch(text) is not None


def concludes(text: str) -> str:
    """The conclusion of an answer: ``match``, ``differ``, or the empty string."""
    match = _FORMS["answer"].fullmatch(text)
    return match.group(1) if match else ""


def measure_prover(
    model: Any, tokenizer: Any, cases: Sequence[Case], temperature: float
) -> dict[str, float]:
    """Measure shares of right answers, of right comparisons of both sides, and of right form."""
    question = "Question: Do they match?"
    conversations = [[system("nip", "prover", case), says("Verifier", question)] for case in cases]
    texts = generate(model, tokenizer, conversations, temperature)
    pairs = list(zip(cases, texts, strict=True))
    buggy = [concludes(text) == "differ" for case, text in pairs if case.conclusion == "differ"]
    correct = [concludes(text) == "match" for case, text in pairs if case.conclusion == "match"]
    compared = [f"asked {case.comparison}, they" in text for case, text in pairs]
    return {
        "cases": len(cases),
        "conclusion_right": _share([*buggy, *correct]),
        "conclusion_right_on_correct_code": _share(correct),
        "conclusion_right_on_buggy_code": _share(buggy),
        "comparison_right": _share(compared),
        "valid_form": _share([valid("answer", text) for text in texts]),
    }


def measure_game(
    model: Any, tokenizer: Any, cases: Sequence[Case], rounds: int, temperature: float
) -> dict[str, float]:
    """Plays the protocol nip, verifier first, with one model in both roles.

    A verifier that decides before the last turn ends its game, as in the protocol.
    """
    verifier = [[system("nip", "verifier", case)] for case in cases]
    prover = [[system("nip", "prover", case)] for case in cases]
    decisions = [""] * len(cases)
    forms: dict[str, list[bool]] = {"question": [], "answer": [], "decision": []}
    open_games = list(range(len(cases)))
    for turn in range(0, rounds, 2):
        last = turn == rounds - 1
        views = [verifier[game] for game in open_games]
        if last:
            views = [[*view, {"role": "system", "content": LAST_TURN}] for view in views]
        texts = generate(model, tokenizer, views, temperature)
        still_open = []
        for game, text in zip(open_games, texts, strict=True):
            decides = last or text.startswith("Decision")
            forms["decision" if decides else "question"].append(
                valid("decision" if decides else "question", text)
            )
            if decides:
                decisions[game] = text
                continue
            still_open.append(game)
            verifier[game].append(own(text))
            prover[game].append(says("Verifier", text))
        open_games = still_open
        if not open_games:
            break
        answers = generate(model, tokenizer, [prover[game] for game in open_games], temperature)
        for game, text in zip(open_games, answers, strict=True):
            forms["answer"].append(valid("answer", text))
            prover[game].append(own(text))
            verifier[game].append(says("Expert", text))
    form_shares = {f"valid_{kind}": _share(outcomes) for kind, outcomes in forms.items()}
    return {"games": len(cases), **_verdicts(cases, decisions), **form_shares}


def measure_single_decision(
    model: Any, tokenizer: Any, cases: Sequence[Case], protocol: str, temperature: float
) -> dict[str, float]:
    """Plays adp (with the model as prover) or solo_verifier: one decision, no question."""
    views = [[system(protocol, "verifier", case)] for case in cases]
    form_shares: dict[str, float] = {}
    if protocol == "adp":
        openings = [[system("adp", "prover", case)] for case in cases]
        answers = generate(model, tokenizer, openings, temperature)
        form_shares["valid_answer"] = _share([valid("answer", text) for text in answers])
        for view, text in zip(views, answers, strict=True):
            view.append(says("Expert", text))
    decisions = generate(model, tokenizer, views, temperature)
    form_shares["valid_decision"] = _share([valid("decision", text) for text in decisions])
    return {"games": len(cases), **_verdicts(cases, decisions), **form_shares}


def _verdicts(cases: Sequence[Case], decisions: Sequence[str]) -> dict[str, float]:
    pairs = list(zip(cases, decisions, strict=True))
    accepts = [(c.conclusion == "match", d == "Decision: accept") for c, d in pairs]
    rejects = [d == "Decision: reject" for c, d in pairs if c.conclusion == "differ"]
    completeness = [accepted for correct, accepted in accepts if correct]
    return {
        "accuracy": _share([*completeness, *rejects]),
        "completeness": _share(completeness),
        "soundness": _share(rejects),
        "accepted": _share([accepted for _, accepted in accepts]),
    }


def _share(outcomes: Sequence[bool]) -> float:
    return round(sum(outcomes) / len(outcomes), 4) if outcomes else float("nan")


def evaluate(
    model: Any, tokenizer: Any, cases: Sequence[Case], seed: int = 0
) -> dict[str, dict[str, float]]:
    """All measurements of the model card on `cases`. Seeds torch's global generator."""
    import torch

    torch.manual_seed(seed)
    model.eval()
    figures = {
        f"prover, temperature {t}": measure_prover(model, tokenizer, cases, t) for t in (1.0, 0.7)
    }
    for rounds in (3, 5, 9):
        name = f"nip over {rounds} rounds, temperature 1.0"
        figures[name] = measure_game(model, tokenizer, cases, rounds, 1.0)
    for protocol in ("adp", "solo_verifier"):
        name = f"{protocol}, temperature 1.0"
        figures[name] = measure_single_decision(model, tokenizer, cases, protocol, 1.0)
    return figures
