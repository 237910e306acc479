"""Pre-training speed on a CPU, firth against transformers, on the same ragged text in one run.

    python -m bench.pretrain_cpu

One paragraph a sequence, at most 128 tokens, masked LM, BERT-mini, dropout 0.1 in both (attention dropout 0), AdamW,
the same number of threads, both in fp32 and, where the CPU has units for it, both in bf16 (transformers by autocast).
transformers gets padded batches of 32 as its users make them. Useful tokens are real tokens with [CLS] and [SEP].
"""

import argparse
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import firth
from bench.table import Row, peak_memory, say
from bench.texts import paragraphs
from firth import lineage
from firth.config import override
from firth.cpu import this_cpu
from firth.data.loader import BatchAddress, load, places
from firth.data.shards import Shards
from firth.lineage import Recipe
from firth.objectives.masked_lm import MaskedLM
from firth.pretraining.training import build
from firth.train.loop import Progress, train
from firth.train.optim import make_optimizer
from firth.train.parallel import Precision

WARM = 2


def recipe(tokens: int, size: str, precision: Precision) -> Recipe:
    plan = lineage.make("bert", size)
    shape = replace(plan.encoder["bert"], pooler=False)
    plan = replace(plan, encoder={"bert": shape}, objectives={"masked_lm": MaskedLM.Config()})
    return override(plan, [f"batches.tokens={tokens}", f"train.precision={precision}"])


def run_firth(data: Shards, plan: Recipe, steps: int) -> tuple[float, np.ndarray]:
    parts = build(plan, data, device="cpu")
    clock = [0.0]

    def on_step(progress: Progress, norm: torch.Tensor) -> None:
        if progress.step == WARM:
            clock[0] = time.perf_counter()

    train(
        parts.learner,
        load(parts.text.training, places(parts.text.training, BatchAddress()), workers=0),
        plan.train,
        optimizer=make_optimizer(parts.learner, plan.train.optim),
        progress=Progress(WARM + steps),
        on_step=on_step,
    )
    seconds = time.perf_counter() - clock[0]
    sequences, packs = parts.text.training._plan(0)
    lengths = np.concatenate([sequences.lengths_S[rows] for rows in packs[WARM : WARM + steps]])
    return lengths.sum() / seconds, lengths


def run_transformers(data: Shards, plan: Recipe, steps: int) -> float:
    from transformers import BertConfig, BertForMaskedLM

    parts = build(plan, data, device="cpu")
    shape = parts.learner.encoder.config
    config = BertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        intermediate_size=shape.ffn_width,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    rows = rows_of(parts.text.training, steps)
    batches = [rows[i : i + 32] for i in range(0, len(rows) - 31, 32)]
    useful, began = 0, 0.0
    for step, batch in enumerate(batches):
        if step == WARM:
            began = time.perf_counter()
        feed = pad(batch)
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.train.precision == "bf16"):
            loss = model(**feed).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        useful += int(feed["attention_mask"].sum()) if step >= WARM else 0
    return useful / (time.perf_counter() - began)


def rows_of(packs: Any, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The masked sequences of the first packs, one by one, with their labels."""
    rows = []
    for index in range(count):
        batch = packs[BatchAddress(0, index)]
        labels = torch.full_like(batch.ids_N, -100)
        real = batch.targets["masked_lm_labels"] != -100
        labels[batch.targets["masked_lm_positions"][real]] = batch.targets["masked_lm_labels"][real]
        bounds = batch.bounds_B1.tolist()
        rows += [(batch.ids_N[a:b], labels[a:b]) for a, b in pairwise(bounds) if (labels[a:b] >= 0).any()]
    return rows


def pad(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    pack = torch.nn.utils.rnn.pad_sequence
    ids = pack([ids for ids, _ in rows], batch_first=True)
    mask = pack([torch.ones_like(ids) for ids, _ in rows], batch_first=True)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": pack([labels for _, labels in rows], batch_first=True, padding_value=-100),
    }


def measured(size: str, tokens: int, steps: int, precision: Precision) -> tuple[list[float], list[float], np.ndarray]:
    """Useful tokens a second of firth and of transformers in two rounds, and the lengths of the sequences."""
    ours, theirs = [], []
    with TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        text.write_text("\n".join(paragraphs(6000, longest=2000)), encoding="utf-8")
        firth.prepare(text, out=Path(folder) / "data", vocab_size=12000, documents="line")
        data = Shards.open(Path(folder) / "data")
        plan = recipe(tokens, size, precision)
        for _ in range(2):
            rate, lengths = run_firth(data, plan, steps)
            ours.append(rate)
            theirs.append(run_transformers(data, plan, steps))
            say(f"{precision}: firth {ours[-1]:,.0f}, transformers {theirs[-1]:,.0f} useful tokens/s")
    return ours, theirs, lengths


def precisions() -> list[Precision]:
    """What this CPU is fast in."""
    return ["fp32", "bf16"] if this_cpu().trains_in_bf16 else ["fp32"]


def rows() -> list[Row]:
    """What `make bench` shows."""
    found = []
    for precision in precisions():
        ours, theirs, lengths = measured("mini", 4096, 8, precision)
        what = f"pre-train BERT-mini, {precision}, mean length {lengths.mean():.0f}"
        found.append(Row(what, "useful tokens/s", ours, "transformers", theirs))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="mini")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    print(f"threads {torch.get_num_threads()}, torch {torch.__version__}, BERT-{arguments.size}, dropout 0.1")
    for precision in precisions():
        ours, theirs, lengths = measured(arguments.size, arguments.tokens, arguments.steps, precision)
        print(f"sequence length: mean {lengths.mean():.1f}, median {np.median(lengths):.0f}, max {lengths.max()}")
        print(f"firth {precision}         {np.mean(ours):10,.0f} useful tokens/s   ({ours[0]:,.0f} and {ours[1]:,.0f})")
        both = f"{theirs[0]:,.0f} and {theirs[1]:,.0f}"
        print(f"transformers {precision}  {np.mean(theirs):10,.0f} useful tokens/s   ({both})")
        each = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        print(f"ratio              {np.mean(each):10.2f}   ({each[0]:.2f} and {each[1]:.2f})")
    print(f"peak memory of the process {peak_memory():,} MB")


if __name__ == "__main__":
    main()
