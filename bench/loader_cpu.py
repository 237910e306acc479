"""How fast batches are made: planning, packing and masking, in tokens a second of one core.

python -m bench.loader_cpu
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import firth
from bench.table import Row
from bench.texts import paragraphs
from firth import lineage
from firth.config import override
from firth.data.loader import BatchAddress, Packs
from firth.data.shards import Shards
from firth.lineage import Recipe
from firth.objectives.masked_lm import MaskedLM
from firth.pretraining.training import build

TOKENS = 65536


def kinds() -> dict[str, Recipe]:
    pairs = lineage.make("bert", "tiny")
    pairs = override(pairs, [f"batches.tokens={TOKENS}"])
    single = replace(pairs, objectives={"masked_lm": MaskedLM.Config()})
    words = replace(pairs, objectives={"masked_lm": MaskedLM.Config(unit="word")})
    return {"masked LM": single, "masked LM, whole words": words, "masked LM and sentence pairs": pairs}


def main() -> None:
    for row, planning in measured(packs=40):
        rates = " and ".join(f"{rate / 1e6:.2f}M" for rate in row.ours)
        print(f"{row.what:<40} {rates} tokens/s a core; planning an epoch {planning / 1e6:.1f}M tokens/s")


def rows() -> list[Row]:
    """What `make bench` shows."""
    return [row for row, _ in measured(packs=20)]


def measured(*, packs: int) -> Iterator[tuple[Row, float]]:
    """For every kind of objective tokens a second of making packs, twice, and of planning an epoch."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n".join(paragraphs(packs * 750, longest=4000)), encoding="utf-8")
        firth.prepare(text, out=Path(folder) / "data", vocab_size=12000, documents="line")
        data = Shards.open(Path(folder) / "data")
        for name, plan in kinds().items():
            made = build(plan, data, device="cpu").text.training
            began = time.perf_counter()
            count = made.num_packs(0)
            planned = time.perf_counter()
            rates = [_rate(made, range(start, min(count, packs), 2)) for start in (0, 1)]
            yield Row(f"loader: {name}", "tokens/s a core", rates), data.num_tokens / (planned - began)


def _rate(packs: Packs, which: range) -> float:
    began = time.perf_counter()
    tokens = sum(packs[BatchAddress(0, index)].num_tokens for index in which)
    return tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
