"""firth and a transformers training loop fine-tune the same model on the same rows: are their mean scores the same?

    python bench/parity_gpu.py mrpc MODEL TRAIN TEST --seeds 10 --out rows.jsonl

Both: 3 epochs of 32 rows, AdamW at 1e-4 with 10 % warm-up and linear decay, weight decay 0.01 (not on biases and
norms), gradients clipped at 1, hidden dropout 0.1, attention dropout 0, bf16 products, the last weights scored.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import firth  # noqa: E402
from firth.finetuning import labelled  # noqa: E402
from firth.tasks.classify import ClassifyConfig  # noqa: E402
from firth.types import Example  # noqa: E402

EPOCHS, SIZE, RATE = 3, 32, 1e-4


def ours(arguments: argparse.Namespace, seed: int) -> float:
    with TemporaryDirectory() as folder:
        found = firth.finetune(
            arguments.model,
            task="classify",
            preset=arguments.preset,
            train=arguments.train,
            dev=arguments.test,
            out=Path(folder) / "run",
            changes=[
                f"epochs={EPOCHS}",
                f"batch_size={SIZE}",
                f"train.optim.rate={RATE}",
                f"train.seed={seed}",
                "pick=last",
                "train.checkpoint_every=1000000",
                "max_length=128",
                "tasks.classify.both_orders=false",
            ],
        )
    return float(found["tasks"]["classify"]["figures"]["dev"]["accuracy"]["mean"])


def theirs(arguments: argparse.Namespace, seed: int, train: list[Example], test: list[Example]) -> float:
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(seed)
    names = sorted({str(row.gold) for row in train})
    model = transformers.BertForSequenceClassification.from_pretrained(
        arguments.model, num_labels=len(names), hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0
    ).to(device)
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    rest = [p for name, p in model.named_parameters() if not (name.endswith("bias") or "LayerNorm" in name)]
    optimizer = torch.optim.AdamW([{"params": rest}, {"params": plain, "weight_decay": 0.0}], RATE, weight_decay=0.01)
    steps = -(-len(train) // SIZE) * EPOCHS
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(0.1 * steps), steps)
    order = np.random.default_rng(seed)

    def batch(rows: list[Example]) -> dict[str, Any]:
        texts = tuple(zip(*(row.texts for row in rows), strict=True))
        return tokenizer(*map(list, texts), padding=True, truncation=True, max_length=128, return_tensors="pt")

    for _ in range(EPOCHS):
        rows = order.permutation(len(train))
        for at in range(0, len(rows), SIZE):
            chosen = [train[i] for i in rows[at : at + SIZE]]
            labels = torch.tensor([names.index(str(row.gold)) for row in chosen]).to(device)
            with torch.autocast(device, torch.bfloat16):
                loss = model(**batch(chosen).to(device), labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    right = 0
    with torch.inference_mode():
        for at in range(0, len(test), 128):
            chosen = test[at : at + 128]
            best = model(**batch(chosen).to(device)).logits.argmax(-1).tolist()
            right += sum(names[i] == str(row.gold) for i, row in zip(best, chosen, strict=True))
    return right / len(test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    for name in ("model", "train", "test"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", type=int, default=0, help="use only the first rows, to rehearse")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    files = {"train": arguments.train, "test": arguments.test}
    data = labelled.read("classify", ClassifyConfig(preset=arguments.preset, both_orders=False), files)
    train, test = (list(data.examples[part])[: arguments.rows or None] for part in ("train", "test"))
    found: dict[str, list[float]] = {"firth": [], "transformers": []}
    for seed in range(1, arguments.seeds + 1):
        found["transformers"].append(theirs(arguments, seed, train, test))
        found["firth"].append(ours(arguments, seed))
        print(seed, {name: values[-1] for name, values in found.items()}, flush=True)
    means = {name: float(np.mean(values)) for name, values in found.items()}
    error = float(np.sqrt(sum(np.var(values, ddof=1) / len(values) for values in found.values())))
    row = {"set": arguments.preset, "means": means, "standard_error": error, "scores": found}
    row["difference_in_errors"] = abs(means["firth"] - means["transformers"]) / error
    print(json.dumps(row), flush=True)
    if arguments.out:
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
