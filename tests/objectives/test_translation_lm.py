"""Translation LM: pairs as sequences of two texts, positions that start again, masks in both, language segments."""

import numpy as np
import pytest

import firth
from firth import samples
from firth.data.loader import BatchAddress, Packs
from firth.data.packing import lay_out
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.objectives.translation_lm import NAME, TranslationLM
from firth.tokenizers import Tokenizer
from firth.tokenizers import load as load_tokenizer

LENGTH = 48


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """English prose, and English lines with Chinese ones as their translations, some of several sentences."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = {}
    for language, longest in (("en", 40), ("zh", 12)):
        found = [line.strip() for line in samples.prose(language).read_text().split("\n")]
        # Three of four are short; the others must be cut.
        lines[language] = [line if i % 4 == 0 else line[:longest] for i, line in enumerate(found) if line]
    pairs = zip(lines["zh"], lines["en"], strict=False)
    (folder / "pairs.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in pairs))
    texts = [f"en={samples.prose('en')}", f"zh+en={folder}/pairs.tsv"]
    firth.prepare(texts, out=folder / "data", vocab_size=1000, processes=0)
    return Shards.open(folder / "data")


@pytest.fixture(scope="module")
def tokenizer(mixed: Shards) -> Tokenizer:
    return load_tokenizer(mixed.tokenizer_folder)


def make(mixed: Shards, tokenizer: Tokenizer, **changes: bool) -> Packs:
    shape = Bert.Config(width=8, num_layers=1, num_heads=1, ffn_width=8, vocab_size=len(tokenizer.vocab))
    config = TranslationLM.Config(**changes)
    goal = TranslationLM(config, Bert(shape), vocab=tokenizer.vocab, max_length=LENGTH, seed=5)
    batches = BatchConfig(max_length=LENGTH, tokens=1024, segments="languages", languages=("zh", "en"))
    view = CorpusView(mixed, np.arange(mixed.num_documents))
    return Packs(view, [goal], batches, specials=tokenizer.vocab, seed=5)


def test_a_pair_is_one_sequence_and_other_documents_are_runs(mixed: Shards, tokenizer: Tokenizer) -> None:
    packs = make(mixed, tokenizer)
    plan = packs._plan(0).plan
    is_pair_S = plan.labels[NAME] > 0
    view = packs.stream
    assert is_pair_S.sum() == view.is_pair_D.sum() > 50
    assert (~is_pair_S).sum() > 100
    assert plan.lengths_S.max() <= LENGTH
    sizes_S2 = plan.pieces_SP2[:, :, 1] - plan.pieces_SP2[:, :, 0]
    assert sizes_S2[is_pair_S].min() > 0
    assert not sizes_S2[~is_pair_S, 1].any()
    # Chinese (1 in the shards) comes first in a pair, and each piece is in one language alone.
    for piece, language in ((0, 1), (1, 0)):
        for place in (plan.pieces_SP2[is_pair_S, piece, 0], plan.pieces_SP2[is_pair_S, piece, 1] - 1):
            assert set(mixed.token_languages(place)) == {language}
    # A pair that fits is whole: together its pieces are its document.
    ends_D = view.ends_S[view.bounds_D1[1:] - 1][view.is_pair_D]
    is_whole = plan.lengths_S[is_pair_S] < LENGTH
    assert is_whole.sum() > 20
    assert set(plan.pieces_SP2[is_pair_S, 1, 1][is_whole]) <= set(ends_D.tolist())
    assert np.array_equal(plan.pieces_SP2[is_pair_S, 0, 1][is_whole], plan.pieces_SP2[is_pair_S, 1, 0][is_whole])


@pytest.mark.parametrize("restart", [True, False])
def test_positions_start_again_in_the_translation(restart: bool, mixed: Shards, tokenizer: Tokenizer) -> None:
    packs = make(mixed, tokenizer, restart_positions=restart)
    batch = packs[BatchAddress(0, 1)]
    rows = packs._plan(0).packs[1]
    second_B = packs._plan(0).plan.labels[NAME][rows]
    bounds = batch.bounds_B1.tolist()
    num_pairs = 0
    for row, second in enumerate(second_B.tolist()):
        positions = batch.positions_N[bounds[row] : bounds[row + 1]].tolist()
        if restart and second:
            num_pairs += 1
            expected = [*range(second), *range(len(positions) - second)]
            assert batch.ids_N[bounds[row] + second - 1] == tokenizer.vocab.sep
        else:
            expected = list(range(len(positions)))
        assert positions == expected
    assert num_pairs > 2 or not restart


def test_segments_are_languages(mixed: Shards, tokenizer: Tokenizer) -> None:
    """By the numbers of the model (zh 0, en 1), not by those of the shards (en 0, zh 1)."""
    packs = make(mixed, tokenizer)
    batch = packs[BatchAddress(0, 1)]
    second_B = packs._plan(0).plan.labels[NAME][packs._plan(0).packs[1]]
    bounds = batch.bounds_B1.tolist()
    for row, second in enumerate(second_B.tolist()):
        segments = batch.segments_N[bounds[row] : bounds[row + 1]].tolist()
        first_size = second or 0
        assert segments == [0] * first_size + [1] * (len(segments) - first_size)


def test_both_texts_are_masked_and_their_draws_differ(mixed: Shards, tokenizer: Tokenizer) -> None:
    packs = make(mixed, tokenizer)
    plan = packs._plan(0).plan
    rows = np.flatnonzero(plan.labels[NAME])
    pack = lay_out(mixed, plan, rows, specials=tokenizer.vocab, num_tokens=len(rows) * LENGTH, max_length=LENGTH)
    is_translation_N = pack.positions_N >= pack.labels[NAME][pack.sequence_N]
    packs.objectives[0].corrupt(pack, 0)
    count = int((pack.targets["masked_lm_labels"] >= 0).sum())
    chosen = pack.targets["masked_lm_positions"][:count]
    for is_part in (is_translation_N, ~is_translation_N):
        rate = is_part[chosen].sum() / (is_part & pack.ordinary_N).sum()
        assert rate == pytest.approx(0.15, abs=0.02)
    # If draws went by the new positions, the places chosen in a text would be chosen in its translation.
    places = set(zip(pack.sequence_N[chosen], pack.positions_N[chosen], is_translation_N[chosen], strict=True))
    both = sum((row, place, True) in places and (row, place, False) in places for row, place, _ in places)
    assert both < 0.5 * len(places)
