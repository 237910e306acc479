"""The English text that is installed with every Python. In: the standard library's folder; out: paragraphs.

Modules are parsed with `ast` and never imported. A document is the docstrings of one module, in order, or one topic of
the language reference that `help()` prints. Examples, tables and signatures are left out.
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
"""Folders left out: tests, installed packages, and the codecs, which repeat one sentence a hundred times."""
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
        fresh = []
        for text in texts:
            for paragraph in prose(text):
                if paragraph not in seen:
                    seen.add(paragraph)
                    fresh.append(paragraph)
        if fresh:
            yield name, fresh


def _sources(folder: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """(name, texts) of every module, then of every topic."""
    for path in sorted(_modules(folder)):
        name = path.relative_to(folder)
        if name == TOPICS:
            continue
        tree = _parse_module(path)
        if tree:
            yield name.as_posix(), _docstrings(tree)
    topics_tree = _parse_module(folder / TOPICS)
    if topics_tree:
        for topic, text in sorted(_topics(topics_tree)):
            yield f"{TOPICS.as_posix()}:{topic}", [text]


def _modules(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        # Changed in place, so that `os.walk` does not enter them: there may be many installed packages.
        folders[:] = [name for name in folders if name not in SKIPPED]
        for name in names:
            if name.endswith(".py"):
                yield Path(place, name)


def prose(text: str) -> Iterator[str]:
    """The paragraphs of `text` that read as sentences: one line each, without markup."""
    dedented = textwrap.dedent(text.expandtabs())
    for block in re.split(r"\n\s*\n", dedented):
        for lines in _items(block.splitlines()):
            before_example = takewhile(lambda line: not line.startswith(">>>"), lines)
            paragraph = _without_markup(" ".join(before_example))
            if _reads_as_text(paragraph) and not any(map(_is_code_or_table, lines)):
                yield paragraph


def _is_code_or_table(line: str) -> bool:
    return _CODE.match(line) is not None or _COLUMNS.search(line) is not None


def _items(lines: list[str]) -> Iterator[list[str]]:
    """The lines of a block, cut before each bullet; bullets, and titles with their underlines, are dropped."""
    item: list[str] = []
    for raw_line in lines:
        line = raw_line.strip()
        bullet = _BULLET.match(line)
        if _RULE.fullmatch(line):
            item = []  # the line above an underline is a title
        elif bullet:
            yield item
            item = [line[bullet.end() :]]
        else:
            item.append(line)
    yield item


def _without_markup(text: str) -> str:
    """Plain text without reStructuredText's literals, roles, emphasis and footnotes."""
    text = _LITERAL.sub(lambda match: match[1] or match[2] or match[3], text)
    text = _EMPHASIS.sub(r"\2", text)
    text = _FOOTNOTE.sub("", text)
    text = text.replace("::", ":")
    return " ".join(text.split())


def _reads_as_text(paragraph: str) -> bool:
    """Whether a paragraph is mostly words, has enough of them, and is not a list of names, which is mostly commas."""
    num_words = len(_WORD.findall(paragraph))
    has_capital = _CAPITAL.match(paragraph) is not None
    has_stop = paragraph.endswith((".", "!", "?"))
    # Without a capital or a full stop, more words are needed to count as a sentence.
    enough = 8
    if has_capital and has_stop:
        enough = 3
    elif has_capital:
        enough = 4
    return num_words >= max(enough, 0.6 * len(paragraph.split()), 3 * paragraph.count(", "))


def _parse_module(path: Path) -> ast.Module | None:
    """The module's syntax tree; None if it cannot be read or parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old modules hold escapes that newer parsers warn about
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
        statements = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        pending.extend(reversed(statements))  # the last of `pending` is visited next


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The entries (topic, text) of the single dictionary in the topics' module."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            yield from ast.literal_eval(node.value).items()
