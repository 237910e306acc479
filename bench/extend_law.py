"""Does a vocabulary for Chinese law pay? Prints tokens per text and masked-LM loss per character, before and after.

    python -m bench.extend_law --out FOLDER [--size tiny] [--steps 3000] [--add 2000]

A small BERT is pre-trained on general Chinese text. Then the same model, with its old and with the extended vocabulary,
reads law for a third as many steps. Masks cover whole words, so that both hide the same text; a loss per token
times tokens per character is a loss per character, the only one that two vocabularies share.
"""

import argparse
import json
import lzma
import os
import re
from pathlib import Path

import firth
from firth.data.shards import Shards

FIRTH_DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[2] / "shared" / "data"))
ARTICLE = re.compile("第[一二三四五六七八九十百千零]+条")
GENERAL = 12_000_000
"""Characters of general text."""


def split(out: Path) -> None:
    """general.txt, and law.txt and law-dev.txt out of the documents with five articles or more; every tenth is dev."""
    with lzma.open(FIRTH_DATA / "zh/pretrain/zh-0.txt.xz", "rt", encoding="utf-8") as file:
        documents = file.read().split("\n\n")
    law = [text for text in documents if len(ARTICLE.findall(text)) >= 5]
    other = [text for text in documents if len(ARTICLE.findall(text)) < 5]
    size, kept = 0, []
    for text in other:
        size += len(text)
        if size > GENERAL:
            break
        kept.append(text)
    parts = {
        "general": kept,
        "law-dev": law[::10],
        "law": [text for i, text in enumerate(law) if i % 10],
    }
    for name, texts in parts.items():
        (out / f"{name}.txt").write_text("\n\n".join(texts), "utf-8")


def loss(model: Path, data: Path) -> dict[str, float]:
    figures = firth.evaluate(model, data=data)
    health = Shards.open(data).info["health"]
    return {
        "loss_per_token": figures["masked_lm"],
        "loss_per_character": figures["masked_lm"] / health["characters_per_token"],
        "floor_per_character": figures["unigram_floor"] / health["characters_per_token"],
        "tokens_per_text": health["tokens"] / health["documents"],
    }


def study(out: Path, *, size: str, steps: int, add: int) -> dict[str, dict[str, float]]:
    out.mkdir(parents=True, exist_ok=True)
    split(out)
    changes = ["objectives.masked_lm.unit=word", "batches.tokens=4096"]
    firth.prepare(out / "general.txt", out=out / "general", vocab_size=8000)
    firth.pretrain(out / "general", out=out / "base", size=size, steps=steps, changes=changes)
    firth.extend(out / "base", text=out / "law.txt", add=add, out=out / "extended")
    rows = {}
    for name in ("base", "extended"):
        for part in ("law", "law-dev"):
            firth.prepare(out / f"{part}.txt", out=out / f"{part}-{name}", tokenizer=out / name)
        rows[f"{name}, before law"] = loss(out / name, out / f"law-dev-{name}")
        run = out / f"{name}-law"
        firth.pretrain(
            out / f"law-{name}", out=run, size=size, start_from=out / name, steps=steps // 3, changes=changes
        )
        rows[f"{name}, after law"] = loss(run, out / f"law-dev-{name}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--steps", type=int, default=3000, help="of general pre-training; law gets a third of it")
    parser.add_argument("--add", type=int, default=2000)
    options = parser.parse_args()
    print(
        json.dumps(
            study(options.out, size=options.size, steps=options.steps, add=options.add), indent=2, ensure_ascii=False
        )
    )


if __name__ == "__main__":
    main()
