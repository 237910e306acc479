"""How well models fill masks: 200 hand-written sentences a language, everyday facts and grammar.

    python bench/cloze.py en MODEL ...        or zh

MODEL is a model folder. Answers count as in `cloze.LANGUAGE.tsv`: one word or, in Chinese, one character. A model whose
vocabulary lacks an answer cannot give it.
"""

import csv
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import firth

TOP = 5


@dataclass
class Tally:
    count: int = 0
    first: int = 0
    """Sentences whose best candidate is right."""
    among: int = 0
    """Sentences with a right answer among the best five."""

    def add(self, candidates: list[str], answers: list[str]) -> None:
        self.count += 1
        self.first += candidates[0] in answers
        self.among += any(candidate in answers for candidate in candidates)

    def __str__(self) -> str:
        return f"top 1 {self.first / self.count:6.1%}   top {TOP} {self.among / self.count:6.1%}   of {self.count}"


def sentences(language: str) -> list[dict[str, str]]:
    """The rows of `cloze.LANGUAGE.tsv`: kind, text, and answers between bars."""
    with Path(__file__).with_name(f"cloze.{language}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def measure(folder: Path, rows: list[dict[str, str]]) -> dict[str, Tally]:
    """The tallies of each kind of sentence, and of all."""
    model = firth.load(folder)
    tallies: dict[str, Tally] = defaultdict(Tally)
    for row in rows:
        answers = [answer.casefold() for answer in row["answers"].split("|")]
        candidates = [fill.token.casefold() for fill in model.fill(row["text"], top=TOP)]
        tallies[row["kind"]].add(candidates, answers)
        tallies["all"].add(candidates, answers)
    return tallies


def main() -> None:
    language, *folders = sys.argv[1:]
    rows = sentences(language)
    for folder in folders:
        print(folder)
        for kind, tally in measure(Path(folder), rows).items():
            print(f"  {kind:10} {tally}", flush=True)


if __name__ == "__main__":
    main()
