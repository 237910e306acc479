"""WKLM: names are found as whole words and replaced by others of their type, and the loss is at their borders."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import rng
from firth.checkpoint import make_objective
from firth.data.loader import BatchAddress, Packs
from firth.data.packing import Pack, lay_out
from firth.data.settings import BatchConfig
from firth.data.shards import Shards, write_shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.errors import BadConfig, BadInput
from firth.nn.likelihood import IGNORE
from firth.objectives.entities import Names, phrases_of, read_names
from firth.objectives.entity_replacement import EntityReplacement
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.word_spans import text_of
from firth.tokenizers.vocab import Frame
from firth.tokenizers.wordpiece import WordPiece

LENGTH = 64
NAMES = {
    "place": ["new york", "los angeles", "hong kong", "paris", "rome", "北京", "上海", "广州"],
    "person": ["ada lovelace", "alan turing", "john firth", "李白", "杜甫", "鲁迅"],
}
FILLING = {
    "en": ["we met {} in the morning", "the letter of {} came late", "nobody saw {} again"],
    "zh": ["我们早上见到{}", "人们常说起{}的事", "后来没有人再提{}"],
}


@pytest.fixture(scope="module")
def named(tokenizer: WordPiece, tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """600 documents of 6 sentences with a name in each, in English and Chinese."""
    key = rng.key("names")
    folder = tmp_path_factory.mktemp("names") / "data"
    all_names = [name for names in NAMES.values() for name in names]
    with write_shards(folder, tokenizer) as writer:
        for document in range(600):
            sentences = []
            for number in range(6):
                draws = [int(rng.below(key, 1000, document, number, purpose)) for purpose in range(2)]
                name = all_names[draws[0] % len(all_names)]
                forms = FILLING["en" if name.isascii() else "zh"]
                sentences.append(forms[draws[1] % 3].format(name))
            encoded = tokenizer.word_starts_batch(sentences)
            lengths = np.array([len(ids) for ids, _ in encoded])
            ids, starts = (np.concatenate(column) for column in zip(*encoded, strict=True))
            writer.append(ids, starts, lengths=lengths, ends=np.array([6]))
        writer.info = {"health": {"entropy_nats": 5.0}}
    return Shards.open(folder)


@pytest.fixture(params=["list", "predictions"])
def names_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    lines = []
    for kind, names in NAMES.items():
        for name in names:
            if request.param == "list":
                lines.append(f"{name}\t{kind}")
            else:
                lines.append(f'{{"label": [], "spans": [{{"label": "{kind}", "text": "{name}"}}]}}')
    path = tmp_path / "names"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def goal(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> Callable[..., EntityReplacement]:
    def make(**changes: Any) -> EntityReplacement:
        config = EntityReplacement.Config(**changes)
        made = make_objective("entity_replacement", config, small_bert(), tokenizer, max_length=LENGTH, seed=2)
        assert isinstance(made, EntityReplacement)
        made.set_tokenizer(tokenizer)
        return made

    return make


def stream(shards: Shards) -> CorpusView:
    return CorpusView(shards, np.arange(shards.num_documents))


def corrupted(goal: EntityReplacement, shards: Shards, epoch: int = 0) -> Iterator[tuple[Pack, Pack]]:
    plan = goal.sequences(stream(shards), epoch)
    for rows in np.array_split(np.arange(len(plan)), max(1, len(plan) // 60)):
        sizes = {"num_tokens": int(plan.lengths_S[rows].sum()), "max_length": LENGTH}
        before, after = (lay_out(shards, plan, rows, specials=goal.vocab, **sizes) for _ in range(2))
        goal.corrupt(after, epoch)
        yield before, after


def test_names_become_others_of_their_type(
    goal: Callable[..., EntityReplacement], named: Shards, tokenizer: WordPiece, names_file: Path
) -> None:
    made = goal(entities=str(names_file))
    kind_of = {tuple(tokenizer.ids_batch([name])[0]): kind for kind, names in NAMES.items() for name in names}
    replaced = total = 0
    seen = set()
    for before, after in corrupted(made, named):
        labels = after.targets["entity_replacement_labels"]
        count = int((labels != IGNORE).sum())
        left = after.targets["entity_replacement_left"][:count]
        right = after.targets["entity_replacement_right"][:count]
        inside = np.zeros(len(before.ids_N), bool)
        last = (-1, False)
        for first, end, label in zip(left + 1, right, labels[:count], strict=True):
            old, new = tuple(before.ids_N[first:end].tolist()), tuple(after.ids_N[first:end].tolist())
            inside[first:end] = True
            assert kind_of[old] == kind_of[new]
            assert (old != new) == bool(label)
            assert before.word_starts_N[first]
            assert before.word_starts_N[end]
            sequence = before.sequence_N[first]
            assert not (label and last == (sequence, True))  # never two in a row
            last = (sequence, bool(label))
            seen.add(new)
            replaced += int(label)
            total += 1
        assert np.array_equal(before.ids_N[~inside], after.ids_N[~inside])
        assert not after.ordinary_N[inside].any()
    assert seen == set(kind_of)
    assert total > 3000
    assert abs(replaced / total - 0.27) < 0.03  # of two drawn in a row one stays; the first of a text has none before


def test_borders_of_names_are_in_their_own_sequence(
    goal: Callable[..., EntityReplacement], named: Shards, names_file: Path
) -> None:
    """Also in a frame as XLNet's, which has no token before a text."""
    made = goal(entities=str(names_file))
    vocab = made.vocab
    made.vocab = replace(vocab, own_frame=Frame((), (vocab.sep,), (vocab.sep, vocab.cls)))
    at_start = 0
    for before, after in corrupted(made, named):
        count = int((after.targets["entity_replacement_labels"] != IGNORE).sum())
        left = after.targets["entity_replacement_left"][:count]
        right = after.targets["entity_replacement_right"][:count]
        assert np.array_equal(before.sequence_N[left], before.sequence_N[right])
        at_start += int((~after.ordinary_N[left] & before.ordinary_N[left] & (before.positions_N[left] == 0)).sum())
    assert at_start > 0


def test_the_longest_name_counts_and_words_stay_whole(tokenizer: WordPiece, named: Shards) -> None:
    texts = ["new york", "york", "new"]
    rows = [tuple(ids) for ids in tokenizer.ids_batch(texts)]
    names = Names(("place", row) for row in rows)
    assert len(names) == 3
    found: dict[tuple[int, ...], int] = {}
    goal = make_objective(
        "masked_lm", MaskedLM.Config(), Bert(Bert.Config(1200, 32, 1, 2, 64)), tokenizer, max_length=LENGTH
    )
    plan = goal.sequences(stream(named), 0)
    pack = lay_out(
        named,
        plan,
        np.arange(200),
        specials=tokenizer.vocab,
        num_tokens=int(plan.lengths_S[:200].sum()),
        max_length=LENGTH,
    )
    text = text_of(pack)
    mentions = names.find(text)
    for first, end, group, member in zip(
        mentions.first_J, mentions.ends_J, mentions.group_J, mentions.member_J, strict=True
    ):
        row = tuple(text.ids_T[first:end].tolist())
        assert row == tuple(names.rows[group][member].tolist())
        found[row] = found.get(row, 0) + 1
    assert found[rows[0]] > 20
    # Only where a sequence was cut inside of a name is there a part of it.
    assert found.get(rows[1], 0) + found.get(rows[2], 0) < 0.2 * found[rows[0]]
    assert (np.diff(mentions.first_J) > 0).all()


def test_phrases_are_found_without_a_list(named: Shards, tokenizer: WordPiece) -> None:
    phrases = {tokenizer.decode(row) for rows in phrases_of(named).rows for row in rows}
    assert {"new york", "hong kong", "alan turing"} <= phrases


def test_phrases_do_not_cross_sentences(tokenizer: WordPiece, tmp_path: Path) -> None:
    """Of two pairs of words that always follow each other, one is divided by the end of a sentence."""
    ids = 200 + rng.below(rng.key("words"), 800, np.arange(100)[:, None], np.arange(20))
    ids[:10, 4:6] = [110, 111]
    ids[:10, 19] = 120
    ids[1:11, 0] = 121
    with write_shards(tmp_path / "data", tokenizer) as writer:
        writer.append(ids.ravel(), np.ones(2000, bool), lengths=np.full(100, 20), ends=np.array([100]))
        writer.info = {"health": {"entropy_nats": 5.0}}
    names = phrases_of(Shards.open(tmp_path / "data"))
    assert [rows.tolist() for rows in names.rows] == [[[110, 111]]]


def test_replacements_do_not_depend_on_the_pack(
    goal: Callable[..., EntityReplacement], named: Shards, names_file: Path
) -> None:
    made = goal(entities=str(names_file))
    plan = made.sequences(stream(named), 4)
    found = []
    for rows in ([5, 9, 40], [77, 9, 3, 6]):
        size = int(plan.lengths_S[rows].sum())
        pack = lay_out(named, plan, np.array(rows), specials=made.vocab, num_tokens=size, max_length=LENGTH)
        made.corrupt(pack, 4)
        found.append(pack.ids_N[pack.sequence_N == rows.index(9)].tolist())
    assert found[0] == found[1]


def test_masked_lm_chooses_other_words(
    goal: Callable[..., EntityReplacement],
    small_bert: Callable[..., Bert],
    named: Shards,
    tokenizer: WordPiece,
    names_file: Path,
) -> None:
    made = goal(entities=str(names_file))
    masking = make_objective("masked_lm", MaskedLM.Config(rate=0.3), small_bert(), tokenizer, max_length=LENGTH, seed=2)
    for _, after in corrupted(made, named):
        read = after.ids_N.copy()
        ordinary = after.ordinary_N.copy()
        masking.corrupt(after, 0)
        assert np.array_equal(after.ids_N[~ordinary], read[~ordinary])


def test_the_loss_is_at_the_borders_of_names(
    goal: Callable[..., EntityReplacement], small_bert: Callable[..., Bert], named: Shards, names_file: Path
) -> None:
    made = goal(entities=str(names_file))
    encoder = small_bert()
    packs = Packs(stream(named), [made], BatchConfig(max_length=LENGTH, tokens=1024), specials=made.vocab, seed=2)
    batch = packs[BatchAddress()]
    with torch.no_grad():
        states = encoder(batch)
        loss = made.loss(states, batch)
        total = 0.0
        targets = {name: batch.targets[f"entity_replacement_{name}"] for name in ("left", "right", "labels")}
        for left, right, label in zip(*(values.tolist() for values in targets.values()), strict=True):
            if label != IGNORE:
                borders = torch.cat([states.last_ND[left], states.last_ND[right]])
                probability = torch.sigmoid(made.judge(borders))
                total -= float(torch.log(probability if label else 1 - probability))
    assert float(loss.sums["entity_replacement"]) == pytest.approx(total, rel=1e-4)
    assert made.counts(batch) == {"entity_replacement": int((targets["labels"] != IGNORE).sum())}
    assert loss.tallies["entity_replacement_recall_of"] == (targets["labels"] == 1).sum()


def test_a_list_without_names_or_spans_is_refused(tmp_path: Path, tokenizer: WordPiece) -> None:
    (tmp_path / "empty").write_text("\n\n")
    with pytest.raises(BadInput, match="holds no names"):
        read_names(tmp_path / "empty", tokenizer)
    (tmp_path / "rows").write_text('{"label": "x"}\n')
    with pytest.raises(BadInput, match="line 1: this JSON row has no spans"):
        read_names(tmp_path / "rows", tokenizer)
    with pytest.raises(BadConfig):
        EntityReplacement.Config(rate=1.5)


def test_a_text_without_phrases_is_refused(tokenizer: WordPiece, tmp_path: Path, tiny: tuple[str, ...]) -> None:
    ids = 100 + np.arange(1000) % 900
    with write_shards(tmp_path / "data", tokenizer) as writer:
        writer.append(ids, np.ones(1000, bool), lengths=np.full(50, 20), ends=np.arange(1, 51))
        writer.info = {"health": {"entropy_nats": 5.0}}
    with pytest.raises(BadInput, match="repeats no phrases"):
        firth.pretrain(tmp_path / "data", out=tmp_path / "run", recipe="wklm", steps=2, changes=tiny, device="cpu")
