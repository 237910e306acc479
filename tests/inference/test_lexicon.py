"""Words and their vectors: nearest words, analogies, tests and maps against gensim and brute force."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gensim.models import KeyedVectors

import firth
from firth import rng
from firth.convert.mapped import map_tensor, tensor_places, write_rows
from firth.convert.vector_files import open_vectors, write_vectors
from firth.errors import BadConfig, BadInput, Damaged, Unsupported
from firth.inference.lexicon import Lexicon, open_lexicon
from firth.report.scatter import plane, write_map
from firth.words import map_words

WORDS = [
    *(f"word{i}" for i in range(90)),
    "king",
    "man",
    "woman",
    "queen",
    "青蛙",
    "池塘",
    "Ice",
    "ice",
    "frog",
    "frogs",
]


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    rows = rng.uniform(rng.key("lexicon"), np.arange(100)[:, None], np.arange(12)) - 0.5
    rows[93] = rows[90] - rows[91] + rows[92] + 0.01 * rows[0]
    return rows.astype(np.float32)


@pytest.fixture(scope="module")
def file(rows: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "vectors.txt"
    write_vectors(path, [(WORDS, rows)], count=100, width=12, kind="word2vec")
    return path


@pytest.fixture(scope="module")
def model(file: Path) -> Path:
    firth.import_model(file, out=file.parent / "model")
    return file.parent / "model"


@pytest.fixture(scope="module")
def theirs(file: Path) -> KeyedVectors:
    return KeyedVectors.load_word2vec_format(file)


def test_neighbours_are_gensims(model: Path, theirs: KeyedVectors) -> None:
    for word in ("word3", "青蛙", "queen"):
        wanted, found = theirs.most_similar(word, topn=7), firth.load(model).neighbours(word, top=7)
        assert [w for w, _ in found] == [w for w, _ in wanted]
        assert np.allclose([c for _, c in found], [c for _, c in wanted], atol=1e-5)
    assert len(firth.load(model).neighbours("king", top=500)) == 99
    for top in (0, -1):
        with pytest.raises(BadConfig, match="top must be at least 1"):
            firth.load(model).neighbours("king", top=top)


def test_analogies_are_gensims(model: Path, theirs: KeyedVectors) -> None:
    wanted = theirs.most_similar(positive=["king", "woman"], negative=["man"], topn=5)
    found = firth.load(model).analogy("king", "man", "woman", top=5)
    assert found[0][0] == "queen"
    assert [w for w, _ in found] == [w for w, _ in wanted]
    assert np.allclose([c for _, c in found], [c for _, c in wanted], atol=1e-5)


def test_a_quantised_model_has_the_same_words(model: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    firth.export(model, out=few, kind="quantised")
    found = firth.load(few).neighbours("queen", top=3)
    wanted = firth.load(model).neighbours("queen", top=3)
    assert [word for word, _ in found] == [word for word, _ in wanted]
    assert np.allclose([cosine for _, cosine in found], [cosine for _, cosine in wanted], atol=0.01)
    assert firth.load(few).analogy("king", "man", "woman", top=1)[0][0] == "queen"


@pytest.mark.parametrize("is_quantised", [False, True])
def test_a_model_folder_is_opened_without_torch(model: Path, tmp_path: Path, is_quantised: bool) -> None:
    if is_quantised:
        firth.export(model, out=tmp_path / "few", kind="quantised")
        model = tmp_path / "few"
    script = (
        f"import sys; sys.argv = ['firth', 'neighbours', {str(model)!r}, 'ice']\n"
        "import firth.cli\n"
        "try: firth.cli.main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 11
    assert done.stdout.splitlines()[-1] == "False"
    assert isinstance(open_lexicon(model).rows_VD, np.memmap) != is_quantised


def test_an_imported_model_embeds_means_of_words(model: Path, rows: np.ndarray) -> None:
    loaded = firth.load(model)
    vectors = loaded.embed(["king queen", "青蛙池塘", "nothing known", "Ice"])
    assert np.allclose(vectors[0], rows[[90, 93]].mean(0), atol=1e-6)
    assert np.allclose(vectors[1], rows[[94, 95]].mean(0), atol=1e-6)
    assert not vectors[2].any()
    assert np.allclose(vectors[3], rows[96], atol=1e-6)  # the words have capitals, so texts keep theirs


def test_a_berts_input_table_has_neighbours_too(run: Path) -> None:
    loaded = firth.load(run)
    table = loaded.encoder.embeddings.tokens.weight.detach().numpy()
    place = loaded.tokenizer.vocab.ids["the"]
    cosines = table @ table[place] / np.linalg.norm(table, axis=1)
    cosines[[place, *loaded.tokenizer.vocab.specials]] = -9
    cosines[len(loaded.tokenizer.vocab) :] = -9
    assert loaded.neighbours("The", top=1)[0][0] == loaded.tokenizer.vocab.tokens[cosines.argmax()]


@pytest.mark.parametrize("kind", ["word2vec", "word2vec-binary", "vec"])
def test_export_brings_back_the_file(model: Path, rows: np.ndarray, kind: str, tmp_path: Path) -> None:
    assert firth.export(model, out=tmp_path / "out", kind=kind)["words"] == 100
    [(words, found)] = open_vectors(tmp_path / "out").blocks()
    assert words == WORDS
    assert np.array_equal(found, rows)
    with pytest.raises(BadInput, match="already exists"):
        firth.export(model, out=tmp_path / "out")


def test_unknown_words_get_near_spellings(model: Path, command: Callable[..., Any]) -> None:
    with pytest.raises(BadInput, match="does not know the word 'kking'; near spellings: king"):
        firth.load(model).neighbours("kking")
    with pytest.raises(BadInput, match="'青娃'; near spellings: 青蛙"):
        firth.load(model).analogy("king", "青娃", "woman")
    with pytest.raises(BadInput, match="'zzzz', and no word is spelled like it"):
        firth.load(model).neighbours("zzzz")
    code, out, err = command("neighbours", model, "[UNK]")
    assert (code, out) == (2, "")
    assert err.startswith("firth: The model does not know the word '[UNK]'")


def test_a_server_looks_for_near_spellings_among_fewer_words(model: Path) -> None:
    with pytest.raises(BadInput, match="near spellings: king"):
        open_lexicon(model, spelling_candidates=96).vector("kking")
    with pytest.raises(BadInput, match="no word is spelled like it"):
        open_lexicon(model, spelling_candidates=90).vector("kking")


def test_figures_of_word_pairs_are_gensims(model: Path, theirs: KeyedVectors, tmp_path: Path) -> None:
    pairs = [
        ("word1", "word2", 3.5),
        ("king", "queen", 9),
        ("青蛙", "池塘", 7.25),
        ("ice", "frog", 1),
        ("no", "ice", 2),
    ]
    path = tmp_path / "pairs.txt"
    path.write_text("word1\tword2\tscore\n" + "".join(f"{a}\t {b}\t{c}\n" for a, b, c in pairs), "utf-8")
    (tmp_path / "plain.txt").write_text("".join(f"{a}\t{b}\t{c}\n" for a, b, c in pairs), "utf-8")
    found = firth.evaluate(model, words=[path])["pairs"]
    wanted = theirs.evaluate_word_pairs(tmp_path / "plain.txt", case_insensitive=False)
    assert found["spearman"] == pytest.approx(wanted[1][0], abs=1e-6)
    assert (found["pairs"], found["coverage"]) == (5, 0.8)


def test_figures_of_analogies_are_gensims(model: Path, theirs: KeyedVectors, tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    draws = rng.below(rng.key("questions"), 90, np.arange(40)[:, None], np.arange(4))
    lines = [" ".join(f"word{i}" for i in row) for row in draws if len(set(row.tolist())) == 4]
    easy = "man king woman queen\n"
    path.write_text(": royal\n" + easy + "man king frogs nobody\n: random\n" + "\n".join(lines), "utf-8")
    found = firth.evaluate(model, words=[path])["questions"]
    accuracy, sections = theirs.evaluate_word_analogies(path, case_insensitive=False)
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["sections"]["royal"] == {"accuracy": 1.0, "questions": 2, "coverage": 0.5}
    right = len(sections[1]["correct"])
    assert found["sections"]["random"]["accuracy"] == pytest.approx(right / len(lines))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("king queen 9\nman woman\n", "line 2: not two words and a number"),
        (": royal\nking queen man\n", "line 2: 3 words where an analogy has 4"),
        ("", "is empty; put two words and a number, or the four words of an analogy, on each line"),
        ("\n\n", "has no questions; put two words and a number, or the four words"),
        (": royal\n: plural\n", "names sections, but has no questions"),
        ("header only\n", "no line with two words and a number"),
    ],
)
def test_bad_files_of_questions(content: str, says: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text(content)
    with pytest.raises(BadInput, match=rf"bad\.txt.*{says}"):
        firth.evaluate(model, words=[tmp_path / "bad.txt"])


def test_the_plane_keeps_what_differs_most(rows: np.ndarray) -> None:
    flat = plane(rows)
    centred = rows - rows.mean(0)
    values = np.linalg.eigvalsh(centred.T @ centred)[::-1]
    assert np.allclose((flat**2).sum(0), values[:2], rtol=1e-4)
    assert abs(flat[:, 0] @ flat[:, 1]) < 1e-4
    assert np.allclose(plane(rows[:2])[:, 1], 0, atol=1e-6)


def test_a_map_shows_every_word(model: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    words = ["king", "queen", "青蛙", "池塘", "frog", "<&>"]
    code, _, err = command("map", model, *words[:-1], "--out", tmp_path / "map.svg")
    assert code == 0, err
    root = ET.parse(tmp_path / "map.svg").getroot()
    texts = [node for node in root.iter() if node.tag.endswith("text")]
    assert [node.text for node in texts] == words[:-1]
    assert len({(node.get("x"), node.get("y")) for node in texts}) == 5
    write_map(tmp_path / "odd.svg", ["<&>", "b"], np.eye(2))
    assert "&lt;&amp;&gt;" in (tmp_path / "odd.svg").read_text()
    with pytest.raises(BadInput, match=r"neither \.svg nor \.png"):
        map_words(model, ["king", "queen"], out=tmp_path / "map.gif")
    for too_few in (["king"], []):
        with pytest.raises(BadInput, match="at least two"):
            map_words(model, too_few, out=tmp_path / "one.svg")


def test_a_map_does_not_overwrite_a_file(model: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    out = tmp_path / "map.svg"
    out.write_text("mine")
    asked = ("map", model, "king", "queen", "--out", out)
    code, _, err = command(*asked)
    assert code != 0
    assert err == f"firth: {out} already exists; choose another --out or remove it.\n"
    assert out.read_text() == "mine"
    out.unlink()
    assert command(*asked).code == 0
    assert out.read_text().startswith("<svg")


def test_words_without_others_have_no_neighbours(tmp_path: Path, command: Callable[..., Any]) -> None:
    vectors = tmp_path / "one.txt"
    write_vectors(vectors, [(["king"], np.ones((1, 4), np.float32))], count=1, width=4, kind="word2vec")
    one = tmp_path / "one"
    firth.import_model(vectors, out=one)
    shown = command("neighbours", one, "king")
    assert (shown.code, shown.out) == (0, "")
    assert shown.err == f"{one} has no word besides 'king', so 'king' has no neighbours.\n"
    assert json.loads(command("neighbours", one, "king", "--json").out) == {"words": []}
    assert "so none can be the answer" in command("analogy", one, "king", "king", "king").err


def test_a_model_without_a_head_is_refused_whatever_the_text(
    model: Path, data: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    for text in (data, tmp_path):  # prepared with another tokenizer, and not prepared at all
        code, _, err = command("evaluate", model, "--data", text)
        assert code != 0
        assert "has no pre-training head, so there is nothing to evaluate on plain text" in err
        assert "prepare" not in err


def test_a_map_as_png(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("matplotlib")
    map_words(model, ["king", "queen", "frog"], out=tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    assert "not found" not in caplog.text


def test_commands_print_and_speak_json(model: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    shown = command("neighbours", model, "king", "--top", 2).out.splitlines()
    assert len(shown) == 2
    row = json.loads(command("analogy", model, "king", "man", "woman", "--top", 1, "--json").out)["words"][0]
    assert row["word"] == "queen"
    assert 0.9 < row["score"] <= 1
    (tmp_path / "q.txt").write_text(": royal\nman king woman queen\n")
    assert "royal" in command("evaluate", model, "--words", tmp_path / "q.txt").out
    figures = json.loads(command("evaluate", model, "--words", tmp_path / "q.txt", "--json").out)
    assert figures["q"]["accuracy"] == 1
    code, _, err = command("evaluate", model)
    assert (code, "--data or --words" in err) == (2, True)


def test_folders_without_words_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"absent does not exist; name a model's folder"):
        open_lexicon(tmp_path / "absent")
    with pytest.raises(BadInput, match="does not hold a model with word vectors"):
        open_lexicon(tmp_path)
    with pytest.raises(BadInput, match="it is prepared text; `firth pretrain` makes a model of it"):
        firth.export(data, out=tmp_path / "out")
    write_rows(tmp_path / "model.safetensors", "strange", [np.ones((2, 2))])
    with pytest.raises(Unsupported, match=r"without a table of words; take word vectors .* or a BERT"):
        map_words(tmp_path, ["king", "queen"], out=tmp_path / "map.svg")
    (tmp_path / "run.toml").touch()
    with pytest.raises(BadInput, match="the run is not finished; continue it with `resume=True`"):
        open_lexicon(tmp_path)


def test_empty_words_and_words_written_twice() -> None:
    small = Lexicon({"医院": 0, "病人": 1}, np.eye(2), compose=lambda _: None)
    with pytest.raises(BadInput, match="'医院院院'; near spellings: 医院"):
        small.vector("医院院院")
    for word in ("", " "):
        with pytest.raises(BadInput, match="An empty word has no vector; give a word"):
            small.neighbours(word)


def test_mapped_tensors(tmp_path: Path) -> None:
    path = tmp_path / "rows.safetensors"
    blocks = [np.arange(6, dtype=np.float32).reshape(3, 2), np.full((1, 2), 9, np.float32)]
    assert write_rows(path, "rows", blocks) == 4
    assert np.array_equal(map_tensor(path, "rows"), np.concatenate(blocks))
    assert [*tensor_places(path)] == ["rows"]
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(Damaged, match="ends within rows"):
        map_tensor(path, "rows")
    path.write_bytes(b"\x08\0\0\0\0\0\0\0not json")
    with pytest.raises(Damaged, match="not a safetensors file"):
        tensor_places(path)
