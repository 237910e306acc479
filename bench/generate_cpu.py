"""Writing texts on the CPU against transformers' `generate`: the same BART, the same sources, in one process.

    python -m bench.generate_cpu [--model FOLDER] [--sources FILE] [--repeats 3]

Prints seconds for 100 sentences, greedy and with 4 beams, how many times as fast firth is, and by how many MB memory
grew at most while texts were written. firth comes first, so what it frees is there for transformers. Without a folder
the model has random weights in the shape of a small translator, which ends its texts after about as many tokens as
Multi30k has. The texts of both are compared.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

import firth
from bench.table import forget_peak, peak_memory
from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.encoders.bart import Bart
from firth.inference.rewriting import Rewriter
from firth.nn.decoding import Choice
from firth.samples import prose
from firth.tasks.rewrite import WritingOptions
from firth.tokenizers.bpe import BPE

NUM_TEXTS = 100
MAX_TOKENS = 40
MEAN_TOKENS = 14
"""Of texts by random weights, about as many as a German caption has."""
BATCH = 32
"""Sources that transformers pads to one length at a time, sorted by length."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a bart or t5 folder; random weights without it")
    parser.add_argument("--sources", type=Path, help="a file with one source a line; embedded sentences without it")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sources = _sources(arguments.sources)
    with tempfile.TemporaryDirectory() as home:
        folder = arguments.model or _random_model(sources, Path(home) / "model")
        rewriter = firth.load(folder).rewriter()
        theirs = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    rows = rewriter.tokenize(sources)
    mean_length = np.mean([len(row.windows[0]) for row in rows])
    print(f"{len(sources)} sources of {mean_length:.1f} tokens, at most {MAX_TOKENS} new ones, {torch.__version__}")
    for beams in (4, 1):  # the larger first: memory that was freed once is used again without growth
        _compare(rewriter, theirs, sources, beams=beams, repeats=arguments.repeats)


def _compare(rewriter: Rewriter, theirs: PreTrainedModel, sources: list[str], *, beams: int, repeats: int) -> None:
    ours = []
    wanted = []
    for _ in range(repeats):  # in turn, so that both see the same machine
        ours.append(_written(lambda: _ours(rewriter, sources, beams)))
        wanted.append(_written(lambda: _theirs(theirs, rewriter, sources, beams)))
    same = sum(one == other for one, other in zip(ours[0].texts, wanted[0].texts, strict=True))
    num_tokens = sum(map(len, ours[0].texts))
    mine = statistics.median(run.seconds for run in ours)
    peer = statistics.median(run.seconds for run in wanted)
    name = "greedy" if beams == 1 else f"{beams} beams"
    print(
        f"{name}: firth {mine:.2f} s ({num_tokens / mine:,.0f} tokens/s, {max(run.megabytes for run in ours)} MB), "
        f"transformers {peer:.2f} s ({max(run.megabytes for run in wanted)} MB), "
        f"{peer / mine:.2f} times as fast; {same} of {len(sources)} texts are the same"
    )


@dataclass(frozen=True)
class Written:
    """The texts of one run, as tokens, and what they cost."""

    texts: list[list[int]]
    seconds: float
    megabytes: int


def _written(function: Callable[[], list[list[int]]]) -> Written:
    forget_peak()
    before = peak_memory()
    start = time.perf_counter()
    texts = function()
    seconds = time.perf_counter() - start
    return Written(texts, seconds, peak_memory() - before)


@torch.inference_mode()
def _ours(rewriter: Rewriter, sources: list[str], beams: int) -> list[list[int]]:
    options = WritingOptions(Choice(temperature=0, beams=beams), MAX_TOKENS)
    written = rewriter.head.write_items(rewriter.encoder, rewriter.tokenize(sources), options)
    return [text.tokens for text in written]


@torch.inference_mode()
def _theirs(model: PreTrainedModel, rewriter: Rewriter, sources: list[str], beams: int) -> list[list[int]]:
    """Padded batches of similar lengths, as a careful user of transformers makes them."""
    vocab = rewriter.tokenizer.vocab
    rows = [item.windows[0].ids for item in rewriter.tokenize(sources)]
    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    texts: list[list[int]] = [[]] * len(rows)
    for first in range(0, len(order), BATCH):
        chosen = order[first : first + BATCH]
        longest = max(len(rows[row]) for row in chosen)
        ids = np.full((len(chosen), longest), vocab.pad)
        for place, row in enumerate(chosen):
            ids[place, : len(rows[row])] = rows[row]
        found = model.generate(
            torch.from_numpy(ids),
            attention_mask=torch.from_numpy(ids != vocab.pad).long(),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            num_beams=beams,
            suppress_tokens=sorted(vocab.specials - {vocab.sep}),
            eos_token_id=vocab.sep,
            pad_token_id=vocab.pad,
            forced_eos_token_id=None,
        )
        for row, tokens in zip(chosen, found[:, 1:].tolist(), strict=True):
            end = tokens.index(vocab.sep) + 1 if vocab.sep in tokens else len(tokens)
            texts[row] = tokens[:end]
    return texts


def _sources(path: Path | None) -> list[str]:
    if path is not None:
        return path.read_text("utf-8").splitlines()[:NUM_TEXTS]
    words = prose("en").read_text("utf-8").split()
    lengths = np.random.default_rng(1).integers(6, 22, NUM_TEXTS)  # as Multi30k's
    starts = np.cumsum(lengths) - lengths
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def _random_model(sources: list[str], folder: Path) -> Path:
    """A small translator's shape: 4 + 4 layers of width 256 and 8,000 tokens; texts end after about 14 tokens."""
    tokenizer = BPE.train([*sources, prose("en").read_text("utf-8")], BPE.Config(vocab_size=8000), fewer=True)
    torch.manual_seed(1)
    sizes = {"width": 256, "num_layers": 4, "num_heads": 4, "ffn_width": 1024, "max_positions": 256}
    vocab = tokenizer.vocab
    encoder = Bart(Bart.Config(vocab_size=8000, start_token=vocab.cls, output_bias=True, **sizes)).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)  # so that texts differ
        encoder.tokens.weight[len(vocab) :] = 0  # rows without a token are never the best
    checkpoint = Checkpoint(encoder, {}, tokenizer)
    rewriter = Rewriter(checkpoint)
    assert encoder.output_bias_V is not None
    # By bisection: the higher the score of the end, the shorter the texts.
    low = 0.0
    high = 200.0
    for _ in range(12):
        encoder.output_bias_V.data[vocab.sep] = (low + high) / 2
        mean_length = np.mean([len(tokens) for tokens in _ours(rewriter, sources[:25], 1)])
        if mean_length > MEAN_TOKENS:
            low = (low + high) / 2
        else:
            high = (low + high) / 2
    checkpoints.save(folder, checkpoint)
    return folder


if __name__ == "__main__":
    main()
