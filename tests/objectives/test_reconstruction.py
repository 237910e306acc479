"""What MASS, T5 and BART read and write, in 1,000 random documents of English and Chinese."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import firth
from firth import objectives, rng, samples, tokenizers
from firth.checkpoint import make_objective
from firth.corpus.sentences import split
from firth.data.loader import BatchAddress, Packs, load
from firth.data.packing import Pack, lay_out
from firth.data.settings import BatchConfig
from firth.data.shards import Shards, write_shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.encoders.transformer import Transformer
from firth.errors import BadConfig
from firth.nn.encoder_decoder import output_scores
from firth.nn.likelihood import IGNORE
from firth.objectives.reconstruction import ReconstructionObjective
from firth.tensors import Batch
from firth.tokenizers.sentinels import with_sentinels
from firth.tokenizers.vocab import Vocab
from firth.tokenizers.wordpiece import WordPiece

LENGTH = 64
NAMES = ("mass", "span_corruption", "denoising")
LANGUAGES = ("en", "zh")
DOCUMENTS = 500
"""Of each language."""
Maker = Callable[..., ReconstructionObjective]


@pytest.fixture(scope="module")
def documents(tokenizer: WordPiece, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shards]:
    """Documents of 1 to 8 sentences, drawn from the embedded prose, for each language."""
    found = {}
    for language in LANGUAGES:
        lines = samples.prose(language).read_text("utf-8").split("\n")
        sentences = [sentence for line in lines for sentence in split(line)]
        encoded = [pair for pair in tokenizer.word_starts_batch(sentences) if len(pair[0])]
        key = rng.key("documents", language)
        sizes = 1 + rng.below(key, 8, np.arange(DOCUMENTS), 0)
        drawn = [encoded[i] for i in rng.below(key, len(encoded), np.arange(sizes.sum()), 1)]
        folder = tmp_path_factory.mktemp(language) / "data"
        with write_shards(folder, tokenizer) as writer:
            writer.append(
                np.concatenate([ids for ids, _ in drawn]),
                np.concatenate([starts for _, starts in drawn]),
                lengths=np.array([len(ids) for ids, _ in drawn]),
                ends=np.cumsum(sizes),
            )
            writer.info = {"health": {"entropy_nats": 7.0}}
        found[language] = Shards.open(folder)
    return found


@pytest.fixture(scope="module")
def make(tokenizer: WordPiece, shrink: Callable[[Any], Any]) -> Maker:
    extended = with_sentinels(tokenizer, 40)
    encoder = Transformer(replace(shrink(Transformer.Config()), vocab_size=len(extended.vocab)))

    def build(name: str, *, max_length: int = LENGTH, **changes: Any) -> ReconstructionObjective:
        config = objectives.resolve(name).Config(**changes)
        made = make_objective(name, config, encoder, extended, max_length=max_length, seed=2)
        assert isinstance(made, ReconstructionObjective)
        return made

    return build


class Sequence:
    """One sequence before and after corruption."""

    def __init__(self, before: Pack, after: Pack, number: int, vocab: Vocab, name: str) -> None:
        assert after.source is not None
        first = np.flatnonzero(before.rows_B == after.rows_B[number])[0]
        place = before.sequence_N == first
        self.text = before.ids_N[place & before.ordinary_N].tolist()
        # The first token of a text counts as the start of a word.
        self.starts = [True, *before.word_starts_N[place & before.ordinary_N].tolist()[1:]]
        self.framed = after.source.ids_N[after.source.sequence_N == number].tolist()
        frame = vocab.frame
        opening, closing = len(frame.opening), len(frame.closing)
        self.source = self.framed[opening : len(self.framed) - closing]
        assert self.framed[:opening] == list(frame.opening)
        assert self.framed[len(self.framed) - closing :] == list(frame.closing)
        self.inputs = after.ids_N[after.sequence_N == number].tolist()
        self.positions = after.positions_N[after.sequence_N == number].tolist()
        labels = after.targets[f"{name}_labels"][: len(after.ids_N)]
        self.labels = labels[after.sequence_N == number].tolist()
        self.sentences: list[list[int]] = []
        if before.sentence_starts_N is not None:
            for token, starts in zip(self.text, before.sentence_starts_N[place & before.ordinary_N], strict=True):
                if starts or not self.sentences:
                    self.sentences.append([])
                self.sentences[-1].append(token)


def laid(goal: ReconstructionObjective, shards: Shards, plan: Any, rows: np.ndarray) -> Pack:
    sizes = {"num_tokens": 4 * LENGTH * len(rows), "source_tokens": 4 * LENGTH * len(rows)}
    return lay_out(shards, plan, rows, specials=goal.vocab, max_length=goal.max_length, **sizes)


def sequences(goal: ReconstructionObjective, shards: Shards, epoch: int = 0) -> Iterator[Sequence]:
    plan = goal.sequences(CorpusView(shards, np.arange(shards.num_documents)), epoch)
    found = 0
    for rows in np.array_split(np.arange(len(plan)), max(1, len(plan) // 40)):
        before, after = laid(goal, shards, plan, rows), laid(goal, shards, plan, rows)
        goal.corrupt(after, epoch)
        for number in range(len(after.rows_B)):
            found += 1
            yield Sequence(before, after, number, goal.vocab, goal.name)
    # A target that is longer than any usual one is left out, which is rare.
    assert found > 0.99 * len(plan)


def restored(sequence: Sequence, goal: ReconstructionObjective) -> list[int]:
    """The original text from what is read and what is written."""
    labels = sequence.labels
    if goal.name == "denoising":
        assert labels[-1] == goal.vocab.sep
        return labels[:-1]
    if goal.name == "mass":
        text = list(sequence.source)
        text[sequence.positions[0] : sequence.positions[-1] + 1] = labels
        return text
    assert labels[-1] == goal.vocab.sep
    sentinels = goal.vocab.sentinels.tolist()
    spans: dict[int, list[int]] = {}
    current = -1
    for token in labels[:-1]:
        if token in sentinels:
            current = token
            spans[current] = []
        else:
            spans[current].append(token)
    assert list(spans) == sentinels[: len(spans)]
    assert spans[current] == []  # the last sentinel stands for nothing
    text = []
    for token in sequence.source:
        text += spans.pop(token) if token in spans else [token]
    assert list(spans) == [current]
    return text


def test_the_corpus_is_large_enough(documents: dict[str, Shards]) -> None:
    assert sum(shards.num_documents for shards in documents.values()) == 1000
    assert all(shards.num_tokens > 20_000 for shards in documents.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_original_can_be_restored(documents: dict[str, Shards], make: Maker, name: str, language: str) -> None:
    goal = make(name)
    for sequence in sequences(goal, documents[language]):
        assert restored(sequence, goal) == sequence.text
        assert sequence.inputs[1:] == sequence.labels[:-1]
        start = goal.vocab.mask if name == "mass" else goal.vocab.cls
        assert sequence.inputs[0] == start
        assert not {goal.vocab.pad, goal.vocab.cls, goal.vocab.sep} & set(sequence.source)


@pytest.mark.parametrize("language", LANGUAGES)
def test_mass_takes_out_half_of_every_text(documents: dict[str, Shards], make: Maker, language: str) -> None:
    goal = make("mass")
    tokens = taken = masked = other = same = 0
    for sequence in sequences(goal, documents[language]):
        first, last = sequence.positions[0], sequence.positions[-1]
        assert sequence.positions == list(range(first, last + 1))
        assert sequence.starts[first]
        assert last + 1 == len(sequence.text) or sequence.starts[last + 1]
        assert sequence.source[:first] == sequence.text[:first]
        assert sequence.source[last + 1 :] == sequence.text[last + 1 :]
        tokens += len(sequence.text)
        taken += len(sequence.labels)
        for read, original in zip(sequence.source[first : last + 1], sequence.labels, strict=True):
            masked += read == goal.vocab.mask
            same += read == original
            other += read not in (goal.vocab.mask, original)
    assert abs(taken / tokens - 0.5) < 0.02
    assert abs(masked / taken - 0.8) < 0.015
    assert abs(same / taken - 0.1) < 0.015
    assert abs(other / taken - 0.1) < 0.015


@pytest.mark.parametrize("language", LANGUAGES)
def test_spans_have_t5s_share_and_length(documents: dict[str, Shards], make: Maker, language: str) -> None:
    goal = make("span_corruption")
    sentinels = goal.vocab.sentinels.tolist()
    tokens = taken = spans = 0
    for epoch in range(2):
        for sequence in sequences(goal, documents[language], epoch):
            if len(sequence.text) < 30:
                continue  # every text has a span, so short ones have more than their share
            tokens += len(sequence.text)
            spans += sum(token in sentinels for token in sequence.source)
            taken += sum(token not in sentinels for token in sequence.labels) - 1
    assert tokens > 20_000
    assert abs(taken / tokens - 0.15) < 0.005
    assert 2.7 < taken / spans < 3.3


@pytest.mark.parametrize("language", LANGUAGES)
def test_spans_are_whole_words_that_do_not_touch(documents: dict[str, Shards], make: Maker, language: str) -> None:
    goal = make("span_corruption", rate=0.3)
    sentinels = set(goal.vocab.sentinels.tolist())
    at_start = at_end = several = total = 0
    for sequence in sequences(goal, documents[language]):
        place = 0
        lengths = span_lengths(sequence.labels[:-1], sentinels)
        for token, following in zip(sequence.source, [*sequence.source[1:], -1], strict=True):
            assert sequence.starts[place] or token not in sentinels
            place += lengths.pop(0) if token in sentinels else 1
            assert place == len(sequence.starts) or sequence.starts[place] or token not in sentinels
            assert not {token, following} <= sentinels
        total += 1
        several += sum(token in sentinels for token in sequence.source) > 1
        at_start += sequence.source[0] in sentinels
        at_end += sequence.source[-1] in sentinels
    # The first and the last word are in a span about as often as others.
    assert several > 300
    assert 0.2 < at_start / total < 0.4
    assert 0.2 < at_end / total < 0.4


def span_lengths(labels: list[int], sentinels: set[int]) -> list[int]:
    marks = [place for place, token in enumerate(labels) if token in sentinels]
    return [after - before - 1 for before, after in pairwise(marks)]


NOTHING = {"infill": 0.0, "permute": 0.0}


@pytest.mark.parametrize("language", LANGUAGES)
def test_infilling_has_barts_share_and_length(documents: dict[str, Shards], make: Maker, language: str) -> None:
    goal = make("denoising", permute=0.0)
    mask = goal.vocab.mask
    tokens = words = left = masks = 0
    for epoch in range(2):
        for sequence in sequences(goal, documents[language], epoch):
            tokens += len(sequence.text)
            words += sum(sequence.starts)
            kept = [token for token in sequence.source if token != mask]
            left += len(kept)
            masks += len(sequence.source) - len(kept)
            assert is_subsequence(kept, sequence.text)
    assert abs(1 - left / tokens - 0.3) < 0.01
    # Three words on average with the empty spans; the last span of a text is cut where the share is reached.
    assert 2.5 < 0.3 * words / masks < 3.1


def is_subsequence(part: list[int], whole: list[int]) -> bool:
    rest = iter(whole)
    return all(token in rest for token in part)


@pytest.mark.parametrize("language", LANGUAGES)
def test_spans_to_fill_are_whole_words(documents: dict[str, Shards], make: Maker, language: str) -> None:
    """Of every word of several tokens either all or none are left, where the mask tells which."""
    goal = make("denoising", permute=0.0, infill=0.2)
    mask = goal.vocab.mask
    inside = 0
    for sequence in sequences(goal, documents[language]):
        # Cut at the first mask: what is before it is text from the start.
        if mask in sequence.source:
            place = sequence.source.index(mask)
            assert sequence.source[:place] == sequence.text[:place]
            assert place == len(sequence.text) or sequence.starts[place]
            inside += not all(sequence.starts)
    assert inside > 200


@pytest.mark.parametrize("language", LANGUAGES)
def test_masking_and_deletion_go_by_words(documents: dict[str, Shards], make: Maker, language: str) -> None:
    masking = make("denoising", **NOTHING, mask=0.2)
    tokens = masked = 0
    for sequence in sequences(masking, documents[language]):
        assert len(sequence.source) == len(sequence.text)
        is_masked = [token == masking.vocab.mask for token in sequence.source]
        for place in range(1, len(is_masked)):
            assert sequence.starts[place] or is_masked[place] == is_masked[place - 1]
        tokens += len(is_masked)
        masked += sum(is_masked)
    assert abs(masked / tokens - 0.2) < 0.01
    deleting = make("denoising", **NOTHING, delete=0.2)
    left = 0
    for sequence in sequences(deleting, documents[language]):
        assert is_subsequence(sequence.source, sequence.text)
        left += len(sequence.source)
    assert abs(1 - left / tokens - 0.2) < 0.01


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_mix_keeps_each_share(documents: dict[str, Shards], make: Maker, language: str) -> None:
    goal = make("denoising", infill=0.2, mask=0.1, delete=0.15, rotate=0.5)
    tokens = left = 0
    for sequence in sequences(goal, documents[language]):
        tokens += len(sequence.text)
        left += sum(token != goal.vocab.mask for token in sequence.source)
        assert restored(sequence, goal) == sequence.text
    assert abs(left / tokens - 0.55) < 0.01


@pytest.mark.parametrize("language", LANGUAGES)
def test_sentences_change_places_whole(documents: dict[str, Shards], make: Maker, language: str) -> None:
    goal = make("denoising", infill=0.0)
    changed = several = 0
    for sequence in sequences(goal, documents[language]):
        assert sorted(sequence.source) == sorted(sequence.text)
        assert split_into(sequence.source, sequence.sentences)
        several += len(sequence.sentences) > 2
        changed += len(sequence.sentences) > 2 and sequence.source != sequence.text
    assert several > 150
    assert changed > 0.7 * several
    still = make("denoising", **NOTHING)
    assert all(sequence.source == sequence.text for sequence in sequences(still, documents[language]))


def split_into(text: list[int], sentences: list[list[int]]) -> bool:
    """Whether a text is these sentences in any order."""
    if not text:
        return not sentences
    for place, sentence in enumerate(sentences):
        rest = sentences[:place] + sentences[place + 1 :]
        if text[: len(sentence)] == sentence and split_into(text[len(sentence) :], rest):
            return True
    return False


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_text_is_rotated_at_a_word(documents: dict[str, Shards], make: Maker, language: str) -> None:
    goal = make("denoising", **NOTHING, rotate=0.6)
    rotated = total = 0
    for sequence in sequences(goal, documents[language]):
        turns = [place for place, starts in enumerate(sequence.starts) if starts]
        assert any(sequence.source == sequence.text[place:] + sequence.text[:place] for place in turns)
        rotated += sequence.source != sequence.text
        total += 1
    assert abs(rotated / total - 0.6) < 0.08  # a rotation that begins with the first word changes nothing


@pytest.mark.parametrize("name", NAMES)
def test_draws_do_not_depend_on_the_pack(documents: dict[str, Shards], make: Maker, name: str) -> None:
    goal = make(name)
    shards = documents["zh"]
    plan = goal.sequences(CorpusView(shards, np.arange(shards.num_documents)), 3)
    found = []
    for rows in ([5, 9, 40], [77, 9, 3, 6], [9]):
        before, after = (laid(goal, shards, plan, np.array(rows)) for _ in range(2))
        goal.corrupt(after, 3)
        one = Sequence(before, after, rows.index(9), goal.vocab, name)
        found.append((one.framed, one.inputs, one.labels, one.positions))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_fresh_draws_differ_between_epochs(documents: dict[str, Shards], make: Maker, name: str, fresh: bool) -> None:
    goal = make(name, fresh=fresh)
    epochs = [[one.framed for one in sequences(goal, documents["en"], epoch)] for epoch in (0, 1)]
    assert (epochs[0] == epochs[1]) != fresh


def same(one: Batch, other: Batch) -> bool:
    assert one.source is not None
    assert other.source is not None
    pairs = [(one.ids_N, other.ids_N), (one.bounds_B1, other.bounds_B1), (one.positions_N, other.positions_N)]
    pairs += [(one.source.ids_N, other.source.ids_N), (one.source.bounds_B1, other.source.bounds_B1)]
    pairs += [(one.targets[name], other.targets[name]) for name in one.targets]
    return all(torch.equal(first, second) for first, second in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_the_same_for_any_number_of_workers(documents: dict[str, Shards], make: Maker, name: str) -> None:
    goal = make(name)
    shards = documents["en"]
    config = BatchConfig(max_length=LENGTH, tokens=1024)
    stream = CorpusView(shards, np.arange(shards.num_documents))
    packs = Packs(stream, [goal], config, specials=goal.vocab, seed=5)
    addresses = [BatchAddress(epoch, index) for epoch in (0, 1) for index in range(3)]
    alone = [batch for _, batch in load(packs, addresses, workers=0)]
    with_workers = [batch for _, batch in load(packs, addresses, workers=2)]
    assert all(map(same, alone, with_workers))
    assert len({batch.ids_N.shape for batch in alone}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_packs_are_full_and_lose_next_to_nothing(documents: dict[str, Shards], make: Maker, name: str) -> None:
    goal = make(name)
    for language, shards in documents.items():
        config = BatchConfig(max_length=LENGTH, tokens=4096)
        stream = CorpusView(shards, np.arange(shards.num_documents))
        packs = Packs(stream, [goal], config, specials=goal.vocab, seed=5)
        num_packs = packs.num_packs(0)
        read = written = real = 0
        for index in range(num_packs):
            batch = packs[BatchAddress(0, index)]
            assert batch.source is not None
            read += int((batch.source.ids_N == goal.vocab.cls).sum())
            written += int((batch.targets[f"{name}_labels"] != IGNORE).sum())
            real += int((batch.source.ids_N != goal.vocab.pad).sum())
        assert read > 0.995 * len(goal.sequences(stream, 0)), language
        # The last pack of an epoch is not full.
        assert (real + written) / (4096 * (num_packs - 1)) > 0.85, language


@pytest.fixture(scope="module", params=["bpe", "t5"])
def other_data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prose prepared with RoBERTa's kind of vocabulary, and with T5's, which has its own sentinels and no opening."""
    texts = [samples.prose(language) for language in LANGUAGES]
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "bpe":
        firth.prepare(texts, out=folder / "data", tokenizer="bpe", vocab_size=1000, processes=0)
        return folder / "data"
    import sentencepiece

    pieces = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "pad_piece": "<pad>"}
    (folder / "t5").mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=",".join(map(str, texts)),
        model_prefix=str(folder / "t5" / "spiece"),
        vocab_size=1400,
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
        **pieces,
    )
    firth.prepare(texts, out=folder / "data", tokenizer=str(folder / "t5"), processes=0)
    return folder / "data"


@pytest.mark.parametrize("name", NAMES)
def test_any_vocabulary_restores_the_original(other_data: Path, shrink: Callable[[Any], Any], name: str) -> None:
    tokenizer = with_sentinels(tokenizers.load(other_data / "tokenizer"), 100)
    shape = replace(shrink(Transformer.Config()), vocab_size=len(tokenizer.vocab))
    config = objectives.resolve(name).Config()
    goal = make_objective(name, config, Transformer(shape), tokenizer, max_length=LENGTH, seed=2)
    assert isinstance(goal, ReconstructionObjective)
    found = 0
    for sequence in sequences(goal, Shards.open(other_data)):
        assert restored(sequence, goal) == sequence.text
        found += 1
    assert found > 200


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_smoothed_in_training_only(
    documents: dict[str, Shards], make: Maker, shrink: Callable[[Any], Any], name: str
) -> None:
    plain, smoothed = make(name), make(name, smoothing=0.2)
    torch.manual_seed(1)
    encoder = Transformer(replace(shrink(Transformer.Config()), vocab_size=len(plain.vocab)))
    shards = documents["en"]
    stream = CorpusView(shards, np.arange(shards.num_documents))
    batch = Packs(stream, [plain], BatchConfig(LENGTH, 1024), specials=plain.vocab, seed=5)[BatchAddress()]
    with torch.no_grad():
        encoder.tokens.weight.mul_(4)  # scores that differ more, so that smoothing matters
        states = encoder(batch)
        scores = output_scores(states)
        labels = batch.targets[f"{name}_labels"]
        wanted = {
            share: float(cross_entropy(scores, labels, ignore_index=IGNORE, reduction="sum", label_smoothing=share))
            for share in (0.0, 0.2)
        }
        assert float(plain.train().loss(states, batch).sums[name]) == pytest.approx(wanted[0.0], rel=1e-5)
        assert float(smoothed.train().loss(states, batch).sums[name]) == pytest.approx(wanted[0.2], rel=1e-5)
        assert float(smoothed.eval().loss(states, batch).sums[name]) == pytest.approx(wanted[0.0], rel=1e-5)
    assert abs(wanted[0.0] - wanted[0.2]) > 1e-3 * wanted[0.0]


def test_an_encoder_without_a_decoder_is_refused(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> None:
    config = objectives.resolve("mass").Config()
    with pytest.raises(BadConfig, match="mass needs an encoder-decoder"):
        make_objective("mass", config, small_bert(), tokenizer, max_length=LENGTH)


def test_a_vocabulary_without_sentinels_is_refused(
    make: Maker, shrink: Callable[[Any], Any], tokenizer: WordPiece
) -> None:
    encoder = Transformer(shrink(Transformer.Config()))
    config = objectives.resolve("span_corruption").Config()
    with pytest.raises(BadConfig, match="sentinel tokens"):
        make_objective("span_corruption", config, encoder, tokenizer, max_length=LENGTH)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mass", {"rate": 0.0}),
        ("mass", {"mask_share": 0.9, "random_share": 0.2}),
        ("span_corruption", {"span_length": 0.5}),
        ("span_corruption", {"sentinels": 1}),
        ("denoising", {"infill": 0.5, "delete": 0.5}),
        ("denoising", {"span_length": 0.5}),
        ("denoising", {"smoothing": 1.0}),
    ],
)
def test_numbers_that_make_no_sense_are_refused(name: str, changes: dict[str, float]) -> None:
    with pytest.raises(BadConfig):
        objectives.resolve(name).Config(**changes)


def test_every_sequence_has_no_more_spans_than_sentinels(
    documents: dict[str, Shards], tokenizer: WordPiece, shrink: Callable[[Any], Any], tmp_path: Path
) -> None:
    few = with_sentinels(tokenizer, 3)
    encoder = Transformer(replace(shrink(Transformer.Config()), vocab_size=len(few.vocab)))
    config = objectives.resolve("span_corruption").Config(sentinels=3, rate=0.4)
    goal = make_objective("span_corruption", config, encoder, few, max_length=LENGTH, seed=2)
    assert isinstance(goal, ReconstructionObjective)
    most = 0
    for sequence in sequences(goal, documents["en"]):
        assert restored(sequence, goal) == sequence.text
        most = max(most, sum(token in goal.vocab.sentinels for token in sequence.source))
    assert most == 2
