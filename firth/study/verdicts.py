"""Rows -> verdicts: each claim on each set, with the interval of the difference, corrected for their number."""

from collections.abc import Sequence
from dataclasses import dataclass

from firth.study.design import Claim, Study
from firth.study.intervals import Interval, Outcome, holm, mean_interval, outcome, p_value
from firth.study.running import Score


@dataclass(frozen=True)
class Test:
    """A claim on one set."""

    claim: Claim
    dataset: str
    difference: Interval
    """Better minus worse, seed by seed."""
    corrected_p: float
    outcome: Outcome


def judge(study: Study, rows: Sequence[Score]) -> list[Test]:
    """All claims of a study that its rows can say something about."""
    found = []
    for claim in study.claims:
        for dataset in _datasets(claim, rows):
            differences = _differences(claim, dataset, rows)
            if differences:
                found.append((claim, dataset, differences))
    corrected = holm([p_value(differences) for _, _, differences in found])
    tests = []
    for (claim, dataset, differences), p in zip(found, corrected, strict=True):
        interval = mean_interval(differences)
        tests.append(Test(claim, dataset, interval, p, outcome(interval.mean, p)))
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


def verdict(claim: Claim, tests: Sequence[Test], language: str = "en") -> str:
    """One sentence about a claim: where it holds, where it is reversed, where the seeds cannot tell."""
    marks = MARKS[language]
    own = [test for test in tests if test.claim is claim]
    parts = []
    for name, word in WORDS[language].items():
        sets = [test for test in own if test.outcome == name]
        if sets:
            shown = marks.between_sets.join(f"{test.dataset} {_signed(test.difference)}" for test in sets)
            parts.append(f"{word}{marks.opening}{shown}{marks.closing}")
    said = marks.between_outcomes.join(parts) or NOT_MEASURED[language]
    return f"{claim.text[language]}{marks.colon}{said}{marks.stop}"


def _signed(interval: Interval) -> str:
    """A difference in hundredths, with half the width of its range."""
    mean = 100 * interval.mean
    if not interval.is_known:
        return f"{mean:+.1f}, one seed"
    half = 100 * (interval.high - interval.low) / 2
    return f"{mean:+.1f} ± {half:.1f}"
