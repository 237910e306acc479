"""Rows -> verdicts: each claim on each set, with the interval of the difference, corrected for their number."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from firth.study.design import Claim, Study
from firth.study.intervals import LEVEL, Interval, Outcome, holm, mean_interval, outcome, p_value
from firth.study.running import Score


@dataclass(frozen=True)
class Test:
    """A claim on one set."""

    claim: Claim
    dataset: str
    difference: Interval
    """Better minus worse, seed by seed."""
    p: float
    """How probable such a difference is where there is none."""
    corrected_p: float
    """The same, given how many claims the study tests."""
    outcome: Outcome


def judge(study: Study, rows: Sequence[Score]) -> list[Test]:
    """All claims of a study that its rows can say something about."""
    found = []
    for claim in study.claims:
        for dataset in _datasets(claim, rows):
            differences = _differences(claim, dataset, rows)
            if differences:
                found.append((claim, dataset, differences))
    raw = [p_value(differences) for _, _, differences in found]
    # One seed can decide nothing, so it is no test that the others have to be corrected for.
    tested = [index for index, (_, _, differences) in enumerate(found) if len(differences) > 1]
    corrected = dict(zip(tested, holm([raw[index] for index in tested]), strict=True))
    tests = []
    for index, (claim, dataset, differences) in enumerate(found):
        p = raw[index]
        corrected_p = corrected.get(index, 1.0)
        interval = mean_interval(differences)
        tests.append(Test(claim, dataset, interval, p, corrected_p, outcome(interval.mean, corrected_p)))
    return tests


def _datasets(claim: Claim, rows: Sequence[Score]) -> list[str]:
    if claim.datasets:
        return list(claim.datasets)
    return sorted({row.dataset for row in rows})


def _differences(claim: Claim, dataset: str, rows: Sequence[Score]) -> list[float]:
    """Better minus worse for every seed that both have."""
    better = _by_seed(claim.better, dataset, claim.x, rows)
    worse_x = claim.x if claim.worse_x is None else claim.worse_x
    worse = _by_seed(claim.worse, dataset, worse_x, rows)
    shared = sorted(better.keys() & worse.keys())
    return [better[seed] - worse[seed] for seed in shared]


def _by_seed(system: str, dataset: str, x: float | None, rows: Sequence[Score]) -> dict[int, float]:
    scores = {}
    for row in rows:
        is_meant = row.system == system and row.dataset == dataset and x in (None, row.x)
        if is_meant and row.score is not None:
            scores[row.seed] = row.score
    return scores


WORDS: dict[str, dict[Outcome, str]] = {
    "en": {"holds": "holds", "reversed": "is reversed", "undecided": "is not decided"},
    "zh": {"holds": "成立", "reversed": "相反", "undecided": "未定"},
}


@dataclass(frozen=True)
class VerdictMarks:
    """The punctuation of a language."""

    colon: str
    opening: str
    closing: str
    between_sets: str
    between_outcomes: str
    stop: str


MARKS = {"en": VerdictMarks(": ", " (", ")", ", ", "; ", "."), "zh": VerdictMarks("：", "（", "）", "，", "；", "。")}
NOT_MEASURED = {"en": "not measured", "zh": "未测量"}
ONE_SEED = {"en": ", one seed", "zh": "，一个种子"}
"""After a difference without an interval."""


def verdict(claim: Claim, tests: Sequence[Test], language: str = "en") -> str:
    """One sentence about a claim: where it holds, where it is reversed, where the seeds cannot tell."""
    marks = MARKS[language]
    own = [test for test in tests if test.claim is claim]
    parts = []
    for name, word in WORDS[language].items():
        sets = [test for test in own if test.outcome == name]
        if sets:
            differences = [f"{test.dataset} {_signed(test.difference, language)}" for test in sets]
            shown = marks.between_sets.join(differences)
            parts.append(f"{word}{marks.opening}{shown}{marks.closing}")
    said = marks.between_outcomes.join(parts) or NOT_MEASURED[language]
    return f"{claim.text[language]}{marks.colon}{said}{marks.stop}"


Doubt = Literal["one seed", "equal", "corrected", "small"]


def _doubt(test: Test) -> Doubt:
    """Why a test is not decided."""
    if not test.difference.is_known:
        return "one seed"
    if test.p < LEVEL:
        return "corrected"
    if test.difference.low == test.difference.high:
        return "equal"
    return "small"


DOUBTS: dict[str, dict[Doubt, str]] = {
    "en": {
        "one seed": "One seed has no interval",
        "equal": "All seeds differ by the same, which so few may do by chance",
        "corrected": "The interval is on one side of 0, but among so many tests that may be chance",
        "small": "The interval holds 0, so chance alone may have made the difference",
    },
    "zh": {
        "one seed": "只有一个种子，没有区间",
        "equal": "各种子的差都相同，但种子太少，可能出于偶然",
        "corrected": "区间在 0 的一侧，但检验这么多，可能出于偶然",
        "small": "区间含 0，差异可能只是偶然",
    },
}
DECIDED = {"en": "{decided} of {tests} tests are decided", "zh": "{tests} 个检验中有 {decided} 个已判定"}


def doubts(study: Study, tests: Sequence[Test], language: str = "en") -> list[str]:
    """How many tests are decided, and for each reason not to decide a sentence with the claims and their sets."""
    marks = MARKS[language]
    undecided = [test for test in tests if test.outcome == "undecided"]
    decided = DECIDED[language].format(decided=len(tests) - len(undecided), tests=len(tests))
    sentences = [decided + marks.stop]
    for reason, why in DOUBTS[language].items():
        parts = []
        for claim in study.claims:
            sets = [test.dataset for test in undecided if test.claim is claim and _doubt(test) == reason]
            if sets:
                parts.append(f"{claim.text[language]}{marks.opening}{marks.between_sets.join(sets)}{marks.closing}")
        if parts:
            sentences.append(f"{why}{marks.colon}{marks.between_outcomes.join(parts)}{marks.stop}")
    return sentences


def _signed(interval: Interval, language: str) -> str:
    """A difference in hundredths, with half the width of its range."""
    mean = 100 * interval.mean
    if not interval.is_known:
        return f"{mean:+.1f}{ONE_SEED[language]}"
    half = 100 * (interval.high - interval.low) / 2
    return f"{mean:+.1f} ± {half:.1f}"
