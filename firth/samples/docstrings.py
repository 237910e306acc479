"""The English that lies on every machine with Python: in goes the standard library's folder, out come paragraphs.

Modules are read with `ast` and never imported. A document is the docstrings of one module, in order, or one topic of
the language reference that `help()` prints. What does not read as text (examples, tables, signatures) is left out.
The text differs from one version of Python to the next.
"""

import ast
import os
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path

SKIPPED = frozenset({"test", "tests", "idle_test", "encodings", "site-packages", "dist-packages"})
"""Folders left out: tests, other people's packages, and the codecs, which say one sentence a hundred times."""
TOPICS = Path("pydoc_data", "topics.py")

_RULE = re.compile(r"[^\w\s](?:\s?[^\w\s]){2,}")
_BULLET = re.compile(r"(?:[*+•-]|\(?\w{1,2}[.)])\s+(?=\S)")
_COLUMNS = re.compile(r"[^\s.?!:)]\s{3,}\S|^\S+ -- .*|\s[|+]\s|[-=]{4,}")
_CODE = re.compile(
    r"\.\.\.|\.\. |\$ |%|#|@|--?\w|:\w+ ?\w*:[^`]|(?:\w+\.)*\w+ = |"
    r"import |from \S+ import |(?:class|def|elif|else|except|for|if|return|try|while|with)\b.*:$"
)
_LITERAL = re.compile(r"``(.+?)``|:(?:\w+:)?\w+:`~?(.+?)`|`(.+?)`_*")
_EMPHASIS = re.compile(r"(?<![\w*])(\*{1,2})(?=[^\s*])([^*]+?)(?<=[^\s*])\1(?![\w*])")
_FOOTNOTE = re.compile(r"\s*\[\d+\]_?")
_WORD = re.compile(r"(?<!\S)[\"'(]*[A-Za-z][a-z'’]*(?:-[a-z]+)*[\"')]*[.,;:!?]*[\"')]*(?!\S)")
_CAPITAL = re.compile(r"[\"'(]?[A-Z]")


def standard_library(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(name, paragraphs) of every module below `folder`, then of every topic, sorted; no paragraph comes twice."""
    seen: set[str] = set()
    for name, texts in _sources(folder):
        fresh = [p for p in dict.fromkeys(p for text in texts for p in prose(text)) if p not in seen]
        seen.update(fresh)
        if fresh:
            yield name, fresh


def _sources(folder: Path) -> Iterator[tuple[str, Iterable[str]]]:
    for path in sorted(_modules(folder)):
        name = path.relative_to(folder)
        if name != TOPICS and (tree := _parsed(path)):
            yield name.as_posix(), _docstrings(tree)
    if tree := _parsed(folder / TOPICS):
        for topic, text in sorted(_topics(tree)):
            yield f"{TOPICS.as_posix()}:{topic}", [text]


def _modules(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED]  # never enter them: other packages are many
        yield from (Path(place, name) for name in names if name.endswith(".py"))


def prose(text: str) -> Iterator[str]:
    """The paragraphs of `text` that read as sentences: one line each, without markup."""
    for block in re.split(r"\n\s*\n", textwrap.dedent(text.expandtabs())):
        for lines in _items(block.splitlines()):
            paragraph = _plain(" ".join(takewhile(lambda line: not line.startswith(">>>"), lines)))
            if _reads_as_text(paragraph) and not any(_CODE.match(line) or _COLUMNS.search(line) for line in lines):
                yield paragraph


def _items(lines: list[str]) -> Iterator[list[str]]:
    """A block cut before each bullet; titles' underlines and bullets are dropped with what they mark."""
    item: list[str] = []
    for line in map(str.strip, lines):
        if _RULE.fullmatch(line):
            item = []  # what stands above an underline is a title
        elif mark := _BULLET.match(line):
            yield item
            item = [line[mark.end() :]]
        else:
            item.append(line)
    yield item


def _plain(text: str) -> str:
    text = _LITERAL.sub(lambda match: match[1] or match[2] or match[3], text)
    text = _FOOTNOTE.sub("", _EMPHASIS.sub(r"\2", text)).replace("::", ":")
    return " ".join(text.split())


def _reads_as_text(paragraph: str) -> bool:
    """Mostly words, and enough of them: more where no capital or no stop says so; lists of names are mostly commas."""
    num_words = len(_WORD.findall(paragraph))
    enough = (3 if paragraph.endswith((".", "!", "?")) else 4) if _CAPITAL.match(paragraph) else 8
    return num_words >= max(enough, 0.6 * len(paragraph.split()), 3 * paragraph.count(", "))


def _parsed(path: Path) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules hold escapes that newer parsers frown upon
            return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return None


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Docstrings of the module, its classes and functions, in the order they are written."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
        pending.extend(reversed([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]))


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The entries of the one dictionary that the topics' module holds."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            yield from ast.literal_eval(node.value).items()
