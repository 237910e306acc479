"""The inner loops of word2vec and fastText, compiled: no Python and no allocation per word.

`kernels(width)` has them for one width, so that every loop over a vector has a fixed length; numba compiles each once
and keeps it on disk. All read chunks of a token stream, drop words that are not on the list and frequent ones by
chance, draw a window, and step after each word. Threads share the tables without locks (Hogwild, Recht et al. 2011). A
window's negatives are drawn once and shared by its words (Ji et al. 2016). Chance is splitmix64 from a chunk's key, as
in `firth.chance`.
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

from firth.compiling import kept_on_disk

_REACH, _BINS = 8.0, 2048
_edges = np.linspace(-_REACH, _REACH, _BINS + 1)
SIGMOID = (1 / (1 + np.exp(-_edges))).astype(np.float32)
"""The logistic function at the edges of its bins; between them it is taken for straight (off by at most 2e-6)."""
SOURCE = crc32(Path(__file__).read_bytes())
"""This file's version. numba looks for a kept loop by the loop's own file and what it closes over, so that loops of
other files which use functions of this one close over this."""
SHARED, VISITS, UNSEEN = 512, 8, 0.8
"""A row that several threads write at once goes to and fro between their caches. So each has copies of its own of so
many rows that all of them need, and exchanges one's changes with the others when it has come by so many times. Since
everyone's changes are added though nobody has seen the others', it does so earlier where the rate times the number of
visits of all threads would be above `UNSEEN`: skip-gram with rate 0.2 and 16 unseen visits learned little. Where only
one or two visits are left of that, all threads write to the same rows."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LOW = np.uint64(0xFFFFFFFF)


@nb.njit(inline="always")
def mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@nb.njit(inline="always")
def draw(state, limit_V, alias_V):
    """A word of the sampler from one 64-bit number."""
    bits = mix(state)
    word = np.int32(((bits >> np.uint64(32)) * np.uint64(len(limit_V))) >> np.uint64(32))
    return word if np.uint32(bits & _LOW) <= limit_V[word] else alias_V[word]


@nb.njit(nogil=True)
def draws(key, limit_V, alias_V, count):
    """Many draws in a row, as the training loops make them."""
    found = np.empty(count, np.int32)
    for i in range(count):
        found[i] = draw(key + np.uint64(i + 1) * _GOLDEN, limit_V, alias_V)
    return found


@kept_on_disk
@nb.njit(nogil=True)
def spread(rows, reach, key):
    """Fills rows with uniform numbers from -reach to reach, as `chance.uniform(key, row, column)` draws them."""
    for i in range(rows.shape[0]):
        state = mix(key + np.uint64(i + 1) * _GOLDEN)
        for d in range(rows.shape[1]):
            bits = mix(state + np.uint64(d + 1) * _GOLDEN)
            rows[i, d] = ((bits >> np.uint64(11)) * (1.0 / (1 << 53)) - 0.5) * (2 * reach)


@nb.njit(nogil=True)
def longest(starts, ends):
    """Words of the longest chunk."""
    size = 0
    for c in range(len(starts)):
        size = max(size, ends[c] - starts[c])
    return size


@nb.njit(nogil=True)
def keep_some(ids, start, end, words_V, keep_V, state, kept):
    """The words of a chunk that stay, and how many: on the list, and kept by their chance."""
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
    place = (
        min(max(score, np.float32(-_REACH + 0.001)), np.float32(_REACH - 0.001)) + np.float32(_REACH)
    ) * np.float32(_BINS / (2 * _REACH))
    low = int(place)
    return sigmoid[low] + (place - np.float32(low)) * (sigmoid[low + 1] - sigmoid[low])


@nb.njit(nogil=True)
def rate_now(plan, done):
    """The learning rate on its straight way from plan[0] to plan[1] while plan[2] words are read."""
    share = min(1.0, done.sum() / plan[2])
    return np.float32(plan[0] + (plan[1] - plan[0]) * share)


def _fetch(_context, table, place):
    """Asks for a row to be brought near while other work goes on: rows far apart in memory are what loops wait for."""

    def generate(context, builder, signature, arguments):
        array = make_array(signature.args[0])(context, builder, arguments[0])
        byte, short, long = ir.IntType(8), ir.IntType(32), ir.IntType(64)
        size = builder.extract_value(array.strides, 0)
        start = builder.gep(
            builder.bitcast(array.data, byte.as_pointer()), [builder.mul(builder.sext(arguments[1], long), size)]
        )
        kind = ir.FunctionType(ir.VoidType(), [start.type, short, short, short])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [start.type], kind)
        with cgutils.for_range_slice(builder, long(0), size, long(64), inc=True) as (at, _):
            builder.call(prefetch, [builder.gep(start, [at]), short(1), short(3), short(1)])
        return context.get_dummy_value()

    return types.void(table, types.int32), generate


fetch: Any = intrinsic(_fetch)


@nb.njit(nogil=True)
def aim(word, hierarchical, bounds_V1, nodes_P, turns_P, limit_V, alias_V, num_negatives, state, targets, labels):
    """What predicts a word: the nodes of its path, or its row and those of drawn others."""
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
        if other != word:
            targets[count] = other
            labels[count] = np.float32(0)
            count += 1
    return count, state


@nb.njit(inline="always", fastmath=True)
def exchange(width, shared, mine, before):
    """Gives the others what a thread changed of its own copy of a row, and takes what they changed."""
    for d in range(width):
        shared[d] += mine[d] - before[d]
        mine[d] = before[d] = shared[d]


@nb.njit(inline="always")
def own_row(row, first, own, size):
    """The row that a thread works on in the place of this one: its copy, if the row is among those from `first` on."""
    place = row - first
    return np.int32(own + place) if 0 <= place < size else np.int32(row)


@nb.njit(inline="always")
def visit(width, table, row, first, own, visits, patience):
    """Takes note that a thread comes by a row, and exchanges its copy if it is time; gives the row to work on.

    Copies begin at row `own` of the table; behind them stand the same rows as they were at the last exchange.
    """
    place = row - first
    if 0 <= place < len(visits):
        if visits[place] == 0:
            exchange(width, table[row], table[own + place], table[own + len(visits) + place])
            visits[place] = patience
        visits[place] -= 1
    return own_row(row, first, own, len(visits))


@nb.njit(inline="always")
def give_back(width, table, first, own, size):
    """The last exchange of all copies."""
    for place in range(size):
        exchange(width, table[first + place], table[own + place], table[own + size + place])


@nb.njit(nogil=True)
def ask(x_in, x_out, rows, count, place, targets, num_targets):
    """Brings near the targets' rows and that of the word which comes into reach next."""
    for t in range(num_targets):
        fetch(x_out, targets[t])
    if place < count:
        fetch(x_in, rows[place])


@nb.njit(inline="always", fastmath=True)
def step(width, x, change, out, targets, labels, slopes, num_targets, rate, sigmoid):
    """One logistic step of every target's row against x; the change of x is added to `change`."""
    for t in range(num_targets):  # all scores before all steps: no score waits for the one before
        row = out[targets[t]]
        score = np.float32(0)
        for d in range(width):
            score += x[d] * row[d]
        slopes[t] = rate * (labels[t] - logistic(score, sigmoid))
    for t in range(num_targets):
        row = out[targets[t]]
        slope = slopes[t]
        for d in range(width):
            change[d] += slope * row[d]
            row[d] += slope * x[d]


@cache
def skip_gram_kernel(width: int) -> Any:
    @kept_on_disk
    @nb.njit(fastmath=True, nogil=True)
    def skip_gram(
        ids, chunks, text, tree, sampler, shared, room, window, num_negatives, x_in, x_out, plan, done, me, sigmoid
    ):
        starts, ends, keys = chunks
        words_V, keep_V = text
        bounds_V1, nodes_P, turns_P = tree
        limit_V, alias_V = sampler
        first_in, first_out, size, patience = shared
        visits_in, visits_out = np.zeros(size, np.int32), np.zeros(size, np.int32)
        own_in, own_out = len(x_in) - 2 * size * (len(done) - me), len(x_out) - 2 * size * (len(done) - me)
        give_back(width, x_in, first_in, own_in, size)  # the first fills the copies
        kept, rows = np.empty(longest(starts, ends), np.int32), np.empty(longest(starts, ends), np.int32)
        targets, labels = np.empty(room, np.int32), np.empty(room, np.float32)
        change, slopes = np.empty(width, np.float32), np.empty(room, np.float32)
        for c in range(len(starts)):
            rate = rate_now(plan, done)
            count, state = keep_some(ids, starts[c], ends[c], words_V, keep_V, keys[c], kept)
            for i in range(count):
                rows[i] = own_row(kept[i], first_in, own_in, size)
            for i in range(count):
                state += _GOLDEN
                reach = window - int(mix(state) % np.uint64(window))
                num_targets, state = aim(
                    kept[i], num_negatives == 0, bounds_V1, nodes_P, turns_P, limit_V, alias_V, num_negatives, state,
                    targets, labels,
                )  # fmt: skip
                if size > 0:
                    visit(width, x_in, kept[i], first_in, own_in, visits_in, patience)
                    for t in range(num_targets):
                        targets[t] = visit(width, x_out, targets[t], first_out, own_out, visits_out, patience)
                ask(x_in, x_out, rows, count, i + 1 + window, targets, num_targets)
                for j in range(max(0, i - reach), min(count, i + reach + 1)):
                    if j != i:
                        x = x_in[rows[j]]
                        change[:] = 0
                        step(width, x, change, x_out, targets, labels, slopes, num_targets, rate, sigmoid)
                        for d in range(width):
                            x[d] += change[d]
            done[me] += ends[c] - starts[c]
        give_back(width, x_in, first_in, own_in, size)
        give_back(width, x_out, first_out, own_out, size)

    return skip_gram


@cache
def cbow_kernel(width: int) -> Any:
    @kept_on_disk
    @nb.njit(fastmath=True, nogil=True)
    def cbow(
        ids, chunks, text, tree, sampler, shared, room, window, num_negatives, x_in, x_out, plan, done, me, sigmoid
    ):
        starts, ends, keys = chunks
        words_V, keep_V = text
        bounds_V1, nodes_P, turns_P = tree
        limit_V, alias_V = sampler
        first_in, first_out, size, patience = shared
        visits_in, visits_out = np.zeros(size, np.int32), np.zeros(size, np.int32)
        own_in, own_out = len(x_in) - 2 * size * (len(done) - me), len(x_out) - 2 * size * (len(done) - me)
        give_back(width, x_in, first_in, own_in, size)  # the first fills the copies
        kept, rows = np.empty(longest(starts, ends), np.int32), np.empty(longest(starts, ends), np.int32)
        targets, labels = np.empty(room, np.int32), np.empty(room, np.float32)
        change, mean, slopes = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(room, np.float32)
        for c in range(len(starts)):
            rate = rate_now(plan, done)
            count, state = keep_some(ids, starts[c], ends[c], words_V, keep_V, keys[c], kept)
            for i in range(count):
                rows[i] = own_row(kept[i], first_in, own_in, size)
            for i in range(count):
                state += _GOLDEN
                reach = window - int(mix(state) % np.uint64(window))
                low, high = max(0, i - reach), min(count, i + reach + 1)
                if high - low < 2:
                    continue
                num_targets, state = aim(
                    kept[i], num_negatives == 0, bounds_V1, nodes_P, turns_P, limit_V, alias_V, num_negatives, state,
                    targets, labels,
                )  # fmt: skip
                if size > 0:
                    visit(width, x_in, kept[i], first_in, own_in, visits_in, patience)
                    for t in range(num_targets):
                        targets[t] = visit(width, x_out, targets[t], first_out, own_out, visits_out, patience)
                ask(x_in, x_out, rows, count, i + 1 + window, targets, num_targets)
                mean[:] = 0
                for j in range(low, high):
                    if j != i:
                        row = x_in[rows[j]]
                        for d in range(width):
                            mean[d] += row[d]
                share = np.float32(1.0 / (high - low - 1))
                for d in range(width):
                    mean[d] *= share
                change[:] = 0
                step(width, mean, change, x_out, targets, labels, slopes, num_targets, rate, sigmoid)
                for j in range(low, high):
                    if j != i:  # each word takes the whole step, as in the released program
                        row = x_in[rows[j]]
                        for d in range(width):
                            row[d] += change[d]
            done[me] += ends[c] - starts[c]
        give_back(width, x_in, first_in, own_in, size)
        give_back(width, x_out, first_out, own_out, size)

    return cbow


@cache
def kernels(width: int) -> Any:
    """The loops for one width."""
    return SimpleNamespace(skip_gram=skip_gram_kernel(width), cbow=cbow_kernel(width))
