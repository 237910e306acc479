"""How fast batches are made: planning, packing and masking, in tokens a second of one core.

python -m bench.loader_cpu
"""

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import firth
from bench.texts import paragraphs
from firth.config import override
from firth.data.loader import Place
from firth.data.shards import Shards
from firth.objectives.masked_lm import MaskedLM
from firth.recipes import lineage
from firth.recipes.lineage import Recipe
from firth.recipes.pretraining import build

TOKENS = 65536


def kinds() -> dict[str, Recipe]:
    pairs = lineage.make("bert", "tiny")
    pairs = override(pairs, [f"batches.tokens={TOKENS}"])
    single = replace(pairs, objectives={"masked_lm": MaskedLM.Config()})
    words = replace(pairs, objectives={"masked_lm": MaskedLM.Config(unit="word")})
    return {"masked LM": single, "masked LM, whole words": words, "masked LM and sentence pairs": pairs}


def main() -> None:
    with TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n".join(paragraphs(30_000, longest=4000)), encoding="utf-8")
        firth.prepare(text, out=Path(folder) / "data", vocab_size=12000, documents="line")
        data = Shards.open(Path(folder) / "data")
        for name, plan in kinds().items():
            packs = build(plan, data, device="cpu").packs
            began = time.perf_counter()
            count = packs.num_packs(0)
            planned = time.perf_counter()
            made = [packs[Place(0, index)].num_tokens for index in range(min(count, 40))]
            seconds = time.perf_counter() - planned
            rate, plan_rate = sum(made) / seconds / 1e6, data.num_tokens / (planned - began) / 1e6
            print(f"{name:<30} {rate:6.2f}M tokens/s a core; planning an epoch {plan_rate:6.1f}M tokens/s")


if __name__ == "__main__":
    main()
