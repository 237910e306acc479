"""The pages of the site: the repository's pages, and a reference that is written from the tables of the package.

    python docs/generate.py                      # renews the tables inside the guides and READMEs
    python docs/generate.py --site build/source  # also gathers all pages for Sphinx (`make docs` does both)
    python docs/generate.py --demo demo          # also puts the table of a finished `firth demo` into the READMEs

In: README, CONTRIBUTING, CHANGELOG and the pages under `docs/`; the command line, the lineage, and the configs with
their attribute docstrings. Out: a folder of Markdown for Sphinx. Nothing in it is typed twice.
"""

import argparse
import os
import re
import shutil
import typing
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import import_module
from inspect import getdoc, isclass
from pathlib import Path

import typer

import firth
from firth import cli, compression, lineage, tour
from firth.config import describe, part_config, resolve
from firth.finetuning.settings import FinetuneConfig
from firth.serving.limits import Limits

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ROOT_PAGES = {
    "README.md": "index.md",
    "README.zh.md": "index.zh.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository's root, and what they are called on the site."""

TABLES = {
    "Encoders": ("encoder", "firth.encoders"),
    "Objectives": ("objectives", "firth.objectives"),
    "Tasks": ("tasks", "firth.tasks"),
    "Tokenizers": ("tokenizer", "firth.tokenizers"),
}
"""Heading -> the key that a setting starts with, and the module with the table."""

KINDS = {
    "counted": ("counts, topics and the first neural language model", "词频、主题与最早的神经语言模型"),
    "word_vectors": ("word vectors", "词向量"),
    "recurrent": ("recurrent language models", "循环语言模型"),
    "autoregressive": ("causal Transformers", "单向 Transformer"),
    "unified": ("Transformers that read and write", "既能读又能写的 Transformer"),
    "rewriting": ("Transformers with a decoder", "带解码器的 Transformer"),
    "masked": ("masked and replaced-token Transformers", "掩码与替换检测 Transformer"),
    "cross_lingual": ("Transformers of several languages", "多语言 Transformer"),
}
"""Module of `firth.lineage` -> what its recipes are, in English and Chinese."""

LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?\)")
BETWEEN_CHINESE = re.compile("(?<=[\u3000-\u9fff\uff00-\uffef])\n(?=[\u3000-\u9fff\uff00-\uffef])")
"""A line break between Chinese characters, which a browser would show as a space."""
DEMO_TABLE = re.compile(r"(<!-- demo -->\n```text\n).*?(```\n<!-- end -->)", re.DOTALL)
BLOCK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--site", type=Path, help="folder to gather all pages in; replaced if it exists")
    parser.add_argument("--demo", type=Path, help="folder of a demo that ran without a stop")
    arguments = parser.parse_args()
    site = arguments.site
    readmes = [ROOT / "README.md", ROOT / "README.zh.md"]
    for page in [*readmes, *sorted((DOCS / "guides").glob("*.md"))]:
        old = page.read_text("utf-8")
        new = with_tables(old)
        if arguments.demo:
            new = with_demo_table(new, (arguments.demo / tour.TABLE).read_text("utf-8"))
        if new != old:
            page.write_text(new, "utf-8")
            print(f"{page.relative_to(ROOT)}: tables renewed")
    if site:
        gather(site)


# The tables inside guides


def with_tables(text: str) -> str:
    """The text with each `<!-- table: NAME -->` block filled in anew."""
    blocks = {
        "recipes": recipe_table,
        "kinds": kind_table,
        "kinds_zh": chinese_kind_table,
        "sizes": size_table,
        "limits": limit_table,
        "methods": method_table,
    }
    return BLOCK.sub(lambda found: f"{found[1]}{blocks[found[2]]()}{found[3]}", text)


def with_demo_table(text: str, demo_table: str) -> str:
    """The text with the demo's table in its `<!-- demo -->` block."""
    return DEMO_TABLE.sub(lambda found: f"{found[1]}{demo_table}{found[2]}", text)


def recipe_table() -> str:
    rows = []
    for name in lineage.TABLE:
        summary = first_paragraph(resolve(lineage.TABLE, name, "recipe"))
        rows.append((f"`{name}`", summary))
    return table(("recipe", "what it is"), rows)


def kind_table() -> str:
    rows = [(english, ", ".join(recipes)) for (english, _), recipes in recipes_by_kind()]
    return table(("kind", "recipes"), rows)


def chinese_kind_table() -> str:
    rows = [(chinese, "、".join(recipes)) for (_, chinese), recipes in recipes_by_kind()]
    return table(("类别", "配方"), rows)


def recipes_by_kind() -> Iterator[tuple[tuple[str, str], list[str]]]:
    """Each kind's names, and its recipes in backticks."""
    for module, names in KINDS.items():
        recipes = []
        for recipe, place in lineage.TABLE.items():
            if place.startswith(f"{lineage.__name__}.{module}:"):
                recipes.append(f"`{recipe}`")
        yield names, recipes


def size_table() -> str:
    rows = []
    for name, shape in lineage.SIZES.items():
        rows.append((f"`{name}`", *map(str, shape)))
    return table(("size", "layers", "width", "heads"), rows)


def method_table() -> str:
    rows = []
    for name in compression.TABLE:
        method = compression.resolve(name)
        defaults = method.Config()
        settings = ", ".join(f"`{field.name}={getattr(defaults, field.name)}`" for field in fields(defaults))
        rows.append((f"`{name}`", first_paragraph(method), settings))
    return table(("method", "what it does", "settings and their defaults"), rows)


def limit_table() -> str:
    sentences = describe(Limits)
    rows = []
    for field in fields(Limits):
        rows.append((f"`{field.name}`", f"{field.default:,}", sentences[field.name]))
    return table(("limit", "default", "meaning"), rows)


# The site


def gather(site: Path) -> None:
    """All pages in one folder, with links that fit their new places."""
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(DOCS, site, ignore=shutil.ignore_patterns("__pycache__", "generate.py"))
    for page in sorted(DOCS.rglob("*.md")):
        place = page.relative_to(DOCS)
        (site / place).write_text(relinked(page, place), "utf-8")
    for name, place in ROOT_PAGES.items():
        (site / place).write_text(relinked(ROOT / name, Path(place)), "utf-8")
    contents = site / "contents.md"  # the sidebar belongs to the front page
    with (site / "index.md").open("a", encoding="utf-8") as front:
        front.write(contents.read_text("utf-8"))
    contents.unlink()
    shutil.copy(ROOT / "LICENSE", site / "LICENSE")
    reference = site / "reference"
    reference.mkdir(exist_ok=True)
    for name, write in REFERENCE.items():
        (reference / name).write_text("\n".join(write()) + "\n", "utf-8")


def relinked(page: Path, place: Path) -> str:
    """A page's text with its relative links as they must be at `place` in the site."""

    def link(found: re.Match[str]) -> str:
        target = (page.parent / found[2]).resolve()
        if "://" in found[2] or not target.is_relative_to(ROOT):
            return found[0]
        in_repository = target.relative_to(ROOT).as_posix()
        on_site = ROOT_PAGES.get(in_repository, in_repository.removeprefix("docs/"))
        return f"{found[1]}{os.path.relpath(on_site, place.parent)}{found[3] or ''})"

    return BETWEEN_CHINESE.sub("", LINK.sub(link, page.read_text("utf-8")))


# The reference


def commands_page() -> Iterator[str]:
    """Every command with its arguments and options, from the command line itself."""
    yield "# Commands\n"
    yield "`firth COMMAND --help` prints the same. All commands but `demo` and `serve` have `--json`.\n"
    commands = typer.main.get_command(cli.commands()).commands  # type: ignore[attr-defined]
    rows = []
    for name, command in commands.items():
        rows.append((f"[`firth {name}`](#firth-{name})", first_line(command.help)))
    yield table(("command", "what it does"), rows)
    for name, command in commands.items():
        yield f"## firth {name}\n"
        yield f"{plain(command.help)}\n"
        rows = []
        for parameter in command.params:
            rows.append((names_of(parameter), default_of(parameter), parameter.help or ""))
        yield table(("argument or option", "default", "meaning"), rows)


def names_of(parameter: typing.Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return " ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def default_of(parameter: typing.Any) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value == () or value is False or "[default" in (parameter.help or ""):
        return ""
    return f"`{value}`"


def recipes_page() -> Iterator[str]:
    """Every recipe with its docstring and with the settings in which it differs from the defaults."""
    yield "# Recipes\n"
    yield "`firth pretrain DATA --recipe NAME --size SIZE`. Values are those of the size `base`.\n"
    for name in lineage.TABLE:
        made = lineage.make(name, "base")
        yield f"## {name}\n"
        yield f"{plain(getdoc(resolve(lineage.TABLE, name, 'recipe')))}\n"
        rows = [(f"`{path}`", f"`{value}`") for path, value in changed(made)]
        yield table(("setting", "value"), rows)


def changed(recipe: lineage.Recipe) -> Iterator[tuple[str, object]]:
    """The settings of a recipe that are not the defaults, by their paths."""
    for part in ("encoder", "objectives", "tokenizer"):
        for name, config in getattr(recipe, part).items():
            yield f"{part}.{name}", ""
            yield from differences(config, type(config)(), f"{part}.{name}.")
    yield from differences(recipe.batches, type(recipe.batches)(), "batches.")
    yield from differences(recipe.train, type(recipe.train)(), "train.")


def differences(config: typing.Any, usual: typing.Any, prefix: str) -> Iterator[tuple[str, object]]:
    for field in fields(config):
        value = getattr(config, field.name)
        default = getattr(usual, field.name)
        if is_dataclass(value) and type(value) is type(default):
            yield from differences(value, default, f"{prefix}{field.name}.")
        elif value != default:
            yield f"{prefix}{field.name}", value


def settings_page() -> Iterator[str]:
    """Every `key=value` setting with its type, default and sentence."""
    yield "# Settings\n"
    yield (
        "A setting is changed by `key=value` after the other arguments of `firth pretrain`, `firth finetune` and "
        "`firth evaluate`. `run.toml` in a run's folder holds all settings of the run. Recipes change some defaults: "
        "see [Recipes](recipes.md).\n"
    )
    yield "## Pre-training\n"
    yield from config_tables(lineage.Recipe(), "")
    yield "## Fine-tuning\n"
    yield from config_tables(FinetuneConfig(), "")
    for heading, (key, module) in TABLES.items():
        yield f"## {heading}\n"
        for name in import_module(module).TABLE:
            config = part_config(module, name)
            yield f"### {key}.{name}\n"
            row = resolve(import_module(module).TABLE, name, "part")
            yield f"{first_paragraph(row)}\n"
            yield from config_tables(config(), f"{key}.{name}.")
    yield "## Compression\n"
    yield "`firth compress MODEL KEY=VALUE --by METHOD` changes one.\n"
    for name in compression.TABLE:
        method = compression.resolve(name)
        yield f"### compress --by {name}\n"
        yield f"{first_paragraph(method)}\n"
        yield from config_tables(method.Config(), "")
    yield "## Limits of the server\n"
    yield "`firth serve --limit KEY=VALUE` changes one.\n"
    yield from config_tables(Limits(), "")


def config_tables(config: typing.Any, prefix: str) -> Iterator[str]:
    """One table for a config; the configs inside it follow as tables of their own."""
    sentences = describe(type(config))
    hints = typing.get_type_hints(type(config))
    rows = []
    inner = []
    for field in fields(config):
        value = getattr(config, field.name)
        path = f"{prefix}{field.name}"
        if is_dataclass(value):
            inner.append((value, path))
            continue
        shown = "" if "table" in field.metadata else f"`{value!r}`" if has_default(field) else "required"
        rows.append((f"`{path}`", type_name(hints[field.name]), shown, sentences.get(field.name, "")))
    if rows:
        yield table(("setting", "type", "default", "meaning"), rows)
    for value, path in inner:
        yield from config_tables(value, f"{path}.")


def has_default(field: Field[typing.Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def type_name(hint: typing.Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(hint))
    if hint in (int, float, str, bool):
        return str(hint.__name__)
    if "Mapping" in str(hint):
        return "parts, by name"
    return str(hint).replace("typing.", "").replace("<class '", "").replace("'>", "")


def python_page() -> Iterator[str]:
    """The public names, for Sphinx's autodoc."""
    yield "# Python API\n"
    yield "All names are in the module `firth`. They are imported on first use.\n"
    kinds = {"Functions": [], "Classes": []}  # type: dict[str, list[str]]
    for name in sorted(firth.__all__):
        kinds["Classes" if isclass(getattr(firth, name)) else "Functions"].append(name)
    for heading, names in kinds.items():
        yield f"## {heading}\n"
        for name in names:
            directive = "autoclass" if heading == "Classes" else "autofunction"
            yield f"```{{eval-rst}}\n.. {directive}:: firth.{name}\n```\n"


REFERENCE = {
    "commands.md": commands_page,
    "recipes.md": recipes_page,
    "settings.md": settings_page,
    "python.md": python_page,
}


# Text


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell(value) for value in line)} |\n" for line in lines)


def cell(text: str) -> str:
    """Text for one cell: on one line, bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def plain(text: str | None) -> str:
    """A docstring as Markdown: paragraphs, without indents that would make them code."""
    paragraphs = (text or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def first_line(text: str | None) -> str:
    return plain(text).partition("\n")[0]


def first_paragraph(thing: object) -> str:
    return plain(getdoc(thing)).partition("\n\n")[0]


if __name__ == "__main__":
    main()
