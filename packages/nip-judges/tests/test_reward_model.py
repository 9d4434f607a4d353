"""A classifier with one logit is a judge with a score."""

import asyncio
import json
from pathlib import Path

import pytest

from nip_core.errors import SettingsError
from nip_judges.judges import make_judge
from nip_judges.parts import ShownText
from nip_judges.settings.judge_file import JudgeFile, load_judge_file


def write(folder: Path, more: str) -> JudgeFile:
    rows = [{"question": f"q {n}", "response": "a", "right": n == 0} for n in range(2)]
    (folder / "graded.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "judge.yaml").write_text(
        f"judge:\n  reward_model: classifier\n{more}data:\n  file: graded.jsonl\n"
    )
    return load_judge_file(folder / "judge.yaml")


def save_classifier(folder: Path, labels: int = 1) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "q", "a", "b"]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(
        vocab={word: number for number, word in enumerate(words)}, model_max_length=16
    ).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        num_labels=labels,
        max_position_embeddings=16,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)


@pytest.mark.long  # it loads torch
def test_the_logit_accepts_from_the_threshold_on(tmp_path: Path) -> None:
    save_classifier(tmp_path / "classifier")
    low = make_judge(write(tmp_path, "  threshold: -100\n"), None)
    high = make_judge(write(tmp_path, "  threshold: 100\n"), None)
    shown = ShownText("q ", "a b")
    first, second = (asyncio.run(judge.ask(shown, 1)) for judge in (low, high))
    assert (first.verdict, second.verdict) == ("accept", "reject")
    assert first.score == second.score and low.scores and low.digest != high.digest
    other = asyncio.run(low.ask(ShownText("q ", "b"), 1))
    assert other.score != first.score
    long = asyncio.run(low.ask(ShownText("q ", "a " * 30), 1))
    assert long.verdict == "none" and "takes 1 to 16" in (long.reason or "")


@pytest.mark.long  # it loads torch
def test_a_classifier_with_two_logits_is_refused_with_what_to_do(tmp_path: Path) -> None:
    save_classifier(tmp_path / "classifier", labels=2)
    judge = make_judge(write(tmp_path, "  threshold: 0\n"), None)
    with pytest.raises(SettingsError, match=r"2 logits .* as a function"):
        asyncio.run(judge.ask(ShownText("q", "a"), 1))


@pytest.mark.long  # it loads torch
def test_a_reward_model_without_threshold_has_scores_and_no_verdict(tmp_path: Path) -> None:
    save_classifier(tmp_path / "classifier", labels=1)
    judge = make_judge(write(tmp_path, ""), None)
    answer = asyncio.run(judge.ask(ShownText("q", "a"), 1))
    assert judge.scores and answer.verdict == "none" and answer.score is not None
