"""Zero-shot transfer from English to German: what translation LM is worth (Conneau & Lample 2019, section 5.1).

    python -m bench.zero_shot --out RUNS [--size mini] [--minutes 2] [--seeds 3] [--device cuda]

Pre-trains the recipe `xlm` on the captions of Multi30k in two ways: without pairs (English and German captions, each on
its own) and with pairs (the same captions, and each with its translation). Both take the same steps or minutes. Each
model is then fine-tuned on English captions only and measured on English and on German ones, which neither stage saw.

The task: which of five words (man, woman, boy, girl, dog) the English caption has; captions with none or with several
are left out. A German row has the label of its English counterpart. In English the word is there to be found. In German
it is not, and no German row was learned from: only a model in which "Hund" is near "dog" can answer. Prints one line of
JSON a model and seed: the accuracies, and the share of the most frequent label, which needs no model.

The archive is that of $FIRTH_DATA. A rehearsal on a CPU:

    python -m bench.zero_shot --out /tmp/runs --rows 600 --size tiny --steps 20 --seeds 1 batches.tokens=2048
"""

import argparse
import gzip
import json
import re
import time
from collections import Counter
from pathlib import Path

import firth
from bench.texts import unpacked

RAW = "mt/multi30k/data/task1/raw"
LANGUAGES = ("en", "de")
LABELS = ("man", "woman", "boy", "girl", "dog")
TESTS = ("test_2016_flickr", "test_2017_flickr")
STARTS = ("masked LM", "translation LM")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("changes", nargs="*", help="settings of pre-training, such as batches.tokens=16384")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--minutes", type=float, default=2.0, help="of pre-training")
    parser.add_argument("--steps", type=int, default=0, help="of pre-training, instead of minutes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=0, help="use only the first captions, to rehearse")
    parser.add_argument("--device", default=None)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    captions = read_captions(arguments.out, arguments.rows)
    rows = write_rows(arguments.out, captions)
    data = {start: prepare(arguments.out, start) for start in STARTS}
    for seed in range(1, arguments.seeds + 1):
        for start in STARTS:
            figures = run(start, data[start], rows, seed, arguments)
            print(json.dumps(figures), flush=True)


def read_captions(folder: Path, limit: int) -> dict[tuple[str, str], list[str]]:
    """The captions by part and language; those to pre-train on are also written as files."""
    captions: dict[tuple[str, str], list[str]] = {}
    for part in ("train", "val", *TESTS):
        for language in LANGUAGES:
            packed = unpacked("en/multi30k.tar.xz", f"{RAW}/{part}.{language}.gz", folder)
            lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
            captions[part, language] = lines[: limit or None]
    for language in LANGUAGES:
        lines = captions["train", language]
        (folder / f"train.{language}").write_text("\n".join(lines) + "\n", "utf-8")
    return captions


def label_of(english: str) -> str:
    """The only word of `LABELS` that a caption has; empty if it has none or several."""
    words = set(re.findall("[a-z]+", english.lower()))
    found = [label for label in LABELS if label in words]
    return found[0] if len(found) == 1 else ""


def write_rows(folder: Path, captions: dict[tuple[str, str], list[str]]) -> dict[str, Path]:
    """Labelled rows: English ones to learn from and to pick epochs on, and to measure on those of both languages."""
    parts = {"train-en": (("train",), "en"), "dev-en": (("val",), "en")}
    parts |= {f"test-{language}": (TESTS, language) for language in LANGUAGES}
    paths = {}
    for name, (sources, language) in parts.items():
        lines = ["text\tlabel"]
        for source in sources:
            for english, text in zip(captions[source, "en"], captions[source, language], strict=True):
                label = label_of(english)
                if label:
                    lines.append(f"{text.strip()}\t{label}")
        paths[name] = folder / f"{name}.tsv"
        paths[name].write_text("\n".join(lines) + "\n", "utf-8")
    return paths


def prepare(folder: Path, start: str) -> Path:
    """The captions of both languages; for translation LM with their pairs too. Both share one vocabulary."""
    out = folder / f"data-{start.replace(' ', '-')}"
    if out.exists():
        return out
    texts = [f"{language}={folder}/train.{language}" for language in LANGUAGES]
    tokenizer = "wordpiece"
    if start == "translation LM":
        texts.append(f"en+de={folder}/train.en,{folder}/train.de")
        tokenizer = str(folder / "data-masked-LM" / "tokenizer")
    firth.prepare(texts, out=out, tokenizer=tokenizer, documents="line")
    return out


def run(start: str, data: Path, rows: dict[str, Path], seed: int, arguments: argparse.Namespace) -> dict[str, object]:
    """Pre-trains, fine-tunes in English and measures in both languages."""
    name = f"{start.replace(' ', '-')}-{seed}"
    model = arguments.out / name
    begun = time.monotonic()
    extent = {"steps": arguments.steps} if arguments.steps else {"minutes": arguments.minutes}
    changes = ("batches.max_length=96", f"train.seed={seed}", *arguments.changes)
    firth.pretrain(
        data, out=model, recipe="xlm", size=arguments.size, device=arguments.device, changes=changes, **extent
    )
    tuned = arguments.out / f"{name}-tuned"
    firth.finetune(
        model,
        task="classify",
        train=rows["train-en"],
        dev=rows["dev-en"],
        out=tuned,
        device=arguments.device,
        changes=("language=en", "max_length=64", f"train.seed={seed}"),
    )
    figures: dict[str, object] = {"start": start, "seed": seed, "minutes": round((time.monotonic() - begun) / 60, 2)}
    for language in LANGUAGES:
        found = firth.evaluate(tuned, data=rows[f"test-{language}"], language=language)
        figures[language] = round(found["accuracy"], 4)
    labels = Counter(line.rpartition("\t")[2] for line in rows["test-de"].read_text("utf-8").splitlines()[1:])
    figures["most frequent label"] = round(max(labels.values()) / labels.total(), 4)
    return figures


if __name__ == "__main__":
    main()
