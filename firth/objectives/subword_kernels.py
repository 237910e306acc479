"""The inner loops of fastText, compiled with numba: skip-gram over bags of parts, and the classifier of bags.

They work as in `word_kernels`, but the input of a word or text is the mean of many rows. Each of these rows takes the
whole step (word vectors) or its share of it (the classifier), as in the released program.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from functools import cache
from types import SimpleNamespace
from typing import Any

import numba as nb
import numpy as np

from firth.compiling import cached_on_disk
from firth.objectives.word_kernels import (
    _GOLDEN,
    SOURCE,
    choose_targets,
    current_rate,
    longest_chunk,
    mix,
    step,
    subsample,
)


@nb.njit(inline="always")
def continues(byte):
    """Whether a byte continues a UTF-8 character."""
    return byte & 0xC0 == 0x80


@nb.njit(inline="always")
def fnv_step(state, byte):
    """One step of the 32-bit FNV-1a hash. As in the released program, bytes are signed."""
    return np.uint32((state ^ np.uint32(np.int8(byte))) * np.uint32(16777619))


@cached_on_disk
@nb.njit(nogil=True)
def ngram_parts(data, bounds_V1, least, most, num_buckets, first_bucket, own_V):
    """The parts of many words, each given as the UTF-8 of `<word>`: parts end to end, and where each word's begin.

    The parts of a word are its own row and the buckets of its character n-grams from `least` to `most` characters. A
    word with own_V < 0 has no row.
    """
    parts = []
    bounds = np.zeros(len(bounds_V1), np.int64)
    for v in range(len(bounds_V1) - 1):
        start = bounds_V1[v]
        end = bounds_V1[v + 1]
        if own_V[v] >= 0:
            parts.append(own_V[v])
        for i in range(start, end):
            if continues(data[i]):
                continue
            state = np.uint32(2166136261)
            size = 0
            j = i
            while j < end and size < most:
                state = fnv_step(state, data[j])
                j += 1
                while j < end and continues(data[j]):
                    state = fnv_step(state, data[j])
                    j += 1
                size += 1
                # The brackets alone are no n-grams.
                is_bracket = size == 1 and (i == start or j == end)
                if size >= least and not is_bracket:
                    parts.append(np.int32(first_bucket + state % np.uint32(num_buckets)))
        bounds[v + 1] = len(parts)
    return np.array(parts, np.int32), bounds


@nb.njit(inline="always", fastmath=True)
def gather(width, parts, bounds, word, x_in, mean):
    """Writes the mean of a word's rows to `mean`."""
    first = bounds[word]
    last = bounds[word + 1]
    mean[:] = 0
    for p in range(first, last):
        row = x_in[parts[p]]
        for d in range(width):
            mean[d] += row[d]
    share = np.float32(1.0 / max(1, last - first))
    for d in range(width):
        mean[d] *= share


@nb.njit(inline="always", fastmath=True)
def scatter(width, parts, bounds, word, x_in, change, share):
    """Adds a share of the change to each of a word's rows."""
    for p in range(bounds[word], bounds[word + 1]):
        row = x_in[parts[p]]
        for d in range(width):
            row[d] += share * change[d]


@cached_on_disk
@nb.njit(nogil=True)
def bag_means(parts, bounds, x_in):
    """The mean of every word's rows."""
    means = np.empty((len(bounds) - 1, x_in.shape[1]), np.float32)
    for word in range(len(means)):
        gather(x_in.shape[1], parts, bounds, word, x_in, means[word])
    return means


@cache
def skip_gram_kernel(width: int) -> Any:
    """The loop of fastText's skip-gram for one width."""
    # The loop closes over SOURCE so that numba's cache notices a change of `word_kernels`.
    fixed = (width, SOURCE)

    @cached_on_disk
    @nb.njit(fastmath=True, nogil=True)
    def skip_gram(
        ids, chunks, text, bags, sampler, window, num_negatives, x_in, x_out, schedule, done, thread, sigmoid
    ):
        width = fixed[0]
        starts, ends, keys = chunks
        words_V, keep_V = text
        parts, bounds = bags
        limit_V, alias_V = sampler
        # No tree: fastText's word vectors are trained with negatives only.
        no_bounds = np.zeros(1, np.int64)
        no_nodes = np.zeros(0, np.int32)
        no_turns = np.zeros(0, np.int8)
        kept = np.empty(longest_chunk(starts, ends), np.int32)
        targets = np.empty(num_negatives + 1, np.int32)
        labels = np.empty(num_negatives + 1, np.float32)
        change = np.empty(width, np.float32)
        mean = np.empty(width, np.float32)
        gradients = np.empty(num_negatives + 1, np.float32)
        for c in range(len(starts)):
            rate = current_rate(schedule, done)
            count, state = subsample(ids, starts[c], ends[c], words_V, keep_V, keys[c], kept)
            for i in range(count):
                state += _GOLDEN
                reach = window - int(mix(state) % np.uint64(window))
                gather(width, parts, bounds, kept[i], x_in, mean)
                change[:] = 0
                for j in range(max(0, i - reach), min(count, i + reach + 1)):
                    if j != i:
                        num_targets, state = choose_targets(
                            kept[j], False, no_bounds, no_nodes, no_turns, limit_V, alias_V, num_negatives, state,
                            targets, labels,
                        )  # fmt: skip
                        step(width, mean, change, x_out, targets, labels, gradients, num_targets, rate, sigmoid)
                scatter(width, parts, bounds, kept[i], x_in, change, np.float32(1))
            done[thread] += ends[c] - starts[c]

    return skip_gram


@nb.njit(inline="always", fastmath=True)
def softmax_step(width, x, change, out, gold, rate, scores):
    """One step of a softmax over all rows of `out`; the change of x is added to `change`. Overwrites `scores`."""
    for t in range(len(scores)):
        score = np.float32(0)
        for d in range(width):
            score += x[d] * out[t, d]
        scores[t] = score
    top = scores.max()
    total = np.float32(0)
    for t in range(len(scores)):
        scores[t] = np.exp(scores[t] - top)
        total += scores[t]
    for t in range(len(scores)):
        label = np.float32(1) if t == gold else np.float32(0)
        gradient = rate * (label - scores[t] / total)
        row = out[t]
        for d in range(width):
            change[d] += gradient * row[d]
            row[d] += gradient * x[d]


@cache
def classify_kernel(width: int) -> Any:
    """The loop of fastText's classifier for one width."""
    fixed = (width, SOURCE)

    @cached_on_disk
    @nb.njit(fastmath=True, nogil=True)
    def classify(order, bags, golds, tree, x_in, x_out, schedule, done, thread, sigmoid):
        """Trains on the texts in this order, with a tree of labels or, where it is empty, a softmax over all labels."""
        width = fixed[0]
        parts, bounds = bags
        bounds_V1, nodes_P, turns_P = tree
        num_labels = len(x_out)
        targets = np.empty(num_labels, np.int32)
        labels = np.empty(num_labels, np.float32)
        change = np.empty(width, np.float32)
        mean = np.empty(width, np.float32)
        scores = np.empty(num_labels, np.float32)
        for n in range(len(order)):
            text = order[n]
            size = bounds[text + 1] - bounds[text]
            done[thread] += 1
            if size == 0:
                continue
            rate = current_rate(schedule, done)
            gather(width, parts, bounds, text, x_in, mean)
            change[:] = 0
            gold = golds[text]
            if len(nodes_P):
                count = 0
                for p in range(bounds_V1[gold], bounds_V1[gold + 1]):
                    targets[count] = nodes_P[p]
                    labels[count] = np.float32(turns_P[p])
                    count += 1
                step(width, mean, change, x_out, targets, labels, scores, count, rate, sigmoid)
            else:
                softmax_step(width, mean, change, x_out, gold, rate, scores)
            scatter(width, parts, bounds, text, x_in, change, np.float32(1.0 / size))

    return classify


@cache
def bag_kernels(width: int) -> Any:
    """The loops for one width."""
    return SimpleNamespace(skip_gram=skip_gram_kernel(width), classify=classify_kernel(width))
