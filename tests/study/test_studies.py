"""Every study can be laid out, and a small one runs from the command to its page, twice with the same figures."""

import io
import json
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import firth
from firth import study as studies
from firth.config import resolve
from firth.errors import BadInput
from firth.lineage import TABLE as RECIPES
from firth.study import ablations, chains, layers, lineage, sets, similarity
from firth.study.design import Study
from firth.study.lineage import System
from firth.study.probe_sets import TEST
from firth.study.running import read_rows
from firth.study.sets import Sources
from firth.study.steps import TABLE
from firth.study.store import Store

NAMES = ", ".join(studies.TABLE)


@pytest.mark.parametrize("name", studies.TABLE)
def test_a_study_is_laid_out(name: str, tmp_path: Path) -> None:
    study: Study = resolve(studies.TABLE, name, "study")
    assert study.name == name
    cells = study.cells(Sources(tmp_path))
    assert {cell.run.step for cell in cells} <= TABLE.keys()
    places = [(cell.system, cell.dataset, cell.seed, cell.x) for cell in cells]
    assert len(set(places)) == len(places)
    for claim in study.claims:
        assert set(claim.text) == {"en", "zh"}
    # A claim about an embedded set has cells on both sides.
    datasets = {cell.dataset for cell in cells}
    decided = [claim for claim in study.claims if not claim.datasets or datasets & set(claim.datasets)]
    assert decided
    for claim in decided:
        assert {claim.better, claim.worse} <= {cell.system for cell in cells if claim.is_about(cell)}
    # A claim about places on the horizontal axis, such as layers, has cells there.
    places_of = {name: {cell.x for cell in cells if cell.system == name} for name in {cell.system for cell in cells}}
    for claim in decided:
        if claim.x is not None:
            worse_x = claim.x if claim.worse_x is None else claim.worse_x
            assert claim.x in places_of[claim.better]
            assert worse_x in places_of[claim.worse]


def test_the_layers_of_studies_are_those_of_the_models() -> None:
    for name, probed in layers.MODELS.items():
        if name != layers.ELMO and (name != sets.MINILM or sets.has_minilm()):
            assert probed.num_layers == firth.load(sets.find_model(name)).encoder.num_layers
    assert f"on {TEST['public']} other sentences ({TEST['embedded']} of" in layers.STUDY.design["en"]


def test_parts_are_the_whole() -> None:
    rows = [str(number) for number in range(23)]
    parts = sets.folds(rows)
    assert len(parts) == sets.FOLDS
    assert sorted(row for part in parts for row in part) == sorted(rows)


def test_a_larger_sample_holds_the_smaller_one(tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    train, _ = sources.labelled("entities-en")
    small = sets.read_rows(sources.sample(train, 5, seed=1, separator=sets.SENTENCE), sets.SENTENCE)
    large = sets.read_rows(sources.sample(train, 9, seed=1, separator=sets.SENTENCE), sets.SENTENCE)
    other = sets.read_rows(sources.sample(train, 5, seed=2, separator=sets.SENTENCE), sets.SENTENCE)
    assert large[:5] == small != other


def test_a_sample_of_a_file_that_was_edited_is_drawn_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    sources = Sources(tmp_path / "files")
    for letter in "ab":
        rows = [f"{letter}{number}" for number in range(12)]
        sets.write_rows(path, rows)
        assert set(sets.read_rows(sources.sample(path, 5, seed=1))) <= set(rows)


def test_parts_are_files(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("".join(f"{number}\n" for number in range(12)))
    parts = Sources(tmp_path / "files").parts(path)
    assert len(parts) == sets.FOLDS
    everything = [str(number) for number in range(12)]
    assert sorted((row for part, _ in parts for row in sets.read_rows(part)), key=int) == everything
    for part, others in parts:
        assert sorted(sets.read_rows(part) + sets.read_rows(others), key=int) == everything


@pytest.mark.parametrize("table", [lineage.SYSTEMS, ablations.SYSTEMS_BY_CHANGE], ids=["lineage", "ablations"])
def test_every_system_has_a_recipe_and_a_sentence(table: Mapping[str, System]) -> None:
    described = {**lineage.DESCRIBED, **ablations.CHANGES}
    for name, system in table.items():
        assert system.recipe in RECIPES
        assert set(described[name]) == {"en", "zh"}


def test_ten_minutes_of_the_lineage_decide_something(tmp_path: Path) -> None:
    study = lineage.STUDY
    done: dict[str, float] = {}
    seeds: dict[tuple[str, str], set[int]] = {}
    for cell in study.queue(Sources(tmp_path)):
        runs = [cell.run, *cell.run.needs.values()]
        runs += [needed for run in runs for needed in run.needs.values()]
        done |= {run.key: run.seconds for run in runs}
        if sum(done.values()) > 600:
            break
        seeds.setdefault((cell.system, cell.dataset), set()).add(cell.seed)
    # All seeds of both sides of at least two claims.
    whole = {system for (system, _), own in seeds.items() if len(own) == lineage.SEEDS}
    assert len([claim for claim in study.claims if {claim.better, claim.worse} <= whole]) >= 2


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives with the names of the public sets of chains, and a few sentences in each file."""
    folder = tmp_path_factory.mktemp("public")
    words = "我们 看 书\n" * 3 + "他们 不 看\n" * 3
    names = ("Anna", "Berg", "Carl", "Dora", "Emil", "Finn")
    entities = "".join(f"{name} NN I-NP I-PER\nsings VB I-VP O\n\n" for name in names)
    contents = {
        "zh/pd199801/pd199801/199801.txt": words,
        "zh/icwb2/icwb2/gold/pku_test_gold.utf8": words,
        "zh/cws_sxu/sxu/train.txt": words,
        "zh/cws_sxu/sxu/test.txt": words,
        "en/conll2003/ner/conll2003/eng.train": entities,
        "en/conll2003/ner/conll2003/eng.testb": entities,
    }
    archives: dict[str, list[tuple[str, str]]] = {}
    for name, text in contents.items():
        language, archive, member = name.split("/", 2)
        archives.setdefault(f"{language}/{archive}", []).append((member, text))
    for archive, members in archives.items():
        packed = folder / f"{archive}.tar.xz"
        packed.parent.mkdir(exist_ok=True)
        with tarfile.open(packed, "w:xz") as tar:
            for member, text in members:
                info = tarfile.TarInfo(member)
                info.size = len(text.encode())
                tar.addfile(info, io.BytesIO(text.encode()))
    return folder


def test_chains_of_public_sets(public: Path, tmp_path: Path) -> None:
    sources = Sources(tmp_path, public)
    queue = chains.STUDY.queue(sources)
    assert {cell.dataset for cell in queue} == {*chains.EMBEDDED, *chains.PUBLIC}
    # The encoder, which takes longest, comes after all chains.
    kinds = [cell.system in chains.ENCODERS for cell in queue]
    assert kinds == sorted(kinds)
    # With all sentences a chain is trained once, and every seed has its own test sentences.
    own = [cell for cell in queue if (cell.system, cell.dataset, cell.x) == ("hmm", "pku", chains.ALL)]
    assert [cell.run.step for cell in own] == ["evaluate"] * chains.SEEDS
    assert len({cell.run.needs["model"].key for cell in own}) == 1
    assert len({cell.run.files["data"] for cell in own}) == chains.SEEDS


def test_a_chain_on_other_sentences_than_its_own(public: Path, tmp_path: Path) -> None:
    [measured] = [
        cell.run
        for cell in chains.cells(Sources(tmp_path, public))
        if (cell.system, cell.dataset, cell.seed, cell.x) == ("hmm", "conll", 1, chains.ALL)
    ]
    store = Store(tmp_path / "runs")
    figures = store.do(measured).figures
    assert next(iter(figures)) == "f1"
    # The first seed's test sentences are those that the run itself was scored on.
    assert figures["f1"] == store.do(measured.needs["model"]).figures["f1"]


def test_public_sets_are_read_from_archives(tmp_path: Path) -> None:
    source = tmp_path / "train.txt"
    source.write_text("one\n")
    (tmp_path / "data/en").mkdir(parents=True)
    with tarfile.open(tmp_path / "data/en/words.tar.xz", "w:xz") as tar:
        tar.add(source, "words/train.txt")
    sources = Sources(tmp_path / "files", tmp_path / "data")
    assert sources.public("en/words", "words/train.txt").read_text() == "one\n"
    with pytest.raises(BadInput, match=r"absent\.tar\.xz is missing"):
        sources.public("en/absent", "train.txt")
    with pytest.raises(BadInput, match=r"words\.tar\.xz has no file words/test\.txt"):
        sources.public("en/words", "words/test.txt")
    with pytest.raises(BadInput, match="name their folder"):
        Sources(tmp_path).public("en/words", "words/train.txt")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The study of similarity with two ways that take no time, so that the test is short."""
    monkeypatch.setattr(similarity, "MODELS", {"en-small": "en"})
    monkeypatch.setattr(similarity, "WAYS", ("mean", "embeddings"))


@pytest.mark.usefixtures("small")
def test_from_the_command_to_the_page(tmp_path: Path, command: Callable[..., Any]) -> None:
    answer = command("study", "similarity", "--out", tmp_path / "one")
    assert answer.code == 0
    page = tmp_path / "one/similarity/page.html"
    assert answer.out == f"{page}\n"
    rows = [json.loads(line) for line in (tmp_path / "one/similarity/rows.jsonl").read_text("utf-8").splitlines()]
    assert {row["system"] for row in rows} == {"mean", "embeddings", "simhash"}
    assert len(rows) == 5 * sets.FOLDS
    text = page.read_text("utf-8")
    assert "Vectors are better than SimHash" in text
    assert "向量优于 SimHash" in text
    assert "<svg" in text
    picture = tmp_path / "one/similarity/pairs-by-en-small-spearman.svg"
    assert picture.name in (tmp_path / "one/similarity/page.md").read_text("utf-8")
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    # The same study again, from nothing: the same figures.
    command("study", "similarity", "--out", tmp_path / "two")
    again = [json.loads(line) for line in (tmp_path / "two/similarity/rows.jsonl").read_text("utf-8").splitlines()]
    assert [(row["key"], row["score"]) for row in again] == [(row["key"], row["score"]) for row in rows]


@pytest.mark.parametrize("name", studies.TABLE)
def test_a_study_of_an_installed_package_finds_its_files(name: str, tmp_path: Path) -> None:
    """Outside the package only models and data of the user are read, and what is inside is installed with it."""
    root = Path(firth.__file__).parents[1]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["firth"]
    study: Study = resolve(studies.TABLE, name, "study")
    found: set[Path] = set()
    for cell in study.cells(Sources(tmp_path)):
        for paths in cell.run.files.values():
            found.update(path.relative_to(root) for path in paths if _is_of_checkout(path, root))
    for path in found:
        assert path.parts[0] == "firth"
        assert path.suffix == ".py" or any(path.relative_to("firth").match(pattern) for pattern in patterns), path


def _is_of_checkout(path: Path, root: Path) -> bool:
    """Whether a file belongs to firth; a checkout may hold the environment with other packages, too."""
    return path.is_relative_to(root) and "site-packages" not in path.parts


def test_a_study_that_was_killed_goes_on(tmp_path: Path, command: Callable[..., Any]) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-m", "firth", "study", "senses", "--out", str(out)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while process.poll() is None and not list(out.glob("runs/*/result.json")):
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    (kept,) = out.glob("runs/*/result.json")
    written = kept.stat().st_mtime_ns
    assert not (out / "senses/rows.jsonl").exists()
    assert command("study", "senses", "--out", out).code == 0
    rows = read_rows(out / "senses/rows.jsonl")
    assert {row.seed for row in rows if row.score is not None} == {1, 2, 3, 4, 5, 6}
    assert kept.stat().st_mtime_ns == written


def test_a_run_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    from firth.study.lineage import SYSTEMS, pretrained

    run = pretrained(SYSTEMS["glove"], Sources(tmp_path).corpus)
    store = Store(tmp_path / "runs")
    store.do(run)
    # As if the process had ended before the result was written.
    (tmp_path / "runs" / run.key / "result.json").unlink()
    assert Store(tmp_path / "runs").do(run).failed == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), f"Name one study ({NAMES}) or give --all."),
        (("lineage", "--all"), f"Name one study ({NAMES}) or give --all."),
        (("nothing",), f"There is no study named 'nothing' (known: {NAMES})."),
        (("lineage", "--minutes", "0"), "--minutes must be a finite number above 0; it is 0.0."),
    ],
)
def test_mistakes(words: tuple[str, ...], sentence: str, tmp_path: Path, command: Callable[..., Any]) -> None:
    answer = command("study", *words, "--out", tmp_path / "out")
    assert answer.code == 2
    assert answer.err == f"firth: {sentence}\n"
