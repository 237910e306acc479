"""Texts with languages: how they are read and prepared, and how often sequences of each language are drawn."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import firth
from firth import rng
from firth.corpus.languages import find_sources, language_names, read_sources
from firth.data.health import describe
from firth.data.languages import cut_by_language
from firth.data.loader import BatchAddress, Packs
from firth.data.packing import Plan, lay_out, runs
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.data.vocabulary_sample import sample_texts, smoothed_shares
from firth.encoders.bert import Bert
from firth.errors import BadConfig, BadInput
from firth.objectives.causal_lm import CausalLM
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_sentence import NextSentence
from firth.tokenizers import load as load_tokenizer
from firth.tokenizers.vocab import Vocab

ALPHA = 0.7


def sentence(language: str, number: int) -> str:
    words = {"en": ["the", "small", "dog", "runs", "home"], "de": ["der", "kleine", "hund", "rennt", "heim"]}[language]
    chosen = rng.below(rng.key(language, number), 5, np.arange(9)).tolist()
    return " ".join(words[place] for place in chosen) + f" {number} ."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 English and 60 German documents, and 80 pairs."""
    path = tmp_path_factory.mktemp("languages")
    for language, count in (("en", 400), ("de", 60)):
        (path / f"{language}.txt").write_text("\n\n".join(sentence(language, i) for i in range(count)))
        (path / f"pairs.{language}").write_text("\n".join(f"{sentence(language, 900 + i)} Ja!" for i in range(80)))
    texts = [f"en={path}/en.txt", f"de={path}/de.txt", f"de+en={path}/pairs.de,{path}/pairs.en"]
    firth.prepare(texts, out=path / "data", processes=0)
    return path


@pytest.fixture(scope="module")
def mixed(folder: Path) -> Shards:
    return Shards.open(folder / "data")


def everything(shards: Shards) -> CorpusView:
    return CorpusView(shards, np.arange(shards.num_documents))


def test_every_document_has_its_language(mixed: Shards) -> None:
    assert mixed.language_names == ("en", "de")
    counts = mixed.info["health"]["language_tokens"]
    assert counts == {"en": (mixed.token_languages(np.arange(mixed.num_tokens)) == 0).sum(), "de": counts["de"]}
    assert sum(counts.values()) == mixed.num_tokens
    assert describe(mixed.info["health"])[-1].startswith("languages           en ")
    view = everything(mixed)
    found = Counter(map(tuple, view.languages_D2.tolist()))
    assert found == {(0, 0): 400, (1, 1): 60, (1, 0): 80}
    assert view.is_pair_D.sum() == 80
    tokenizer = load_tokenizer(mixed.tokenizer_folder)
    tokens = np.array(tokenizer.vocab.tokens)[mixed.ids]
    languages = mixed.token_languages(np.arange(mixed.num_tokens))
    assert set(languages[tokens == "dog"]) == {0}
    assert set(languages[tokens == "hund"]) == {1}


def test_the_bytes_do_not_depend_on_workers(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Small chunks, so that documents are spread over several and other processes encode them.
    monkeypatch.setattr("firth.data.encoding.CHUNK", 2000)
    texts = [f"en={folder}/en.txt", f"de={folder}/de.txt", f"de+en={folder}/pairs.de,{folder}/pairs.en"]
    firth.prepare(texts, out=tmp_path / "again", tokenizer=folder / "data" / "tokenizer", processes=2)
    for name in ("ids", "sentences", "documents", "languages"):
        assert (tmp_path / "again" / f"{name}.bin").read_bytes() == (folder / "data" / f"{name}.bin").read_bytes()


def test_text_without_languages_has_no_such_file(data: Path, shards: Shards) -> None:
    assert shards.languages is None
    assert shards.language_names == ()
    assert not (data / "languages.bin").exists()
    assert not everything(shards).is_pair_D.any()


def test_two_columns_are_the_same_pairs(folder: Path, tmp_path: Path) -> None:
    both = zip(
        (folder / "pairs.de").read_text().split("\n"), (folder / "pairs.en").read_text().split("\n"), strict=True
    )
    (tmp_path / "pairs.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in both))
    of_columns = find_sources([f"de+en={tmp_path}/pairs.tsv"])
    of_files = find_sources([f"de+en={folder}/pairs.de,{folder}/pairs.en"])
    assert language_names(of_columns) == ("de", "en")
    columns = [document.lines for document in read_sources(of_columns, documents="line", field="text")]
    files = [document.lines for document in read_sources(of_files, documents="line", field="text")]
    assert columns == files
    assert len(files) == 80


def test_a_line_of_two_pairs_is_kept_in_both(tmp_path: Path) -> None:
    """Long lines that occur again are dropped elsewhere; a pair would lose its half."""
    line = "a very long line that is said in the same words again and again, and once more"
    (tmp_path / "pairs.tsv").write_text(f"{line}\teins .\n{line}\tzwei .\n{line}\teins .\n")
    firth.prepare([f"en+de={tmp_path}/pairs.tsv"], out=tmp_path / "data", processes=0)
    view = everything(Shards.open(tmp_path / "data"))
    assert view.is_pair_D.tolist() == [True, True]


BAD = {
    "lines": ("en+de={0}/two.txt,{0}/three.txt", r"three\.txt, line 3 has no counterpart: .*two\.txt has only 2 lines"),
    "empty": ("en+de={0}/two.txt,{0}/gap.txt", r"two\.txt, line 2: one of the two texts is empty"),
    "columns": ("en+de={0}/two.txt", r"two\.txt, line 1: 1 column\(s\) instead of a text, a tab and its translation"),
    "absent": ("en+de={0}/two.txt,{0}/no.txt", r"no\.txt does not exist"),
    "one language": ("en+en={0}/two.txt,{0}/three.txt", "need two languages"),
    "three files": ("en+de={0}/two.txt,{0}/three.txt,{0}/gap.txt", "or two files and a comma"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_pairs_are_one_sentence(kind: str, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("one\ntwo\n")
    (tmp_path / "three.txt").write_text("eins\nzwei\ndrei\n")
    (tmp_path / "gap.txt").write_text("eins\n \n")
    text, message = BAD[kind]
    with pytest.raises((BadInput, BadConfig), match=message):
        firth.prepare([text.format(tmp_path)], out=tmp_path / "out", processes=0)
    assert not (tmp_path / "out").exists()


def test_either_all_texts_have_a_language_or_none(folder: Path) -> None:
    with pytest.raises(BadConfig, match=r"en\.txt has no language, but other texts have; write it as LANGUAGE="):
        find_sources([f"{folder}/en.txt", f"de={folder}/de.txt"])


def test_a_file_whose_name_has_an_equals_sign_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "en=text.txt").write_text("some text")
    assert find_sources(["en=text.txt"])[0].languages == ()


def test_empty_files_of_two_languages_are_one_sentence(tmp_path: Path) -> None:
    for name in ("en.txt", "de.txt"):
        (tmp_path / name).touch()
    paths = [f"en={tmp_path}/en.txt", f"de={tmp_path}/de.txt"]
    with pytest.raises(BadInput, match=r"en\.txt holds no text"):
        firth.prepare(paths, out=tmp_path / "data")


def test_a_vocabulary_is_learned_from_smoothed_shares(folder: Path) -> None:
    texts = [f"en={folder}/en.txt", f"de={folder}/de.txt"]
    sizes = [(folder / f"{language}.txt").stat().st_size for language in ("en", "de")]
    lines = list(sample_texts(texts, 10**9, seed=3))
    assert lines == list(sample_texts(texts, 10**9, seed=3))
    english = {sentence("en", i) for i in range(400)}
    found = [sum(len(line) for line in lines if (line in english) == is_english) for is_english in (True, False)]
    assert found[0] / sum(found) == pytest.approx(smoothed_shares(sizes, 0.5)[0], abs=0.03)
    assert sum(found) == pytest.approx(sum(sizes), rel=0.1)
    # All German documents, some of them more than once.
    assert {sentence("de", i) for i in range(60)} <= set(lines)


def plain_cut(view: CorpusView, vocab: Vocab, epoch: int = 0) -> Plan:
    return runs(view, 32, frame=vocab.frame, key=rng.key("cut", epoch))


def shares(plan: Plan, shards: Shards) -> dict[tuple[int, int], float]:
    """The share of the tokens by the languages of each sequence's first and last token."""
    first = shards.token_languages(plan.pieces_SP2[:, 0, 0])
    last = shards.token_languages(plan.pieces_SP2[:, -1, 1] - 1)
    sizes = (plan.pieces_SP2[:, :, 1] - plan.pieces_SP2[:, :, 0]).sum(1)
    counted: Counter[tuple[int, int]] = Counter()
    for one, other, size in zip(first.tolist(), last.tolist(), sizes.tolist(), strict=True):
        counted[one, other] += size
    return {kinds: size / sizes.sum() for kinds, size in counted.items()}


def test_draws_match_the_smoothed_shares(mixed: Shards) -> None:
    vocab = load_tokenizer(mixed.tokenizer_folder).vocab
    view = everything(mixed)
    natural = shares(cut_by_language(view, lambda part: plain_cut(part, vocab), alpha=1.0, key=rng.key(0)), mixed)
    wanted = smoothed_shares(list(natural.values()), ALPHA)
    drawn = []
    for epoch in range(5):
        plan = cut_by_language(view, lambda part: plain_cut(part, vocab), alpha=ALPHA, key=rng.key("epoch", epoch))
        found = shares(plan, mixed)
        drawn.append([found[kinds] for kinds in natural])
        # An epoch has about as many tokens as the text.
        assert (plan.pieces_SP2[:, :, 1] - plan.pieces_SP2[:, :, 0]).sum() == pytest.approx(view.num_tokens, rel=0.1)
    assert np.mean(drawn, 0) == pytest.approx(wanted, abs=0.01)
    # The smallest share has grown, the largest has shrunk.
    assert wanted.max() < max(natural.values()) - 0.02


def packs_of(mixed: Shards, *, tokens: int, alpha: float = ALPHA) -> Packs:
    tokenizer = load_tokenizer(mixed.tokenizer_folder)
    encoder = Bert(Bert.Config(width=8, num_layers=1, num_heads=1, ffn_width=8, vocab_size=len(tokenizer.vocab)))
    goal = MaskedLM(MaskedLM.Config(), encoder, vocab=tokenizer.vocab, max_length=32, seed=4)
    config = BatchConfig(max_length=32, tokens=tokens, language_alpha=alpha)
    return Packs(everything(mixed), [goal], config, specials=tokenizer.vocab, seed=4)


def test_draws_do_not_depend_on_packs(mixed: Shards) -> None:
    small, large = packs_of(mixed, tokens=128), packs_of(mixed, tokens=1024)
    assert small.num_packs(2) > 4 * large.num_packs(2)
    for epoch in (0, 2):
        one, other = small._plan(epoch), large._plan(epoch)
        assert np.array_equal(one.plan.pieces_SP2, other.plan.pieces_SP2)
        for planned in (one, other):
            assert sorted(np.concatenate(planned.packs).tolist()) == list(range(len(planned.plan)))
    first, again = packs_of(mixed, tokens=128), packs_of(mixed, tokens=128)
    again[BatchAddress(5, 1)]
    assert first[BatchAddress(1, 3)].ids_N.tolist() == again[BatchAddress(1, 3)].ids_N.tolist()


def test_a_sequence_twice_in_an_epoch_has_two_masks(mixed: Shards) -> None:
    packs = packs_of(mixed, tokens=4096, alpha=0.1)
    planned = packs._plan(0)
    _, first, counts = np.unique(planned.plan.pieces_SP2[:, 0, 0], return_index=True, return_counts=True)
    row = int(first[counts >= 3][0])
    vocab = packs.specials
    pack = lay_out(
        mixed, planned.plan, np.array([row, row + 1, row + 2]), specials=vocab, num_tokens=512, max_length=32
    )
    before = pack.ids_N.copy()
    packs.objectives[0].corrupt(pack, 0)
    is_changed = np.split(before != pack.ids_N, pack.bounds_B1[1:-1])
    assert np.array_equal(*np.split(before, pack.bounds_B1[1:-1])[:2])
    assert not all(np.array_equal(is_changed[0], other) for other in is_changed[1:])


@pytest.mark.parametrize("kind", [NextSentence, CausalLM])
def test_no_sequence_mixes_languages(kind: type, mixed: Shards) -> None:
    """Random second segments are of the same language, and so are the joined documents of a window."""
    tokenizer = load_tokenizer(mixed.tokenizer_folder)
    encoder = Bert(Bert.Config(width=8, num_layers=1, num_heads=1, ffn_width=8, vocab_size=len(tokenizer.vocab)))
    goal = kind(kind.Config(), encoder, vocab=tokenizer.vocab, max_length=48, seed=4)
    view = everything(mixed)
    monolingual = view.part(~view.is_pair_D)
    config = BatchConfig(max_length=48, tokens=512, language_alpha=ALPHA)
    packs = Packs(monolingual, [goal], config, specials=tokenizer.vocab, seed=4)
    tokens = np.array(tokenizer.vocab.tokens)
    seen = Counter()
    for index in range(packs.num_packs(0)):
        batch = packs[BatchAddress(0, index)]
        for ids in np.split(batch.ids_N.numpy(), batch.bounds_B1.numpy()[1:-1]):
            words = set(tokens[ids].tolist())
            kinds = bool(words & {"dog", "the", "small", "home", "runs"}), bool(words & {"hund", "der", "kleine"})
            seen[kinds] += 1
    assert seen[True, True] == 0
    assert min(seen[True, False], seen[False, True]) > 5
