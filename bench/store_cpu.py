"""Batches from prepared text in an object store against those from local files, in one run on one core.

    python -m bench.store_cpu

The store is a folder read over fsspec (`file://`) with a cache of a quarter of the tokens, once as it is and once with
20 ms added to every request, as a store over a network has. Sequences are shuffled in stretches of half the cache. The
last row has neither: it draws from all of the text and fetches nothing ahead.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from bench.table import Row, show
from firth import lineage, models, remote, rng, tokenizers
from firth.config import override
from firth.data import loader, remote_shards
from firth.data.loader import BatchAddress, Packs
from firth.data.shards import Shards, write_shards
from firth.lineage import Recipe
from firth.pretraining.training import build

TOKENS = 16_384
PACKS = 400
DOCUMENTS = 10_000
LATENCY = 0.02
ROUNDS = 3


def main() -> None:
    show(rows())


def rows() -> list[Row]:
    """What `make bench` shows."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / "data")
        os.environ[remote_shards.FOLDER] = str(folder / "cache")
        local = Shards.open(folder / "data")
        cache_bytes = local.ids.nbytes // 4
        os.environ[remote_shards.LIMIT] = str(cache_bytes / 1e9)
        url = f"file://{folder / 'data'}"
        stretch = cache_bytes // 4
        cases: dict[str, tuple[int, float, int]] = {
            "in stretches": (stretch, 0.0, loader.PREFETCH),
            "in stretches, 20 ms a request": (stretch, LATENCY, loader.PREFETCH),
            "from all text, 20 ms, no prefetch": (0, LATENCY, 0),
        }
        found = []
        for label, (shuffle, latency, prefetch) in cases.items():
            recipe = _recipe(shuffle)
            # Without prefetch a few packs take long enough.
            count = PACKS if prefetch else 20
            local_speeds = []
            store_speeds = []
            for _ in range(ROUNDS):
                local_speeds.append(_speed(recipe, local, PACKS))
                with _slower(latency), _prefetching(prefetch):
                    store_speeds.append(_speed(recipe, Shards.open(url), count))
            note = f"cache {cache_bytes / 1e6:.1f} of {local.ids.nbytes / 1e6:.1f} MB"
            found.append(Row(f"store: {label}", "tokens/s", store_speeds, "local files", local_speeds, "", note))
        return found


def _write(folder: Path) -> None:
    """Prepared text of random ids: documents of 60 sentences of 5 to 35 tokens."""
    tokenizer = tokenizers.load(models.find("en-small"))
    key = rng.key("store")
    with write_shards(folder, tokenizer) as writer:
        writer.info = {"health": {"entropy_nats": 7.0}}
        for part in range(DOCUMENTS // 1000):
            lengths = 5 + rng.below(key, 31, np.arange(1000 * 60), 2 * part)
            ids = 5 + rng.below(key, len(tokenizer.vocab) - 5, np.arange(lengths.sum()), 2 * part + 1)
            ends = np.arange(60, len(lengths) + 1, 60)
            writer.append(ids, ~tokenizer.continues[ids], lengths=lengths, ends=ends)


def _recipe(shuffle_tokens: int) -> Recipe:
    recipe = lineage.make("roberta", "tiny")
    return override(recipe, [f"batches.tokens={TOKENS}", f"batches.shuffle_tokens={shuffle_tokens}"])


def _speed(recipe: Recipe, shards: Shards, count: int) -> float:
    packs: Packs = build(recipe, shards, device="cpu").text.training
    count = min(count, packs.num_packs(0))
    began = time.perf_counter()
    tokens = sum(packs[BatchAddress(0, index)].num_tokens for index in range(count))
    return tokens / (time.perf_counter() - began)


@contextmanager
def _slower(seconds: float) -> Iterator[None]:
    """Inside, every request to a store takes so much longer."""
    before: Callable[[str | Path, int, int], bytes] = remote.read_range

    def read_range(path: str | Path, start: int, end: int) -> bytes:
        time.sleep(seconds)
        return before(path, start, end)

    remote.read_range = read_range
    try:
        yield
    finally:
        remote.read_range = before


@contextmanager
def _prefetching(packs: int) -> Iterator[None]:
    """Inside, so many packs are fetched ahead; 0 for none."""
    before = loader.PREFETCH
    loader.PREFETCH = packs if packs else -1
    try:
        yield
    finally:
        loader.PREFETCH = before


if __name__ == "__main__":
    main()
