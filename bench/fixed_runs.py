"""Fixed-seed runs on one CPU thread, as hashes: two versions of firth that compute the same print the same lines.

    python bench/fixed_runs.py                       this checkout
    python bench/fixed_runs.py --package CHECKOUT    another one, on the same text

Each line has the start of the sha256 of a run's metrics.jsonl (of word vectors, of their weights).
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "firth" / "samples"
SHORT = ("--size", "tiny", "--steps", "30", "train.log_every=5", "batches.tokens=1024")


class Package:
    """One checkout of firth, used through its command line."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(checkout),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def python(self, *words: str) -> str:
        # In an empty folder: Python looks for packages in the current one first.
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{' '.join(words)}: {done.stderr[-500:]}")
        return done.stdout.strip()

    def firth(self, *words: object) -> None:
        self.python("-m", "firth", *map(str, words))

    def show(self, name: str, file: str) -> None:
        digest = hashlib.sha256((self.folder / file).read_bytes()).hexdigest()
        print(f"{name:10} {digest[:16]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, default=ROOT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prose = [SAMPLES / f"prose.{language}.txt" for language in ("en", "zh")]
        (folder / "text.txt").write_text("\n\n".join(path.read_text("utf-8") for path in prose), "utf-8")
        package = Package(arguments.package.resolve(), folder)
        package.firth("prepare", "text.txt", "--out", "data", "--vocab-size", 1500)
        package.firth("prepare", "text.txt", "--out", "words", "--tokenizer", "words")
        # Initial heads that look at neighbours came later; without them the runs are comparable.
        has_init = package.python("-c", "from firth.encoders.bert import Bert; print(hasattr(Bert.Config, 'init'))")
        plain = ["encoder.bert.init=normal"] if has_init == "True" else []
        for recipe, changes in {"bert": plain, "gpt": [], "elmo": [], "electra": []}.items():
            package.firth("pretrain", "data", "--recipe", recipe, *SHORT, "--out", recipe, *changes)
            package.show(recipe, f"{recipe}/metrics.jsonl")
        package.firth("pretrain", "words", "--recipe", "word2vec-sg-ns", "--threads", 1, "--out", "w2v")
        package.show("word2vec", "w2v/model.safetensors")
        rows = SAMPLES / "classify.en.tsv"
        package.firth("finetune", "bert", "--task", "classify", "--train", rows, "--out", "tuned")
        package.show("fine-tune", "tuned/seed-1/metrics.jsonl")


if __name__ == "__main__":
    main()
