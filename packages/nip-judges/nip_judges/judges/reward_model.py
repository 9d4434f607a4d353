"""Judges that are a reward model: a sequence classifier with one logit.

RewardModelJudge   its score is the logit, which accepts from a threshold on, if one is set
make_reward_model  the judge of a file's `reward_model`

The model is loaded at the first answer, from safetensors alone, and without code of its folder. A
chat template of the tokenizer's lays out question and response; else they stand one after the
other. A text that is too long for the model is no verdict.
"""

import asyncio
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nip_core.distribution import how_to_install
from nip_core.errors import SettingsError
from nip_core.hashing import digest
from nip_judges.parts import JudgeAnswer, ShownText
from nip_judges.settings.named_texts import hash_file

if TYPE_CHECKING:
    from nip_judges.settings.judge_file import JudgeFile

_HASHED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt")
_UNBOUNDED = 1 << 24  # tokenizers without a limit of their own give a number above


@dataclass(frozen=True)
class RewardModelJudge:
    """A classifier with one logit."""

    name: str
    digest: str
    address: str
    threshold: float | None
    """None: its answers have a score and no verdict."""
    accept_forms: Sequence[str] = ()
    is_paid: bool = False
    scores: bool = True
    _loaded: list[Any] = field(default_factory=list, compare=False, repr=False)
    _lock: Any = field(default_factory=threading.Lock, compare=False, repr=False)

    def compose(self, shown_text: ShownText) -> str:
        """Write question and response as text."""
        return f"{shown_text.question}\n{shown_text.response}"

    async def ask(self, shown_text: ShownText, seed: int) -> JudgeAnswer:
        """Compute the score. Raises SettingsError where the model can't be loaded."""
        return await asyncio.to_thread(self._score, shown_text)

    def _score(self, shown_text: ShownText) -> JudgeAnswer:
        with self._lock:  # one text at a time: the processor's cores are shared anyway
            if not self._loaded:
                self._loaded.append(_load(self.address))
            torch, tokenizer, model = self._loaded[0]
            tokens = _tokenize(tokenizer, shown_text)
            count = int(tokens["input_ids"].shape[1])
            token_limit = _find_limit(tokenizer, model)
            if not 0 < count <= token_limit:
                reason = f"{count} tokens, and the model takes 1 to {token_limit}"
                return JudgeAnswer("none", "", reason, calls=0)
            with torch.inference_mode():
                score = float(model(**tokens).logits[0, 0])
        if not math.isfinite(score):
            return JudgeAnswer("none", "", "the model gives no number")
        if self.threshold is None:
            reason = "judge.threshold is not set"
            return JudgeAnswer("none", "", reason, score=score, prompt_tokens=count)
        verdict = score >= self.threshold
        return JudgeAnswer("accept" if verdict else "reject", "", score=score, prompt_tokens=count)


def make_reward_model(file: "JudgeFile") -> RewardModelJudge:
    """Make the judge of a file's `reward_model`."""
    name, threshold = file.judge.reward_model, file.judge.threshold
    assert name is not None
    folder = file.find(name)
    address = str(folder) if folder.is_dir() else name
    hashes = _hash_folder(folder) if folder.is_dir() else {}
    return RewardModelJudge(
        name=Path(name).name,
        digest=digest(["reward_model", hashes or name, threshold]),
        address=address,
        threshold=threshold,
    )


def _hash_folder(folder: Path) -> dict[str, str]:
    paths = sorted({path for pattern in _HASHED for path in folder.glob(pattern)})
    return {path.name: hash_file(path) for path in paths if path.is_file()}


def _load(address: str) -> tuple[Any, Any, Any]:
    """Load torch, the tokenizer and the model."""
    try:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
    except ImportError:
        raise SettingsError(
            f"a reward model needs the packages transformers and torch: {how_to_install('local')}"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(address, trust_remote_code=False)
        model = AutoModelForSequenceClassification.from_pretrained(
            address, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        words = " ".join(str(error).split())[:300]
        raise SettingsError(f"reward_model {address}: can't be loaded ({words})") from None
    if model.config.num_labels != 1:
        raise SettingsError(
            f"reward_model {address}: it has {model.config.num_labels} logits and a reward model "
            "has one; write it as a function (judge.function)"
        )
    return torch, tokenizer, model.eval()


def _tokenize(tokenizer: Any, shown_text: ShownText) -> Any:
    if getattr(tokenizer, "chat_template", None):
        chat = [
            {"role": "user", "content": shown_text.question},
            {"role": "assistant", "content": shown_text.response},
        ]
        text = tokenizer.apply_chat_template(chat, tokenize=False)
        return tokenizer(text, return_tensors="pt", add_special_tokens=False)
    return tokenizer(shown_text.question + shown_text.response, return_tensors="pt")


def _find_limit(tokenizer: Any, model: Any) -> int:
    limits = [
        getattr(tokenizer, "model_max_length", None),
        getattr(model.config, "max_position_embeddings", None),
    ]
    return min([int(limit) for limit in limits if limit and limit < _UNBOUNDED] or [_UNBOUNDED])
