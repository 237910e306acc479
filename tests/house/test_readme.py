"""The READMEs and the pages of docs: every command parses, what can run here runs, links lead somewhere, and the two
languages and the tables agree.

A page's commands are typed in the folder `walk`, page after page. A command with a name in capitals (`MODEL`) or a
variable (`$FIRTH_DATA`) needs something that a reader brings; so does what reads its results. All others run.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import firth
from docs import generate
from firth import cli, lineage, samples, tasks
from firth.commands.text import VOCABULARIES

ROOT = Path(__file__).parents[2]
READMES = {"en": ROOT / "README.md", "zh": ROOT / "README.zh.md"}
START = {"en": ROOT / "docs/start/first-minutes.md", "zh": ROOT / "docs/start/first-minutes.zh.md"}
GUIDES = [
    ROOT / f"docs/guides/{name}.md"
    for name in (
        "prepare",
        "pretrain",
        "plan",
        "several-gpus",
        "finetune",
        "few-labels",
        "tune",
        "rewrite",
        "evaluate",
        "trust",
        "serve",
        "search",
        "word-vectors",
        "taggers",
        "senses",
        "import",
        "python",
    )
]
CHINESE_GUIDES = [page.with_suffix(".zh.md") for page in GUIDES]
TRANSLATED = ("prepare", "evaluate", "taggers", "word-vectors", "senses", "import", "python")
"""Guides whose Chinese page follows the English one command by command."""
WALKS = {
    "en": [READMES["en"], ROOT / "docs/start/installation.md", START["en"], *GUIDES],
    "zh": [READMES["zh"], ROOT / "docs/start/installation.zh.md", START["zh"], *CHINESE_GUIDES],
}
"""The pages in reading order. A later page finds what earlier ones made."""
PAGES = [*READMES.values(), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

COMMANDS = typer.main.get_command(cli.commands()).commands  # type: ignore[attr-defined]
ENDLESS = {"serve", "demo"}
ARGUMENTS = {"fill": 1, "neighbours": 1, "analogy": 3}
"""How many words a command is about; a word before them is its model."""
SMALLER = {
    r"(firth tune [^\n]*)--minutes \d+": r"\1--minutes=0.02",
    r"--minutes \d+": "--steps 3",
    r"--steps \d+": "--steps 3",
    r"--vocab-size \d+": "--vocab-size 800",
    r"--epochs 5": "--epochs 1",
    r"--seeds 3": "--seeds 2",
    r"epochs=\d+": "epochs=1",
    r"vocab_size=6000": "vocab_size=800",
    r"steps=1000": "steps=3",
    r"restarts=3": "restarts=1",
    r'out="reviews-2"': 'out="reviews-2", changes=["epochs=1"]',
}
"""What the test changes in the commands: the same walk, in seconds."""


def blocks(text: str, language: str = r"\w+") -> list[tuple[str, str]]:
    """The fenced blocks of a page, each with its language."""
    return re.findall(rf"^```({language})\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """The `firth ...` lines of the shell blocks, in words."""
    lines = "".join(code for _, code in blocks(text, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("firth ")]


def smaller(text: str) -> str:
    for large, small in SMALLER.items():
        text = re.sub(large, small, text)
    return text


def read(page: Path) -> str:
    return page.read_text("utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def heading_levels(text: str) -> list[str]:
    return re.findall(r"^(#+) ", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)


def first_column(text: str, heading: str) -> list[str]:
    """The names in backticks in the first column of the table below a heading (or below `<!-- table: ... -->`)."""
    below = text.split(heading, 1)[1].lstrip("\n")
    rows = below[below.index("|") :].split("\n\n")[0]
    return re.findall(r"^\| `([^`]+)` \|", rows, re.MULTILINE)


# Pages


@pytest.mark.parametrize("page", READMES.values(), ids=name_of)
def test_a_first_page_is_short(page: Path) -> None:
    assert len(read(page).splitlines()) <= 200


def shapes(text: str) -> list[list[str]]:
    """The commands of a page without their texts and files."""
    return [[name, *(word for word in words if word.startswith("--"))] for name, *words in commands(text)]


@pytest.mark.parametrize("pair", [READMES, START], ids=["README", "first-minutes"])
def test_both_languages_have_the_same_commands(pair: dict[str, Path]) -> None:
    english, chinese = (read(page) for page in pair.values())
    if pair is READMES:
        assert shapes(english) == shapes(chinese)
        assert heading_levels(english) == heading_levels(chinese)
        assert len(blocks(english)) == len(blocks(chinese))
    else:  # the Chinese page goes on with what English guides hold
        assert shapes(chinese)[: len(shapes(english))] == shapes(english)


@pytest.mark.parametrize("name", ["start/installation", *(f"guides/{name}" for name in TRANSLATED)])
def test_a_translated_page_has_the_parts_of_the_english_one(name: str) -> None:
    english = read(ROOT / f"docs/{name}.md")
    chinese = read(ROOT / f"docs/{name}.zh.md")
    assert shapes(english) == shapes(chinese)
    assert heading_levels(english) == heading_levels(chinese)
    assert len(blocks(english)) == len(blocks(chinese))


PAIRS = [page for page in PAGES if page.name.endswith(".zh.md")]


@pytest.mark.parametrize("chinese", PAIRS, ids=name_of)
def test_a_page_and_its_translation_link_each_other_at_the_top(chinese: Path) -> None:
    english = chinese.with_name(chinese.name.replace(".zh.md", ".md"))
    assert f"[English]({english.name})" in read(chinese).splitlines()[:4]
    assert f"[中文]({chinese.name})" in read(english).splitlines()[:4]


def test_the_readmes_list_every_guide() -> None:
    guides = {page.name for page in (ROOT / "docs/guides").glob("*.md")}
    english = {name for name in guides if not name.endswith(".zh.md")}
    assert set(re.findall(r"\(docs/guides/([\w.-]+)\)", read(READMES["en"]).split("## Documentation")[1])) == english
    chinese = set(re.findall(r"\(docs/guides/([\w.-]+)\)", read(READMES["zh"]).split("## 文档")[1]))
    assert chinese == guides - english == {name.replace(".md", ".zh.md") for name in english}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_pictures_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    for found in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        link, _, anchor = "".join(found).partition("#")
        if re.match(r"https?://", link):
            continue
        target = page.parent / link if link else page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", read(target), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_the_sidebar_names_every_page() -> None:
    listed = re.findall(r"^(?:.*<)?([\w./-]+)>?$", read(ROOT / "docs/contents.md"), re.MULTILINE)
    there = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    assert there - {"contents"} <= set(listed)


# Tables


def test_the_tables_inside_pages_are_those_of_the_package() -> None:
    for page in [*READMES.values(), *GUIDES]:
        assert generate.with_tables(read(page)) == read(page), "run `python docs/generate.py`"
    assert first_column(read(GUIDES[1]), "<!-- table: recipes -->") == list(lineage.TABLE)
    assert first_column(read(GUIDES[1]), "<!-- table: sizes -->") == list(lineage.SIZES)


@pytest.mark.parametrize(("language", "heading"), [("en", "## Models"), ("zh", "## 模型")])
def test_the_readmes_name_every_recipe_and_task(language: str, heading: str) -> None:
    text = read(READMES[language])
    section = text.split(f"{heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert sorted(re.findall(r"`([^`]+)`", "".join(rows))) == sorted(lineage.TABLE)
    named = [line for line in text.splitlines() if line.startswith("**2.")]
    assert re.findall(r"`(\w+)`", named[0]) == list(tasks.TABLE)


def test_guides_name_every_task_and_tokenizer() -> None:
    assert first_column(read(ROOT / "docs/guides/finetune.md"), "## Tasks") == list(tasks.TABLE)
    assert first_column(read(ROOT / "docs/guides/evaluate.md"), "TEST.tsv\n```") == list(tasks.TABLE)
    assert first_column(read(ROOT / "docs/guides/prepare.md"), "## Vocabularies") == VOCABULARIES


def test_the_chinese_start_page_lists_every_command() -> None:
    rows = re.findall(r"^\| `firth (\w+)` \|", read(START["zh"]), re.MULTILINE)
    assert sorted(rows) == sorted(COMMANDS)


def test_the_site_has_every_page_command_recipe_and_setting(tmp_path: Path) -> None:
    site = tmp_path / "site"
    generate.gather(site)
    reference = {page.stem: read(page) for page in (site / "reference").iterdir()}
    for name, command in COMMANDS.items():
        assert f"## firth {name}\n" in reference["commands"]
        for parameter in command.params:
            assert parameter.opts[0] in reference["commands"] or parameter.param_type_name == "argument"
    for name in lineage.TABLE:
        assert f"## {name}\n" in reference["recipes"]
    for key in ("train.optim.rate", "transfer.mode", "encoder.bert.width", "tasks.tag.scheme", "tokenizer.bpe."):
        assert f"`{key}" in reference["settings"]
    for name in firth.__all__:
        assert f":: firth.{name}\n" in reference["python"]
    for page in site.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s]+)", re.sub(r"^```.*?^```$", "", read(page), flags=re.M | re.S)):
            assert "://" in link or (page.parent / link).exists(), f"{page.relative_to(site)}: {link}"


@pytest.mark.long
def test_the_site_builds_and_needs_no_network(tmp_path: Path) -> None:
    build = pytest.importorskip("sphinx.cmd.build", reason="pip install '.[docs]'")
    pytest.importorskip("furo")
    generate.gather(tmp_path / "source")
    assert build.main(["-q", "-W", "--keep-going", str(tmp_path / "source"), str(tmp_path / "site")]) == 0
    for page in (tmp_path / "site").rglob("*.html"):
        assert not re.search(r"(src=|<link[^>]*href=|url\()\"?https?://", read(page)), page


# Commands

WALKED = [page for pages in WALKS.values() for page in pages]
ALL = [
    pytest.param(words, id=f"{name_of(page)}: {' '.join(words[:3])}")
    for page in WALKED
    for words in commands(read(page))
]


@pytest.mark.parametrize("words", ALL)
def test_every_command_parses(words: list[str]) -> None:
    name, *arguments = words
    if not name.startswith("--"):
        assert name in COMMANDS
        assert COMMANDS[name].make_context(name, arguments).params


@pytest.mark.parametrize("page", WALKED, ids=name_of)
def test_commands_stand_in_shell_blocks(page: Path) -> None:
    """Elsewhere no test would find them."""
    text = read(page)
    shown = [line for kind, code in blocks(text) if kind != "sh" for line in code.splitlines()]
    shown += re.findall(r"^    (firth .*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.MULTILINE)
    assert not [line for line in shown if re.match(r"firth \w+ ", line)]


def files_of(name: str, params: dict[str, Any]) -> list[str]:
    """The files and folders that a command reads, as it was called."""
    keys = ["data", "model", "models", "run", "file", "train", "dev", "test", "config", "start_from", "arguments"]
    keys += ["source", "segmenter", "reranker", "index"]
    keys += ["words"] * (name == "evaluate")
    keys += ["text"] * (name in {"extend", "plan", "vectors"})
    keys += ["texts"] * (name in {"prepare", "duplicates"})  # elsewhere they are what a model is asked about
    found = []
    for key in keys:
        value = params.get(key) or ()
        if key == "arguments" and name in ARGUMENTS:
            value = value[: -ARGUMENTS[name]]
        if key == "arguments" and params.get("action") == "ask":
            value = value[:1]  # an index and a question
        found += [str(one) for one in (value if isinstance(value, list | tuple) else [value])]
    if name == "prepare" and "/" in params["tokenizer"]:
        found.append(params["tokenizer"])
    if name in {"serve", "prepare"}:
        return [one.rpartition("=")[2] for one in found]
    return [one for one in found if "=" not in one]


def brought(place: str) -> bool:
    """Whether a reader brings it: a name in capitals, or a variable."""
    return "$" in place or bool(re.match(r"[A-Z][A-Z0-9-]+\b", place))


class Walk:
    """Keeps account of what commands have made, and of what they would make from a reader's own files."""

    def __init__(self) -> None:
        self.made = {"my-texts", ".", "-", "en-small", "zh-small"}
        self.imagined: set[str] = set()

    def runs(self, words: list[str]) -> bool:
        """Whether this command can run here; what it reads must be there, or be something a reader brings."""
        name, *arguments = words
        if name.startswith("--"):
            return True
        params = COMMANDS[name].make_context(name, arguments).params
        can_run = True
        for place in files_of(name, params):
            first = Path(place).parts[0] if place != "." else "."
            if brought(place) or first in self.imagined:
                can_run = False
            else:
                there = first == ".." and (ROOT / "walk" / place).resolve().exists()
                assert there or first in self.made, f"{name}: nothing made {place}"
        out = str(params.get("out"))
        (self.made if can_run else self.imagined).add(out)
        return can_run and name not in ENDLESS and not brought(out)


@pytest.mark.parametrize("language", WALKS)
def test_what_a_command_reads_is_there_or_was_made_before(language: str) -> None:
    """In order, from a fresh clone: in the folder `walk`, where the text's own line makes `my-texts`."""
    walk = Walk()
    for page in (READMES[language], START[language]):
        assert "samples.corpus(Path('my-texts'))" in read(page)
    ran = [walk.runs(words) for page in WALKS[language] for words in commands(read(page))]
    assert sum(ran) > len(ran) / 3


def steps(pages: list[Path]) -> Iterator[tuple[str, Any]]:
    """Shell commands and Python blocks in reading order; what a page repeats from an earlier one comes once."""
    seen = set()
    for page in pages:
        for kind, code in blocks(smaller(read(page)), "sh|python"):
            found: list[Any] = [code] if kind == "python" else commands(f"```sh\n{code}```\n")
            for one in found:
                key = json.dumps(one)
                if key not in seen:
                    seen.add(key)
                    yield kind, one


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param(WALKS["en"], id="en"),
        pytest.param(WALKS["zh"][:1], id="zh"),
        pytest.param(WALKS["zh"], id="zh, all pages", marks=pytest.mark.long),
    ],
)
def test_the_walk_runs(
    pages: list[Path],
    command: Callable[..., Any],
    tiny: tuple[str, ...],
    with_models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "walk").mkdir()
    monkeypatch.chdir(tmp_path / "walk")
    Path("my-texts").mkdir()
    for language, name in (("en", "python.en.txt"), ("zh", "prose.zh.txt")):  # short texts under names of the sample
        Path("my-texts", name).write_bytes(samples.prose(language).read_bytes())
    Path("../firth").symlink_to(ROOT / "firth")
    walk, failed = Walk(), []
    for kind, step in steps(pages):
        if kind == "python":
            run_python(step, tiny)
        elif walk.runs(step):
            done = command(*step, *extra(step, tiny))
            if done.code != 0 or not done.out + done.err:
                failed.append((" ".join(step), done.err))
    assert not failed
    for made in (
        "data/manifest.json",
        "run/model.safetensors",
        "vectors.npy",
        "reviews/report.html",
        "tagger",
        "words",
    ):
        assert Path(made).exists(), made


def extra(step: list[str], tiny: tuple[str, ...]) -> tuple[str, ...]:
    """Arguments that make a command shorter."""
    name, given = step[0], {*step}
    if name == "finetune" and "--resume" not in given and not any("epochs=" in word for word in step):
        return ("epochs=1",)
    if name != "pretrain" or given & {"--resume", "--config", "word2vec-sg-ns"}:
        return ()
    return ("batches.max_length=64", "batches.tokens=512") if given & {"--recipe", "--from"} else tiny


def run_python(code: str, tiny: tuple[str, ...]) -> None:
    """Runs a block of Python, unless it talks to a server."""
    if "openai" in code:
        compile(code, "docs", "exec")
        return
    names: dict[str, Any] = {}
    exec(compile(code.replace("changes=small", f"changes={list(tiny)!r}"), "docs", "exec"), names)
    if "vectors" in names:
        assert names["vectors"].shape == (2, 32)
    if "AutoTokenizer" in names:
        assert names["model"].config.hidden_size == 32
        assert len(names["tokenizer"]) == len(firth.load("run").tokenizer.vocab)
