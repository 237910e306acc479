"""The compiled loops of word2vec, fastText and GloVe against brute force."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba as nb
import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.nn import functional as F

from firth import rng
from firth.compiling import cached_on_disk
from firth.data import counts
from firth.data.counts import count_pairs, shuffled
from firth.encoders.tables import StaticConfig
from firth.interrupts import Interrupts
from firth.nn.huffman import Paths, huffman
from firth.objectives.glove_kernels import glove_kernel
from firth.objectives.hogwild import Text, in_threads
from firth.objectives.sampling import Sampler, as_bits, keep_rates
from firth.objectives.skip_gram import SkipGram
from firth.objectives.subword_kernels import bag_kernels, ngram_parts
from firth.objectives.word_kernels import SIGMOID, draws, exchange, kernels, spread, step, subsample
from firth.tokenizers.subwords import ngram_hashes
from firth.tokenizers.word_list import Words

WIDTH, SIZE, RATE = 10, 30, 0.1
GOLDEN, ALL = 0x9E3779B97F4A7C15, (1 << 64) - 1
COUNTS = np.arange(SIZE, 0, -1) ** 2


def test_negatives_follow_the_counts_to_their_power() -> None:
    weights = COUNTS**0.75
    sampler = Sampler.of_counts(np.append(COUNTS, 0), 0.75)
    found = np.bincount(draws(rng.key("draws"), sampler.limit_V, sampler.alias_V, 400_000), minlength=SIZE + 1)
    assert found[SIZE] == 0
    assert chisquare(found[:SIZE], weights / weights.sum() * found.sum()).pvalue > 1e-3


def test_frequent_words_keep_their_share() -> None:
    rates = keep_rates(COUNTS, 1e-2)
    share = COUNTS / COUNTS.sum()
    assert rates == pytest.approx(np.minimum(1, (np.sqrt(share / 1e-2) + 1) * 1e-2 / share))
    assert rates[-1] == 1 > rates[0]
    kept = np.empty(10_000, np.int32)
    ids = np.full(10_000, 0)
    words = np.arange(SIZE, dtype=np.int32)
    totals = [subsample(ids, 0, 10_000, words, as_bits(rates), rng.key("keep", i), kept)[0] for i in range(20)]
    assert np.mean(totals) / 10_000 == pytest.approx(rates[0], abs=0.005)
    assert subsample(ids, 0, 100, np.full(SIZE, -1, np.int32), as_bits(rates), rng.key(1), kept)[0] == 0
    assert (keep_rates(COUNTS, 0) == 1).all()


def table(name: str, rows: int = SIZE, width: int = WIDTH) -> np.ndarray:
    return np.asarray(rng.uniform(rng.key(name), np.arange(rows)[:, None], np.arange(width)) - 0.5, np.float32)


def test_a_step_is_the_gradient() -> None:
    x, out, change = table("x")[0], table("out"), np.zeros(WIDTH, np.float32)
    targets, labels = np.array([3, 7, 1], np.int32), np.array([1, 0, 0], np.float32)
    tensors = [torch.tensor(array, requires_grad=True) for array in (x, out)]
    scores = tensors[1][torch.from_numpy(targets).long()] @ tensors[0]
    F.binary_cross_entropy_with_logits(scores, torch.from_numpy(labels), reduction="sum").backward()
    step(WIDTH, x, change, out, targets, labels, np.empty(3, np.float32), 3, np.float32(RATE), SIGMOID)
    assert np.allclose(change, -RATE * tensors[0].grad.numpy(), atol=1e-6)  # type: ignore[union-attr]
    assert np.allclose(out, (tensors[1] - RATE * tensors[1].grad).detach().numpy(), atol=1e-6)  # type: ignore[operator]


class Brute:
    """The same training in plain Python: draws one after another from a chunk's key, steps by autograd's formula."""

    def __init__(self, key: int, negatives: int) -> None:
        self.state, self.negatives = key, negatives
        self.sampler, self.tree = Sampler.of_counts(COUNTS, 0.75), huffman(COUNTS)
        self.x, self.u = table("in").astype(float), table("other").astype(float)

    def bits(self) -> int:
        self.state = (self.state + GOLDEN) & ALL
        x = self.state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & ALL
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & ALL
        return x ^ (x >> 31)

    def keep(self, ids: np.ndarray, limits: np.ndarray) -> list[int]:
        return [int(word) for word in ids if self.bits() >> 32 <= limits[word]]

    def aims(self, word: int) -> list[tuple[int, float]]:
        if not self.negatives:
            a, b = self.tree.bounds_V1[word : word + 2]
            return [(int(n), 1.0 - t) for n, t in zip(self.tree.nodes_P[a:b], self.tree.turns_P[a:b], strict=True)]
        found = [(word, 1.0)]
        for _ in range(self.negatives):
            bits = self.bits()
            other = ((bits >> 32) * SIZE) >> 32
            if bits & 0xFFFFFFFF > self.sampler.limit_V[other]:
                other = int(self.sampler.alias_V[other])
            found += [(other, 0.0)] * (other != word)
        return found

    def step(self, x: np.ndarray, aims: list[tuple[int, float]]) -> np.ndarray:
        change = np.zeros(WIDTH)
        slopes = [RATE * (label - 1 / (1 + np.exp(-x @ self.u[row]))) for row, label in aims]
        for (row, _), slope in zip(aims, slopes, strict=True):
            change += slope * self.u[row]
            self.u[row] = self.u[row] + slope * x
        return change

    def windows(self, kept: list[int], window: int) -> Any:
        for i, word in enumerate(kept):
            reach = window - self.bits() % window
            around = kept[max(0, i - reach) : i] + kept[i + 1 : i + reach + 1]
            yield word, around


def setting(negatives: int) -> tuple[Any, ...]:
    ids = rng.below(rng.key("ids"), SIZE, np.arange(80)).astype(np.uint16)
    limits, tree = as_bits(keep_rates(COUNTS, 2e-2)), huffman(COUNTS) if not negatives else Paths.none()
    sampler, key = Sampler.of_counts(COUNTS, 0.75), rng.key("chunk")
    chunks = np.array([0]), np.array([80]), np.array([key])
    text = np.arange(SIZE, dtype=np.int32), limits
    arrays = (tree.bounds_V1, tree.nodes_P, tree.turns_P), (sampler.limit_V, sampler.alias_V)
    return ids, chunks, text, *arrays, limits, int(key)


@pytest.mark.parametrize("negatives", [5, 0])
@pytest.mark.parametrize("kind", ["skip_gram", "cbow"])
def test_word2vec_is_the_same_as_by_hand(kind: str, negatives: int) -> None:
    ids, chunks, text, tree, sampler, limits, key = setting(negatives)
    x, u, done = table("in"), table("other"), np.zeros(1, np.int64)
    plan = np.array([RATE, RATE, 1.0])
    same = (ids, chunks, text, tree, sampler, (0, 0, 0, 0), 40, 3, negatives)
    getattr(kernels(WIDTH), kind)(*same, x, u, plan, done, 0, SIGMOID)
    brute = Brute(key, negatives)
    kept = brute.keep(ids, limits)
    assert 20 < len(kept) < 80
    for word, around in brute.windows(kept, 3):
        if kind == "skip_gram":
            aims = brute.aims(word)
            for other in around:
                brute.x[other] = brute.x[other] + brute.step(brute.x[other], aims)
        elif around:
            change = brute.step(brute.x[around].mean(0), brute.aims(word))
            for other in around:
                brute.x[other] = brute.x[other] + change
    assert done[0] == 80
    assert np.abs(x - table("in")).max() > 0.05
    assert np.allclose(x, brute.x, atol=2e-4)
    assert np.allclose(u, brute.u, atol=2e-4)


@pytest.mark.parametrize("negatives", [5, 0])
@pytest.mark.parametrize("kind", ["skip_gram", "cbow"])
def test_rows_of_which_threads_have_copies_learn_the_same(kind: str, negatives: int) -> None:
    """With nobody to exchange with, a copy ends as the row itself would; two in turn are one that goes twice."""
    ids, chunks, text, tree, sampler, *_ = setting(negatives)
    found, many = [], 12
    for size, threads in ((0, 1), (many, 1), (many, 2)):
        done, plan = np.zeros(threads, np.int64), np.array([RATE, RATE, 1.0])
        copies = np.zeros((2 * size * threads, WIDTH), np.float32)
        x, u = (np.concatenate([table(name), copies]) for name in ("in", "other"))
        first = 0 if negatives else SIZE - 1 - size
        same = (ids, chunks, text, tree, sampler, (0, first, size, 4), 40, 3, negatives)
        for me in range(threads):
            getattr(kernels(WIDTH), kind)(*same, x, u, plan, done, me, SIGMOID)
        found.append((x, u))
        for rows, start in ((x, 0), (u, first)):
            mine, before = rows[SIZE:].reshape(threads, 2, size, WIDTH)[-1]
            assert np.array_equal(mine, before)
            assert np.array_equal(mine, rows[start : start + size])
    again = table("in"), table("other")
    for _ in range(2):
        alone = (ids, chunks, text, tree, sampler, (0, 0, 0, 0), 40, 3, negatives, *again)
        getattr(kernels(WIDTH), kind)(*alone, np.array([RATE, RATE, 1.0]), np.zeros(1, np.int64), 0, SIGMOID)
    for plain, alone, both, twice, begun in zip(*found, again, (table("in"), table("other")), strict=True):
        assert np.allclose(plain, alone[:SIZE], atol=1e-5)
        assert np.abs(plain[:many] - begun[:many]).max() > 0.01
        assert np.allclose(both[:SIZE], twice, atol=1e-4)


def test_an_exchange_adds_the_changes_of_all() -> None:
    shared = np.array([1, 2, 3], np.float32)
    copies = [(shared.copy(), shared.copy()) for _ in range(2)]
    for (mine, before), change in zip(copies, ([1, 0, 5], [10, -1, 0]), strict=True):
        mine += np.array(change, np.float32)
        exchange(3, shared, mine, before)
        assert np.array_equal(mine, shared)
        assert np.array_equal(before, shared)
    assert shared.tolist() == [12, 1, 8]
    mine, before = copies[0]
    exchange(3, shared, mine, before)  # takes what the other changed meanwhile
    assert mine.tolist() == before.tolist() == [12, 1, 8]


@pytest.mark.parametrize(
    ("threads", "rate", "words", "copied", "patience"),
    [
        (1, 0.05, 1000, 0, 8),
        (2, 0.05, 1000, 512, 8),
        (2, 0.1, 1000, 512, 4),
        (2, 0.2, 1000, 0, 2),
        (8, 0.05, 1000, 0, 2),
        (3, 0.05, 40, 39, 5),
        (2, 0.05, 1, 0, 8),
        (2, 0.0, 9, 8, 8),
    ],
)
@pytest.mark.parametrize("negatives", [5, 0])
def test_copies_are_kept_where_that_is_safe(
    threads: int, rate: float, words: int, copied: int, patience: int, negatives: int
) -> None:
    tokenizer = Words.of([f"w{i}" for i in range(words)], Words.Config())
    config = SkipGram.Config(rate=rate, end_rate=0, num_negatives=negatives)
    solver = SkipGram(config, StaticConfig(vocab_size=words + 5, width=WIDTH), tokenizer=tokenizer, seed=1)
    counts, none = np.append(np.zeros(5, np.int64), np.arange(words, 0, -1)), np.zeros(0, np.int64)
    loop = solver.loop(WIDTH, Text(none, none, none, none, counts), threads)
    shared = loop.arrays[2]
    spare = loop.spare_rows
    assert shared == (5, 5 if negatives else words - 1 - copied, copied, patience)
    assert spare == 2 * copied * threads


def test_subwords_are_the_same_as_by_hand() -> None:
    ids, chunks, text, _, sampler, limits, key = setting(4)
    x, u, done = table("in"), table("other"), np.zeros(1, np.int64)
    bags = [np.array([w, (w + 1) % SIZE, (w * 7) % SIZE], np.int32) for w in range(SIZE)]
    parts, bounds = np.concatenate(bags), np.arange(SIZE + 1) * 3
    plan = np.array([RATE, RATE, 1.0])
    bag_kernels(WIDTH).skip_gram(ids, chunks, text, (parts, bounds), sampler, 3, 4, x, u, plan, done, 0, SIGMOID)
    brute = Brute(key, 4)
    for word, around in brute.windows(brute.keep(ids, limits), 3):
        mean = brute.x[bags[word]].mean(0)
        change = sum((brute.step(mean, brute.aims(other)) for other in around), np.zeros(WIDTH))
        for part in bags[word]:
            brute.x[part] = brute.x[part] + change
    assert np.allclose(x, brute.x, atol=2e-4)
    assert np.allclose(u, brute.u, atol=2e-4)


@pytest.mark.parametrize("tree", [False, True])
def test_the_classifier_steps_along_the_gradient(tree: bool) -> None:
    x, out, done = table("in"), table("labels", 5), np.zeros(1, np.int64)
    paths = huffman(np.array([5, 4, 3, 2, 1])) if tree else Paths.none()
    bags, golds = (np.array([2, 3, 9], np.int32), np.array([0, 3])), np.array([1])
    arrays = (paths.bounds_V1, paths.nodes_P, paths.turns_P)
    rows, head = (torch.tensor(array, requires_grad=True) for array in (x, out))
    scores = head @ rows[[2, 3, 9]].mean(0)
    if tree:
        a, b = paths.bounds_V1[1:3]
        right = torch.tensor(paths.turns_P[a:b], dtype=torch.float32)
        loss = F.binary_cross_entropy_with_logits(scores[paths.nodes_P[a:b].tolist()], right, reduction="sum")
    else:
        loss = F.cross_entropy(scores[None], torch.tensor([1]))
    loss.backward()
    plan = np.array([RATE, RATE, 1.0])
    bag_kernels(WIDTH).classify(np.array([0]), bags, golds, arrays, x, out, plan, done, 0, SIGMOID)
    assert np.allclose(x, (rows - RATE * rows.grad).detach().numpy(), atol=1e-5)  # type: ignore[operator]
    assert np.allclose(out, (head - RATE * head.grad).detach().numpy(), atol=1e-5)  # type: ignore[operator]


def test_parts_of_many_words_are_those_of_each() -> None:
    words = ["the", "青蛙", "naïve", "👩‍🚀", "x"]
    data = [f"<{word}>".encode() for word in words]
    own = np.array([5, 6, -1, 8, 9], np.int32)
    joined, ends = np.frombuffer(b"".join(data), np.uint8), np.cumsum([0, *map(len, data)])
    parts, bounds = ngram_parts(joined, ends, 3, 6, 1000, 10, own)
    for i, word in enumerate(words):
        expected = [own[i]] * int(own[i] >= 0) + [10 + h % 1000 for h in ngram_hashes(word, 3, 6)]
        assert parts[bounds[i] : bounds[i + 1]].tolist() == expected


def test_first_rows_are_drawn_by_chance() -> None:
    rows, key = np.empty((7, 5), np.float32), rng.key("rows")
    spread(rows, 0.25, key)
    assert np.allclose(rows, (rng.uniform(key, np.arange(7)[:, None], np.arange(5)) - 0.5) / 2)


@pytest.mark.parametrize(
    ("slots", "piece", "words"), [(1 << 16, 1 << 20, 999), (256, 1 << 20, 999), (256, 64, 999), (1 << 16, 64, 100)]
)
def test_counting_is_exact_whether_it_spills_or_not(
    slots: int, piece: int, words: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "_MERGE", piece)
    monkeypatch.setattr(counts, "_WORDS", words)
    rows = [rng.below(rng.key("row", i), SIZE, np.arange(60)) for i in range(8)]
    expected = np.zeros((SIZE, SIZE))
    for row in rows:
        for i, word in enumerate(row):
            for distance in range(1, min(4, len(row) - 1 - i) + 1):
                expected[word, row[i + distance]] += 1 / distance
                expected[row[i + distance], word] += 1 / distance
    blocks = counts._blocks(iter(rows), SIZE, window=4, slots=slots)
    assert (sum(len(list(block)) > 0 for block in blocks) > 1) == (slots == 256 or words == 100)
    found = count_pairs(iter(rows), SIZE, window=4, folder=tmp_path, slots=slots)
    dense = np.zeros(SIZE * SIZE)
    dense[found.keys_E] = found.weights_E
    assert np.allclose(dense.reshape(SIZE, SIZE), expected, atol=1e-4)
    assert (np.diff(found.keys_E) > 0).all()
    assert set(tmp_path.iterdir()) == set(found.files)


@pytest.mark.parametrize("bucket", [1000, 7])
def test_entries_are_shuffled_by_chance_in_buckets_of_any_size(bucket: int, tmp_path: Path) -> None:
    rows = [rng.below(rng.key("row", i), SIZE, np.arange(60)) for i in range(8)]
    ordered, key = count_pairs(iter(rows), SIZE, window=4, folder=tmp_path), rng.key("pairs")
    mixed, order = shuffled(ordered, key, folder=tmp_path, bucket=bucket), rng.permutation(key, len(ordered))
    assert (mixed.keys_E == ordered.keys_E[order]).all()
    assert (mixed.weights_E == ordered.weights_E[order]).all()
    ordered.remove()
    assert set(tmp_path.iterdir()) == set(mixed.files)


def test_glove_steps_as_adagrad_by_hand() -> None:
    tables = [table(name, width=WIDTH + 1) for name in ("rows", "others")]
    sums = [np.ones_like(one) for one in tables]
    keys, weights = np.array([1 * SIZE + 2, 4 * SIZE + 2], np.int64), np.array([3.0, 250.0], np.float32)
    done, loss = np.zeros(1, np.int64), np.zeros(1)
    w, v = (torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in tables)
    squares, expected = [torch.ones(SIZE, WIDTH + 1, dtype=torch.float64) for _ in range(2)], 0.0
    for entry, (i, j) in enumerate([(1, 2), (4, 2)]):
        miss = w[i, :-1] @ v[j, :-1] + w[i, -1] + v[j, -1] - float(np.log(weights[entry]))
        value = 0.5 * min(1.0, float(weights[entry]) / 100) ** 0.75 * miss**2
        expected += value.item()
        slopes = torch.autograd.grad(value, [w, v])
        with torch.no_grad():
            for one, slope, square in zip((w, v), slopes, squares, strict=True):
                one -= 0.05 * slope / square.sqrt()
                square += slope**2
    most, power, rate = np.float32(100), np.float32(0.75), np.float32(0.05)
    glove_kernel(WIDTH)(0, 2, keys, weights, most, power, SIZE, (*tables, *sums), rate, done, loss, 0)
    assert done[0] == 2
    assert loss[0] == pytest.approx(expected, rel=1e-4)
    assert np.allclose(tables[0], w.detach().numpy(), atol=1e-5)
    assert np.allclose(tables[1], v.detach().numpy(), atol=1e-5)


def test_a_loop_is_compiled_where_it_can_be_kept_and_where_it_cannot() -> None:
    place = dict[str, Any]()
    exec("def more(x): return x + 1", place)  # of no file, so that numba has nowhere to keep it
    assert cached_on_disk(nb.njit(place["more"]))(1) == 2
    for loop in (kernels(WIDTH).skip_gram, bag_kernels(WIDTH).classify, glove_kernel(WIDTH), spread):
        assert Path(loop.stats.cache_path).is_dir()


def test_a_second_process_finds_what_the_first_compiled() -> None:
    code = (
        "import numpy as np\nfrom firth.objectives.glove_kernels import glove_kernel as made\n"
        "tables = tuple(np.ones((4, 3, 8), np.float32))\nkernel = made(7)\n"
        "one = np.float32(1)\nkeys, done = np.zeros(0, np.int64), np.zeros(1, np.int64)\n"
        "kernel(0, 0, keys, np.zeros(0, np.float32), one, one, 3, tables, one, done, np.zeros(1), 0)\n"
        "print(sum(kernel.stats.cache_hits.values()))"
    )
    call = [sys.executable, "-c", code]
    _, second = (subprocess.run(call, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert int(second) == 1


def test_large_scores_of_the_classifier_stay_finite() -> None:
    x, out, done = table("in"), table("labels", 3), np.zeros(1, np.int64)
    out[:] = [[1e4], [-1e4], [2e4]]
    x[:] = -1
    bags, nothing = (np.array([2], np.int32), np.array([0, 1])), Paths.none()
    tree = nothing.bounds_V1, nothing.nodes_P, nothing.turns_P
    plan = np.array([RATE, RATE, 1.0])
    bag_kernels(WIDTH).classify(np.array([0]), bags, np.array([0]), tree, x, out, plan, done, 0, SIGMOID)
    assert np.allclose(out[:, 0], [1e4 - RATE, -1e4 + RATE, 2e4])


def test_ctrl_c_is_not_lost_where_llvm_calls_back() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly("define i32 @f() { ret i32 1 }"), machine)
    engine.set_object_cache(lambda module, code: signal.raise_signal(signal.SIGINT))

    def compile_and_go_on() -> None:
        with Interrupts():
            engine.finalize_object()
            for _ in range(100):
                time.sleep(0.1)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            compile_and_go_on()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_goes_wrong_in_a_thread_is_not_lost() -> None:
    seen = list[int]()
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda number: seen.append(1 // number), [(1,), (0,)])
    assert seen == [1]
