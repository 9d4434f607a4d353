"""Arms of other programs side by side: scores paired by question, clustered, with power.

The statistics are those of runs (`nip_core.evaluation.statistics`): several answers to a question
are averaged first, questions of one cluster count as alike, and where all scores are 0 or 1
interval and p-value agree.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nip_core.errors import DatasetError, SettingsError
from nip_core.evaluation.figures_in_words import DASH, p_value
from nip_core.evaluation.split_metrics import Interval95
from nip_core.evaluation.spread import ByQuestion
from nip_core.evaluation.statistics.clustered import clustered_mean, difference_interval
from nip_core.evaluation.statistics.paired import compare_pairs
from nip_study.compare.inspect_logs import read_log
from nip_study.compare.scored_rows import LARGEST, Columns, ScoredFile, ScoredRow, read_jsonl
from nip_study.compute.needed import detectable_mean, questions_needed
from nip_study.parts.document_parts import Part, adjust, clip_interval

SUFFIXES = (".eval", ".json", ".jsonl")
_SEED = 0
_NAMED = 3  # questions in a message


class AgainstFirstArm(Part):
    """How much higher the scores of an arm are than those of the first, paired by question."""

    difference: float
    ci95: Interval95 | None
    """None with one cluster."""
    p: float | None
    """None where scores are others than 0 and 1, or questions were not answered as often."""
    p_holm: float | None
    """Adjusted for all arms."""
    detectable: float | None
    """The smallest true difference that as many questions show in 80 % of the cases."""
    questions_needed: int | None
    """So many questions show a true difference like `needed_for` in 80 % of the cases."""
    needed_for: float
    """The difference that was asked for, or the one that was seen."""


class ScoredArm(Part):
    """An arm, with the mean of its scores."""

    arm: str
    file: str
    status: str
    """Of a log that is not finished, else empty."""
    questions: int
    answers: int
    clusters: int
    score: float
    score_ci95: Interval95 | None
    against: AgainstFirstArm | None
    """None for the first arm."""


class ArmComparison(Part):
    """Arms side by side."""

    arms: tuple[ScoredArm, ...]
    left_out: int
    """Questions that not all arms have, and which were therefore left out."""
    are_rates: bool
    """Whether all scores lie in [0, 1]: the table then has percent."""


@dataclass(frozen=True)
class _Arm:
    name: str
    file: str
    status: str
    rows: Sequence[ScoredRow]


def compare_files(
    paths: Sequence[Path],
    columns: Columns,
    *,
    only_common: bool = False,
    difference: float | None = None,
) -> ArmComparison:
    """Compare the arms of files: each with the first one, on the questions that all have.

    Args:
        paths: logs of Inspect (`.eval`, `.json`), and rows in JSON Lines (`.jsonl`).
        columns: the keys of rows, by their meaning.
        only_common: leave out the questions that some arm lacks.
        difference: the difference to say for how many questions would show it; None: the one seen.

    Raises:
        DatasetError: a file can't be read, or an arm lacks questions.
        SettingsError: there is one arm only, or a number is not finite or too large.
    """
    for option, number in (("--missing", columns.missing_score), ("--difference", difference)):
        if number is not None and not abs(number) <= LARGEST:
            raise SettingsError(f"{option} {number:g}: must be a number up to {LARGEST:g}")
    files = [
        read_jsonl(p, columns) if p.suffix == ".jsonl" else read_log(p, columns) for p in paths
    ]
    arms = _name_arms(files)
    if len(arms) < 2:
        raise SettingsError(
            f"{paths[0]}: one arm can't be compared; name two files or more, or by --arm the key "
            "that tells the arms of a file apart"
        )
    arms, left_out = _match(arms, only_common)
    questions = sorted({row.question for row in arms[0].rows})
    clusters = _number_clusters(arms, questions)
    scores = [_Scores(arm, questions, clusters) for arm in arms]
    are_rates = all(of_arm.are_rates for of_arm in scores)
    against = [_compare(scores[0], later, difference, are_rates) for later in scores[1:]]
    adjusted = zip(against, adjust([row.p for row in against]), strict=True)
    rows = [row.model_copy(update={"p_holm": p}) for row, p in adjusted]
    described = [
        _describe(arm, of_arm, row, are_rates)
        for arm, of_arm, row in zip(arms, scores, (None, *rows), strict=True)
    ]
    return ArmComparison(arms=tuple(described), left_out=left_out, are_rates=are_rates)


def _name_arms(files: Sequence[ScoredFile]) -> list[_Arm]:
    """List the arms of all files; where two have one name, their files tell them apart."""
    names = [name for file in files for name in file.arms]
    file_names = [Path(file.path).name for file in files]
    arms = []
    for file, file_name in zip(files, file_names, strict=True):
        suffix = file_name if file_names.count(file_name) == 1 else file.path
        for name, rows in file.arms.items():
            label = name if names.count(name) == 1 else f"{name} ({suffix})"
            arms.append(_Arm(label, file.path, file.status, rows))
    return arms


def _match(arms: Sequence[_Arm], only_common: bool) -> tuple[list[_Arm], int]:
    """Check that all arms have the same questions, or keep those that all have."""
    by_arm = [{row.question for row in arm.rows} for arm in arms]
    common, every = set.intersection(*by_arm), set.union(*by_arm)
    if common != every and not only_common:
        for arm, questions in zip(arms, by_arm, strict=True):
            if lacking := sorted(every - questions):
                raise DatasetError(
                    f"{arm.file}: {arm.name} lacks {len(lacking)} of {len(every)} questions (such "
                    f"as {', '.join(lacking[:_NAMED])}), so scores can't be paired; --common "
                    "compares the questions that all arms have"
                )
    if not common:
        raise DatasetError(
            f"{arms[0].file} and {arms[1].file} have no question in common, so scores can't be "
            f"paired (the first has {', '.join(sorted(by_arm[0])[:_NAMED])}, the second "
            f"{', '.join(sorted(by_arm[1])[:_NAMED])})"
        )
    matched = [
        _Arm(arm.name, arm.file, arm.status, [row for row in arm.rows if row.question in common])
        for arm in arms
    ]
    return matched, len(every - common)


def _number_clusters(arms: Sequence[_Arm], questions: Sequence[str]) -> NDArray[np.int64]:
    """Give the cluster of each question a number; rows that contradict each other are errors."""
    first: dict[str, ScoredRow] = {}
    texts: dict[str, ScoredRow] = {}
    for row in (row for arm in arms for row in arm.rows):
        first_row = first.setdefault(row.question, row)
        if first_row.cluster != row.cluster:
            raise DatasetError(
                f"{row.place}: question {row.question!r} is in cluster {row.cluster!r}, and in "
                f"{first_row.cluster!r} at {first_row.place}; a question has one cluster"
            )
        if row.text is not None and texts.setdefault(row.question, row).text != row.text:
            raise DatasetError(
                f"{row.place}: asks something else than {texts[row.question].place}, so scores "
                "can't be paired; compare logs of the same dataset"
            )
    names = {name: k for k, name in enumerate(sorted({row.cluster for row in first.values()}))}
    return np.array([names[first[question].cluster] for question in questions], dtype=np.int64)


class _Scores:
    """The scores of an arm, by question."""

    def __init__(self, arm: _Arm, questions: Sequence[str], clusters: NDArray[np.int64]) -> None:
        numbers = {question: k for k, question in enumerate(questions)}
        by_question: dict[int, list[float]] = defaultdict(list)
        for row in arm.rows:
            by_question[numbers[row.question]].append(row.score)
        ordered = [sorted(by_question[k]) for k in range(len(questions))]
        self.clusters = clusters
        self.counts = np.array([len(scores) for scores in ordered])
        self.sums = np.array([sum(scores) for scores in ordered], dtype=np.float64)
        self.means = self.sums / self.counts
        self.problems = np.repeat(np.arange(len(questions)), self.counts)
        self.values = np.array([score for scores in ordered for score in scores])
        self.are_rates = bool(self.values.min() >= 0 and self.values.max() <= 1)
        self.is_right_or_wrong = bool(np.all((self.values == 0) | (self.values == 1)))

    def interval(self) -> Interval95 | None:
        """Compute the interval of the mean over all answers."""
        spread, weights = ByQuestion(_SEED, self.clusters), np.ones(len(self.values))
        if self.is_right_or_wrong:
            return spread.rate(self.problems, self.values == 1, weights)
        return spread.mean(self.problems, self.values, weights)


def _compare(
    first: _Scores, second: _Scores, needed_for: float | None, are_rates: bool
) -> AgainstFirstArm:
    differences = second.means - first.means
    clusters = first.clusters
    interval, p = difference_interval(differences, clusters, _SEED), None
    is_counted = first.is_right_or_wrong and second.is_right_or_wrong
    if is_counted and np.array_equal(first.counts, second.counts):
        changes = np.bincount(clusters, weights=second.sums - first.sums).astype(np.float64)
        interval, p = compare_pairs(differences, clusters, changes)
    if interval is not None and are_rates:
        interval = clip_interval(interval, -1.0)
    mean = clustered_mean(differences, clusters)
    assert mean is not None  # there are questions
    target = mean.value if needed_for is None else needed_for
    needed = questions_needed(target, mean)
    # Of clusters; in questions, where each has as many as now.
    in_questions = None if needed is None else -(-needed * len(differences) // mean.questions)
    return AgainstFirstArm(
        difference=mean.value,
        ci95=interval,
        p=p,
        p_holm=None,
        detectable=detectable_mean(mean),
        questions_needed=in_questions,
        needed_for=target,
    )


def _describe(
    arm: _Arm, scores: _Scores, against: AgainstFirstArm | None, are_rates: bool
) -> ScoredArm:
    interval = scores.interval()
    return ScoredArm(
        arm=arm.name,
        file=arm.file,
        status=arm.status,
        questions=len(scores.counts),
        answers=len(scores.values),
        clusters=int(scores.clusters.max()) + 1,
        score=float(scores.values.mean()),
        score_ci95=clip_interval(interval) if interval and are_rates else interval,
        against=against,
    )


def comparison_rows(results: ArmComparison) -> tuple[list[str], list[list[str]]]:
    """Write the cells of the table: rates in percent, other scores as they are."""
    heads = ["arm", "questions", "score", "against the first", "p (Holm)", "detectable", "needed"]
    scale, digits = (100, 1) if results.are_rates else (1, 3)
    rows = []
    for arm in results.arms:
        against = arm.against
        cells = [
            arm.arm + (f" ({arm.status})" if arm.status else ""),
            f"{arm.questions:,}",
            _cell(arm.score, arm.score_ci95, scale, f".{digits}f"),
        ]
        if against is None:
            rows.append([*cells, *[DASH] * 4])
            continue
        cells += [
            _cell(against.difference, against.ci95, scale, f"+.{digits}f"),
            p_value(against.p_holm),
            _detectable_cell(against.detectable, results.are_rates, f".{digits}f"),
            DASH if against.questions_needed is None else f"{against.questions_needed:,}",
        ]
        rows.append(cells)
    return heads, rows


def _detectable_cell(difference: float | None, is_rate: bool, form: str) -> str:
    if difference is None:
        return DASH
    if not is_rate:
        return f"{difference:{form}}"
    return "> 100" if difference > 1 else f"{100 * difference:{form}}"


def _cell(value: float, interval: Interval95 | None, scale: int, form: str) -> str:
    bounds = ", ".join(f"{scale * bound:{form}}" for bound in interval or ())
    return f"{scale * value:{form}}" + (f" [{bounds}]" if bounds else "")


def are_files(names: Sequence[str]) -> bool:
    """Tell whether names are those of files with scores, and not of runs.

    Raises SettingsError where some are, and some are not.
    """
    answers: Mapping[str, bool] = {name: Path(name).suffix in SUFFIXES for name in names}
    if len(set(answers.values())) > 1:
        run = next(name for name, is_file in answers.items() if not is_file)
        raise SettingsError(
            f"{run}: runs and files can't be compared with each other; files end in "
            f"{', '.join(SUFFIXES)}; `nip export RUN DIR --to inspect` writes a run as such logs"
        )
    return all(answers.values())
