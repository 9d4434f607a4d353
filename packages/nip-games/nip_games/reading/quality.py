"""The rows of QuALITY: one for each article and writer, with a list of questions.

Of QuALITY's columns `article` and `questions` are needed, and of a question `question`, `options`
and `gold_label` (from 1). `article_id`, `question_unique_id`, `difficult` and `validation` are used
where they are there.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nip_core.errors import DatasetError
from nip_core.hashing import derive_key, derive_seed
from nip_core.scenarios.base import Row
from nip_core.scenarios.row_texts import require_text

COLUMNS = {"article", "questions"}
_BEST_DISTRACTOR = ("untimed_best_distractor", "untimed_eval3_distractor")
"""In its files (1.0.1), and in its README."""

_NO_TEXT = re.compile(r"<head\b.*?</head>|<!.*?>", re.IGNORECASE | re.DOTALL)
_BREAK = re.compile(
    r"</?(?:p|br|div|h\d|hr|ul|ol|li|blockquote|pre|table|tr|td|th|html|body)\b[^<>]*>",
    re.IGNORECASE,
)
_TAG = re.compile(
    r"</?(?:a|b|i|u|em|strong|span|font|center|sup|sub|small|img|cite)\b[^<>]*>", re.IGNORECASE
)


@dataclass(frozen=True)
class AskedPassage:
    """A question about a passage, with a right and a wrong answer."""

    question: str
    passage: str
    right: str
    wrong: str
    question_id: str
    difficulty: str | None


def read_questions(row: Row, name: str) -> Iterator[AskedPassage]:
    """Read the questions of a row of QuALITY, each with its right answer and a wrong one.

    The wrong one is the best distractor by most readers' votes, if they were asked, else one
    that a stable hash chooses.

    Raises:
        DatasetError: a value is missing or breaks a rule; the message calls the row `name`.
    """
    passage = _plain_text(require_text(row, "article", name))
    article = str(row.get("article_id") or derive_key("article", passage))
    entries = row.get("questions")
    if not isinstance(entries, list):
        raise DatasetError(f"{name}: questions must be a list (got {entries!r:.80})")
    for number, entry in enumerate(entries):
        place = f"{name}: questions[{number}]"
        if not isinstance(entry, dict):
            raise DatasetError(f"{place} must be an object (got {entry!r:.80})")
        question, options = require_text(entry, "question", place).strip(), _options(entry, place)
        gold = _label(entry, len(options), place)
        id_ = entry.get("question_unique_id") or derive_key(article, question, options)
        difficult = entry.get("difficult")
        yield AskedPassage(
            question=question,
            passage=passage,
            right=options[gold],
            wrong=options[_distractor(entry, gold, len(options), str(id_))],
            question_id=str(id_),
            difficulty=None if difficult is None else "hard" if difficult == 1 else "easy",
        )


def _options(entry: Row, place: str) -> list[str]:
    options = entry.get("options")
    if not isinstance(options, Sequence) or isinstance(options, str) or len(options) < 2:
        raise DatasetError(
            f"{place}: options must be a list of at least two answers (got {options!r:.80})"
        )
    texts = [
        require_text({"option": text}, "option", f"{place}: options[{k}]").strip()
        for k, text in enumerate(options)
    ]
    twice = [text for text, count in Counter(texts).items() if count > 1]
    if twice:
        raise DatasetError(
            f"{place}: options has {twice[0]!r:.80} twice, so an answer would be right and wrong; "
            "leave the question out"
        )
    return texts


def _label(entry: Row, count: int, place: str) -> int:
    """The right option, counted from 0."""
    label = entry.get("gold_label")
    if label is None:
        raise DatasetError(
            f"{place}: has no gold_label, like the questions of QuALITY's test file; play its "
            "other files"
        )
    if isinstance(label, bool) or label not in range(1, count + 1):
        raise DatasetError(
            f"{place}: gold_label must be a whole number from 1 to {count}, of the option that is "
            f"right (got {label!r:.80})"
        )
    return int(label) - 1


def _distractor(entry: Row, gold: int, count: int, id_: str) -> int:
    """Choose the wrong option most readers were tempted by; of several, by a stable hash."""
    wrong = [option for option in range(count) if option != gold]
    readers = entry.get("validation")
    votes = Counter(
        str(reader.get(name))
        for reader in (readers if isinstance(readers, list) else ())
        if isinstance(reader, dict)
        for name in _BEST_DISTRACTOR
    )
    most_votes = max(votes[str(option + 1)] for option in wrong)
    best = [option for option in wrong if votes[str(option + 1)] == most_votes]
    return best[derive_seed("distractor", id_) % len(best)]


def _plain_text(article: str) -> str:
    """Take the tags out of an article; some of QuALITY's files have them."""
    if not (_BREAK.search(article) or _TAG.search(article)):
        return article
    text = _TAG.sub("", _BREAK.sub("\n", _NO_TEXT.sub("", article)))
    return html.unescape(text).strip()
