"""Sets for probes: sentences -> lines of words and labels, where most words may have none.

Parts of speech: every word has its tag. Entities: the words of entities with the type, and as many other words. Word
order: one word of each sentence, which in half of the sentences was exchanged with its right neighbour.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from firth import rng, samples
from firth.study import sets
from firth.study.probing import UNLABELLED
from firth.study.sets import Sources

TRAIN = {"public": 400, "embedded": 900}
TEST = {"public": 200, "embedded": 450}
"""Sentences, where there are as many."""
LONGEST = 60
"""Words of a sentence."""
_WORD = re.compile(r"[\w'’-]+|[^\w\s]")


@dataclass(frozen=True)
class TaggedSentence:
    """Words with their tags; a tag that a set does not have is missing."""

    words: tuple[str, ...]
    pos: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()


@cache
def probe_files(sources: Sources, task: str, language: str, *, seed: int) -> tuple[Path, Path]:
    """The lines to learn from and those to test on, drawn by the seed."""
    sentences = _sentences(sources, task, language)
    by_text = {" ".join(sentence.words): sentence for sentence in sentences}
    drawn = [by_text[text] for text in sets.shuffled(list(by_text), seed=seed)]
    num_train = min(TRAIN[sources.origin], len(drawn) * 2 // 3)
    num_test = TEST[sources.origin]
    parts = {"train": drawn[:num_train], "test": drawn[num_train : num_train + num_test]}
    paths = []
    for part, own in parts.items():
        lines = []
        for number, sentence in enumerate(own):
            line = _line(sentence, task, rng.key("probe", task, part, seed, number))
            if line:
                lines.append(line)
        name = f"{task}-{language}.{part}.{seed}.tsv"
        paths.append(sets.write_rows(sources.folder / "probes" / sources.origin / name, lines))
    train, test = paths
    return train, test


@cache
def _sentences(sources: Sources, task: str, language: str) -> list[TaggedSentence]:
    if sources.data is None:
        train, test = sources.labelled(f"entities-{language}")
        found = [*_read_columns(train, entity=-1), *_read_columns(test, entity=-1)]
        if task == "order" and language == "en":
            # It needs no labels, so the texts of other sets serve as well.
            found += _read_texts("topics") + _read_texts("classify")
    elif language == "en":
        found = _read_columns(sources.public("en/conll2003", "ner/conll2003/eng.train"), pos=1, entity=-1)
    elif task == "entities":
        found = _read_columns(sources.public("zh/ner_msra_ymcui", "ner_msra_ymcui/dev.txt"), entity=-1)
    else:
        found = _read_tagged(sources.public("zh/pd199801", "pd199801/199801.txt"))
    return [sentence for sentence in found if 4 <= len(sentence.words) <= LONGEST]


def _read_texts(task: str) -> list[TaggedSentence]:
    """The texts of an embedded table, in words and marks."""
    texts = [row.split("\t")[0] for row in sets.read_rows(samples.labelled(task, "en"))[1:]]
    return [TaggedSentence(tuple(_WORD.findall(text))) for text in texts]


def _read_columns(path: Path, *, entity: int, pos: int | None = None) -> list[TaggedSentence]:
    """A word on each line, with its tags in columns."""
    found = []
    for block in sets.read_rows(path, sets.SENTENCE):
        rows = [line.split() for line in block.splitlines()]
        words = tuple(row[0] for row in rows)
        entities = tuple(row[entity] for row in rows)
        tags: tuple[str, ...] = ()
        if pos is not None:
            # Two letters distinguish nouns from verbs; the rest of the tag is number and tense.
            tags = tuple(row[pos][:2] for row in rows)
        found.append(TaggedSentence(words, tags, entities))
    return found


def _read_tagged(path: Path) -> list[TaggedSentence]:
    """A sentence on each line, as word/tag."""
    found = []
    for line in sets.read_rows(path):
        words = []
        tags = []
        for field in line.split():
            word, _, tag = field.rpartition("/")
            if word:
                words.append(word)
                # The first letter is the part of speech; the others say what kind of name it is.
                tags.append(tag.strip("]")[:1].lower())
        found.append(TaggedSentence(tuple(words), tuple(tags)))
    return found


def _line(sentence: TaggedSentence, task: str, key: np.uint64) -> str:
    """The words and their labels; empty if no word has a label."""
    words = list(sentence.words)
    labels = [UNLABELLED] * len(words)
    if task == "pos":
        labels = [tag or UNLABELLED for tag in sentence.pos]
    elif task == "entities":
        labels = _entity_labels(sentence.entities, key)
    else:
        place = int(rng.below(key, len(words) - 1, 0))
        labels[place] = "kept"
        if rng.uniform(key, 1) < 0.5 and words[place] != words[place + 1]:
            labels[place] = "swapped"
            words[place], words[place + 1] = words[place + 1], words[place]
    if all(label == UNLABELLED for label in labels):
        return ""
    return " ".join(words) + "\t" + " ".join(labels)


def _entity_labels(tags: Sequence[str], key: np.uint64) -> list[str]:
    """The type of each word of an entity, and `O` for as many other words."""
    labels = [UNLABELLED] * len(tags)
    outside = []
    for place, tag in enumerate(tags):
        if tag == "O":
            outside.append(place)
        else:
            # `B-PER` and `I-PER` are of the type PER.
            labels[place] = tag.rpartition("-")[2]
    num_inside = len(tags) - len(outside)
    order = rng.permutation(key, len(outside))
    for index in order[:num_inside]:
        labels[outside[index]] = "O"
    return labels
