"""Looks at labelled files before any training: what is there, what is wrong, and in which rows.

In: a task and its files. Out: findings as plain JSON values; `describe` says them in sentences.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from firth import checkpoint as checkpoints
from firth.checkpoint import make_head
from firth.finetuning import labelled
from firth.finetuning.figures import readable, short
from firth.finetuning.labelled import Labelled
from firth.tasks import resolve
from firth.tasks.options import Choice
from firth.tasks.task import Reader, Scorer
from firth.types import Example

SHOWN = 10
"""Rows that a sentence names at most."""
RARE = 5
"""A name with fewer training rows is hard to learn."""


def check(name: str, config: Any, files: Mapping[str, Path], *, model: Path | None = None) -> dict[str, Any]:
    """What a file (and a dev and test file beside it) holds; with a model also lengths in its tokens."""
    data = labelled.read(name, config, files)
    findings = inspect(name, data)
    for part, path in files.items():
        findings["parts"][part] = {"file": str(path), **findings["parts"][part]}
    if model:
        loaded = checkpoints.load(model)
        task = make_head(name, data.config, loaded.encoder, labels=data.labels)
        longest = loaded.encoder.max_positions
        for part, examples in data.examples.items():
            items = task.encode(examples, loaded.tokenizer, max_length=longest, training=part == "train")
            findings["parts"][part]["lengths"] = {"read_at_once": longest, **labelled.sizes(items)}
    return findings


def inspect(name: str, data: Labelled) -> dict[str, Any]:
    """Everything that needs no tokenizer."""
    kind = resolve(name)
    reader = kind.reader(data.config)
    scorer = kind.scorer(data.config, data.labels)
    train = data.examples["train"]
    parts = {part: _part(reader, scorer, data, part, examples) for part, examples in data.examples.items()}
    seen = {_key(example): example.row for example in train}
    for part, examples in data.examples.items():
        if part != "train":
            pairs = [(example.row, seen[_key(example)]) for example in examples if _key(example) in seen]
            parts[part]["also_in_train"] = pairs
    return {"task": name, "main": scorer.main_metric, "parts": parts}


def _part(reader: Reader, scorer: Scorer, data: Labelled, part: str, examples: Sequence[Example]) -> dict[str, Any]:
    problems = data.problems.get(part, ())
    baseline = scorer.score(scorer.baseline(data.examples["train"], examples), examples)
    duplicates, conflicts = _repeated(examples)
    return {
        "rows": len(examples),
        "bad": [{"row": p.row, "what": p.what, "remedy": p.remedy} for p in problems if p.bad],
        "worth_a_look": [{"row": p.row, "what": p.what, "remedy": p.remedy} for p in problems if not p.bad],
        "balance": reader.balance(examples),
        "baseline": baseline,
        "duplicates": duplicates,
        "conflicts": conflicts,
    }


def _key(example: Example) -> str:
    texts = (*example.texts, example.stem) if isinstance(example, Choice) else example.texts
    return "\t".join(" ".join(text.split()).casefold() for text in texts)


def _repeated(examples: Sequence[Example]) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Rows with the same texts; and those of them whose gold differs."""
    groups: dict[str, list[Example]] = defaultdict(list)
    for example in examples:
        groups[_key(example)].append(example)
    duplicates, conflicts = [], []
    for rows in groups.values():
        if len(rows) > 1:
            duplicates.append([row.row for row in rows])
            golds = Counter(short(readable(row.gold)) for row in rows)
            if len(golds) > 1:
                conflicts.append({"rows": [row.row for row in rows], "golds": sorted(golds)})
    return duplicates, conflicts


def describe(findings: Mapping[str, Any]) -> list[str]:
    """The findings as sentences, a part after the other; warnings name their rows."""
    lines = []
    for part, found in findings["parts"].items():
        main = found["baseline"].get(findings["main"], float("nan"))
        lines.append(f"{part}: {found['rows']:,} rows that can be used, {len(found['bad']):,} that cannot.")
        for group, counts in found["balance"].items():
            total = sum(counts.values())
            most = sorted(counts.items(), key=lambda pair: -pair[1])
            shown = ", ".join(f"{name} {count / total:.1%}" for name, count in most[:SHOWN])
            more = f" and {len(most) - SHOWN} more" if len(most) > SHOWN else ""
            lines.append(f"  {group}: {shown}{more}")
        usual = "undefined" if main != main else f"{main:.4f}"
        lines.append(f"  without reading the texts: {findings['main']} {usual}")
        if lengths := found.get("lengths"):
            lines.append(
                f"  tokens: {lengths['mean_tokens']:.1f} a row, longest {lengths['longest']:,}; cut: "
                f"{lengths['cut_share']:.2%} of the tokens, in {lengths['cut_rows']:,} rows"
            )
        lines += [f"  {line}" for line in warnings(part, found)]
    return lines


def warnings(part: str, found: Mapping[str, Any]) -> list[str]:
    """What is wrong with one part, each kind in one sentence with its rows."""
    lines = []
    for kind, heading in (("bad", "cannot be used"), ("worth_a_look", "worth a look")):
        by_what: dict[str, list[int]] = defaultdict(list)
        for row in found[kind]:
            by_what[f"{row['what']}" + (f" ({row['remedy']})" if row["remedy"] else "")].append(row["row"])
        for what, rows in list(by_what.items())[:SHOWN]:
            lines.append(f"Warning: {heading}: {_rows(rows)}: {what}.")
        if len(by_what) > SHOWN:
            lines.append(f"Warning: {len(by_what) - SHOWN} more kinds of such rows; the JSON findings list them all.")
    if found["conflicts"]:
        first = found["conflicts"][0]
        several = "text has" if len(found["conflicts"]) == 1 else "texts have"
        lines.append(
            f"Warning: {len(found['conflicts'])} {several} several labels, such as rows "
            f"{', '.join(map(str, first['rows'][:SHOWN]))} ({' / '.join(first['golds'])})."
        )
    if found["duplicates"]:
        extra = sum(len(rows) - 1 for rows in found["duplicates"])
        repeat = "row repeats" if extra == 1 else "rows repeat"
        lines.append(f"Warning: {extra} {repeat} another, such as {_rows(found['duplicates'][0])}.")
    if leaks := found.get("also_in_train"):
        share = len(leaks) / found["rows"]
        lines.append(
            f"Warning: {len(leaks)} rows ({share:.1%}) also stand in train, such as row {leaks[0][0]} "
            f"(train row {leaks[0][1]}): figures on {part} flatter the model."
        )
    if part == "train":
        for group, counts in found["balance"].items():
            rare = [name for name, count in counts.items() if count < RARE]
            if rare:
                named = "" if group.isdigit() else f"the {group} "
                lines.append(f"Warning: fewer than {RARE} training rows for {named}{', '.join(rare[:SHOWN])}.")
    return lines


def _rows(rows: Iterable[int]) -> str:
    listed = list(rows)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return f"row{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed[:SHOWN]))}{more}"
