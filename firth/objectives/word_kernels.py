"""The inner loops of word2vec and fastText, compiled with numba: no Python and no allocation per word.

In: chunks of a token stream, the input and output tables, and what is predicted (a Huffman tree or a sampler of
negatives). Out: the tables, trained in place. `kernels(width)` holds the loops for one width, so that every loop over a
vector has a fixed length. numba compiles each loop once and caches it on disk.

Every loop drops words that are not in the vocabulary, subsamples frequent words, draws a window and takes one step
after each word. Threads share the tables without locks (Hogwild, Recht et al. 2011). A window draws its negatives once
and its words share them (Ji et al. 2016). Random numbers are splitmix64, keyed by chunk, as in `firth.rng`.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numba as nb
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from firth.compiling import cached_on_disk

_REACH = 8.0
"""The table of the logistic function goes from minus this to plus this."""
_BINS = 2048
_edges = np.linspace(-_REACH, _REACH, _BINS + 1)
SIGMOID = (1 / (1 + np.exp(-_edges))).astype(np.float32)
"""The logistic function at the edges of its bins; interpolated linearly between them (error at most 2e-6)."""
SOURCE = crc32(Path(__file__).read_bytes())
"""This file's version. numba finds a cached loop by the loop's own file and the values it closes over. Loops in other
files that use functions of this file therefore close over this number, so that a change here invalidates them."""
SHARED = 512
"""Rows of which every thread has a local copy. A row that several threads write at once moves back and forth between
the caches of their cores, so each thread works on its own copy of the rows that all of them need."""
VISITS = 8
"""A thread synchronises its copy of a row with the shared row after this many visits, at the latest."""
UNSEEN = 0.8
"""Upper limit of rate x threads x visits between two synchronisations. All threads' changes are added although no
thread has seen the others': skip-gram with rate 0.2 and 16 unseen visits learned little. Where this limit leaves only
one or two visits, all threads write to the shared rows."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""The increment of splitmix64."""
_LOW = np.uint64(0xFFFFFFFF)


@nb.njit(inline="always")
def mix(x):
    """The output function of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@nb.njit(inline="always")
def draw(state, limit_V, alias_V):
    """One word from the alias sampler: the high 32 bits choose a column, the low 32 bits accept it or its alias."""
    bits = mix(state)
    word = np.int32(((bits >> np.uint64(32)) * np.uint64(len(limit_V))) >> np.uint64(32))
    return word if np.uint32(bits & _LOW) <= limit_V[word] else alias_V[word]


@nb.njit(nogil=True)
def draws(key, limit_V, alias_V, count):
    """Many draws in a row, as the training loops make them."""
    words = np.empty(count, np.int32)
    for i in range(count):
        words[i] = draw(key + np.uint64(i + 1) * _GOLDEN, limit_V, alias_V)
    return words


@cached_on_disk
@nb.njit(nogil=True)
def spread(rows, reach, key):
    """Fills rows with uniform numbers from -reach to reach, as `rng.uniform(key, row, column)` draws them."""
    for i in range(rows.shape[0]):
        state = mix(key + np.uint64(i + 1) * _GOLDEN)
        for d in range(rows.shape[1]):
            bits = mix(state + np.uint64(d + 1) * _GOLDEN)
            # The high 53 bits make a uniform number in [0, 1).
            rows[i, d] = ((bits >> np.uint64(11)) * (1.0 / (1 << 53)) - 0.5) * (2 * reach)


@nb.njit(nogil=True)
def longest_chunk(starts, ends):
    """The number of words in the longest chunk."""
    size = 0
    for c in range(len(starts)):
        size = max(size, ends[c] - starts[c])
    return size


@nb.njit(nogil=True)
def subsample(ids, start, end, words_V, keep_V, state, kept):
    """Writes the words of a chunk that stay to `kept`; returns how many they are and the new random state.

    A word stays if it is in the vocabulary and its draw is within its keep rate.
    """
    count = 0
    for i in range(start, end):
        word = words_V[ids[i]]
        if word >= 0:
            state += _GOLDEN
            if np.uint32(mix(state) >> np.uint64(32)) <= keep_V[word]:
                kept[count] = word
                count += 1
    return count, state


@nb.njit(inline="always", fastmath=True)
def logistic(score, sigmoid):
    """The logistic function by linear interpolation in the table; scores beyond the table are clipped."""
    clipped = min(max(score, np.float32(-_REACH + 0.001)), np.float32(_REACH - 0.001))
    place = (clipped + np.float32(_REACH)) * np.float32(_BINS / (2 * _REACH))
    low = int(place)
    return sigmoid[low] + (place - np.float32(low)) * (sigmoid[low + 1] - sigmoid[low])


@nb.njit(nogil=True)
def current_rate(schedule, done):
    """The learning rate: linear from schedule[0] to schedule[1] over schedule[2] words; `done` counts per thread."""
    share = min(1.0, done.sum() / schedule[2])
    return np.float32(schedule[0] + (schedule[1] - schedule[0]) * share)


def _prefetch(_context, table, row):
    """Prefetches a row of a table: rows far apart in memory are what the loops would wait for."""

    def generate(context, builder, signature, arguments):
        array = make_array(signature.args[0])(context, builder, arguments[0])
        byte = ir.IntType(8)
        int32 = ir.IntType(32)
        int64 = ir.IntType(64)
        row_bytes = builder.extract_value(array.strides, 0)
        table_start = builder.bitcast(array.data, byte.as_pointer())
        offset = builder.mul(builder.sext(arguments[1], int64), row_bytes)
        start = builder.gep(table_start, [offset])
        kind = ir.FunctionType(ir.VoidType(), [start.type, int32, int32, int32])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [start.type], kind)
        # One request for each cache line of 64 bytes: for writing (1), all cache levels (3), data cache (1).
        with cgutils.for_range_slice(builder, int64(0), row_bytes, int64(64), inc=True) as (at, _):
            builder.call(prefetch, [builder.gep(start, [at]), int32(1), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(table, types.int32), generate


prefetch_row: Any = intrinsic(_prefetch)


@nb.njit(nogil=True)
def choose_targets(
    word, hierarchical, bounds_V1, nodes_P, turns_P, limit_V, alias_V, num_negatives, state, targets, labels
):
    """Writes the output rows that predict a word and their labels; returns how many and the new random state.

    With hierarchical softmax these are the inner nodes on the word's path; otherwise its own row and drawn negatives.
    """
    if hierarchical:
        count = 0
        for p in range(bounds_V1[word], bounds_V1[word + 1]):
            targets[count] = nodes_P[p]
            labels[count] = np.float32(1 - turns_P[p])
            count += 1
        return count, state
    targets[0] = word
    labels[0] = np.float32(1)
    count = 1
    for _ in range(num_negatives):
        state += _GOLDEN
        other = draw(state, limit_V, alias_V)
        # A negative that equals the word is dropped, not drawn again, as in the released program.
        if other != word:
            targets[count] = other
            labels[count] = np.float32(0)
            count += 1
    return count, state


@nb.njit(inline="always", fastmath=True)
def exchange(width, shared, mine, before):
    """Adds a thread's changes of its copy to the shared row and takes over the others' changes.

    `before` is the row as it was at the thread's last exchange.
    """
    for d in range(width):
        shared[d] += mine[d] - before[d]
        mine[d] = before[d] = shared[d]


@nb.njit(inline="always")
def local_row(row, first, own, size):
    """The row that a thread works on: its copy if the row is one of the `size` rows from `first` on, else the row."""
    place = row - first
    return np.int32(own + place) if 0 <= place < size else np.int32(row)


@nb.njit(inline="always")
def visit(width, table, row, first, own, visits, patience):
    """Counts a thread's visit to a row, exchanges its copy when the visits are used up; returns the row to work on.

    A thread's copies begin at row `own` of the table. After them come the same rows as of the last exchange.
    """
    place = row - first
    if 0 <= place < len(visits):
        if visits[place] == 0:
            exchange(width, table[row], table[own + place], table[own + len(visits) + place])
            visits[place] = patience
        visits[place] -= 1
    return local_row(row, first, own, len(visits))


@nb.njit(inline="always")
def exchange_all(width, table, first, own, size):
    """Exchanges all copies of a thread: fills them at the start, and adds the last changes at the end."""
    for place in range(size):
        exchange(width, table[first + place], table[own + place], table[own + size + place])


@nb.njit(nogil=True)
def prefetch_rows(x_in, x_out, rows, count, place, targets, num_targets):
    """Prefetches the targets' rows and the row of the word that enters the window next."""
    for t in range(num_targets):
        prefetch_row(x_out, targets[t])
    if place < count:
        prefetch_row(x_in, rows[place])


@nb.njit(inline="always", fastmath=True)
def step(width, x, change, out, targets, labels, gradients, num_targets, rate, sigmoid):
    """One logistic step of every target's row against x; the change of x is added to `change`."""
    # All scores come before all updates, so that no score waits for the update before it.
    for t in range(num_targets):
        row = out[targets[t]]
        score = np.float32(0)
        for d in range(width):
            score += x[d] * row[d]
        gradients[t] = rate * (labels[t] - logistic(score, sigmoid))
    for t in range(num_targets):
        row = out[targets[t]]
        gradient = gradients[t]
        for d in range(width):
            change[d] += gradient * row[d]
            row[d] += gradient * x[d]


@cache
def skip_gram_kernel(width: int) -> Any:
    """The loop of skip-gram for one width."""

    @cached_on_disk
    @nb.njit(fastmath=True, nogil=True)
    def skip_gram(
        ids, chunks, text, tree, sampler, shared, max_targets, window, num_negatives, x_in, x_out, schedule, done,
        thread, sigmoid,
    ):  # fmt: skip
        starts, ends, keys = chunks
        words_V, keep_V = text
        bounds_V1, nodes_P, turns_P = tree
        limit_V, alias_V = sampler
        first_in, first_out, size, patience = shared
        visits_in = np.zeros(size, np.int32)
        visits_out = np.zeros(size, np.int32)
        own_in = len(x_in) - 2 * size * (len(done) - thread)
        own_out = len(x_out) - 2 * size * (len(done) - thread)
        exchange_all(width, x_in, first_in, own_in, size)
        kept = np.empty(longest_chunk(starts, ends), np.int32)
        rows = np.empty(longest_chunk(starts, ends), np.int32)
        targets = np.empty(max_targets, np.int32)
        labels = np.empty(max_targets, np.float32)
        change = np.empty(width, np.float32)
        gradients = np.empty(max_targets, np.float32)
        for c in range(len(starts)):
            rate = current_rate(schedule, done)
            count, state = subsample(ids, starts[c], ends[c], words_V, keep_V, keys[c], kept)
            for i in range(count):
                rows[i] = local_row(kept[i], first_in, own_in, size)
            for i in range(count):
                state += _GOLDEN
                reach = window - int(mix(state) % np.uint64(window))
                low = max(0, i - reach)
                high = min(count, i + reach + 1)
                num_targets, state = choose_targets(
                    kept[i], num_negatives == 0, bounds_V1, nodes_P, turns_P, limit_V, alias_V, num_negatives, state,
                    targets, labels,
                )  # fmt: skip
                if size > 0:
                    visit(width, x_in, kept[i], first_in, own_in, visits_in, patience)
                    for t in range(num_targets):
                        targets[t] = visit(width, x_out, targets[t], first_out, own_out, visits_out, patience)
                prefetch_rows(x_in, x_out, rows, count, i + 1 + window, targets, num_targets)
                for j in range(low, high):
                    if j != i:
                        x = x_in[rows[j]]
                        change[:] = 0
                        step(width, x, change, x_out, targets, labels, gradients, num_targets, rate, sigmoid)
                        for d in range(width):
                            x[d] += change[d]
            done[thread] += ends[c] - starts[c]
        exchange_all(width, x_in, first_in, own_in, size)
        exchange_all(width, x_out, first_out, own_out, size)

    return skip_gram


@nb.njit(inline="always", fastmath=True)
def mean_of_window(width, x_in, rows, low, high, center, mean):
    """Writes the mean of the rows from low to high, without the center, to `mean`."""
    mean[:] = 0
    for j in range(low, high):
        if j != center:
            row = x_in[rows[j]]
            for d in range(width):
                mean[d] += row[d]
    share = np.float32(1.0 / (high - low - 1))
    for d in range(width):
        mean[d] *= share


@nb.njit(inline="always", fastmath=True)
def add_to_window(width, x_in, rows, low, high, center, change):
    """Adds the whole change to each row from low to high, without the center, as in the released program."""
    for j in range(low, high):
        if j != center:
            row = x_in[rows[j]]
            for d in range(width):
                row[d] += change[d]


@cache
def cbow_kernel(width: int) -> Any:
    """The loop of CBOW for one width."""

    @cached_on_disk
    @nb.njit(fastmath=True, nogil=True)
    def cbow(
        ids, chunks, text, tree, sampler, shared, max_targets, window, num_negatives, x_in, x_out, schedule, done,
        thread, sigmoid,
    ):  # fmt: skip
        starts, ends, keys = chunks
        words_V, keep_V = text
        bounds_V1, nodes_P, turns_P = tree
        limit_V, alias_V = sampler
        first_in, first_out, size, patience = shared
        visits_in = np.zeros(size, np.int32)
        visits_out = np.zeros(size, np.int32)
        own_in = len(x_in) - 2 * size * (len(done) - thread)
        own_out = len(x_out) - 2 * size * (len(done) - thread)
        exchange_all(width, x_in, first_in, own_in, size)
        kept = np.empty(longest_chunk(starts, ends), np.int32)
        rows = np.empty(longest_chunk(starts, ends), np.int32)
        targets = np.empty(max_targets, np.int32)
        labels = np.empty(max_targets, np.float32)
        change = np.empty(width, np.float32)
        mean = np.empty(width, np.float32)
        gradients = np.empty(max_targets, np.float32)
        for c in range(len(starts)):
            rate = current_rate(schedule, done)
            count, state = subsample(ids, starts[c], ends[c], words_V, keep_V, keys[c], kept)
            for i in range(count):
                rows[i] = local_row(kept[i], first_in, own_in, size)
            for i in range(count):
                state += _GOLDEN
                reach = window - int(mix(state) % np.uint64(window))
                low = max(0, i - reach)
                high = min(count, i + reach + 1)
                if high - low < 2:
                    continue
                num_targets, state = choose_targets(
                    kept[i], num_negatives == 0, bounds_V1, nodes_P, turns_P, limit_V, alias_V, num_negatives, state,
                    targets, labels,
                )  # fmt: skip
                if size > 0:
                    visit(width, x_in, kept[i], first_in, own_in, visits_in, patience)
                    for t in range(num_targets):
                        targets[t] = visit(width, x_out, targets[t], first_out, own_out, visits_out, patience)
                prefetch_rows(x_in, x_out, rows, count, i + 1 + window, targets, num_targets)
                mean_of_window(width, x_in, rows, low, high, i, mean)
                change[:] = 0
                step(width, mean, change, x_out, targets, labels, gradients, num_targets, rate, sigmoid)
                add_to_window(width, x_in, rows, low, high, i, change)
            done[thread] += ends[c] - starts[c]
        exchange_all(width, x_in, first_in, own_in, size)
        exchange_all(width, x_out, first_out, own_out, size)

    return cbow


@cache
def kernels(width: int) -> Any:
    """The loops for one width."""
    return SimpleNamespace(skip_gram=skip_gram_kernel(width), cbow=cbow_kernel(width))
