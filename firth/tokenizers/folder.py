"""A BERT tokenizer's own files -> what decides its ids. In: a folder; out: its vocabulary, rules and longest input.

`tokenizer.json` is read as plain JSON, part by part: only the parts BERT tokenizers are made of are accepted, and none
of the file reaches the tokenizers library, where a hostile regular expression would end the process. Its truncation
and padding settings are left behind. Without it, `vocab.txt` and `tokenizer_config.json` say the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.errors import BadInput, Damaged
from firth.files import read_json
from firth.tokenizers.vocab import PREFIX, SPECIALS, Vocab
from firth.tokenizers.words import repair

ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
_PARTS = {
    "normalizer": ("BertNormalizer",),
    "pre_tokenizer": ("BertPreTokenizer",),
    "model": ("WordPiece",),
    "post_processor": ("TemplateProcessing", "BertProcessing", None),
    "decoder": ("WordPiece", None),
}
_LONGEST_SANE = 1_000_000  # folders without a limit state 1e30


@dataclass(frozen=True)
class Added:
    """A token that is looked for in the text before it is cut into words."""

    token: str
    special: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class Rules:
    """What decides ids besides the vocabulary."""

    lowercase: bool
    strip_accents: bool
    chinese_characters: bool
    clean_text: bool = True
    longest_word: int = 100
    """A word of more characters is unknown."""
    added: tuple[Added, ...] = tuple(map(Added, SPECIALS))
    """In the order of their ids."""
    num_pieces: int | None = None
    """Ids from here on are added tokens that the pieces of words do not know; None: there are none."""


def read_folder(folder: Path) -> tuple[Vocab, Rules, int | None]:
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.")
    settings = settings_of(folder)
    if (path := folder / "tokenizer.json").is_file():
        tokens, rules = _from_json(path, settings)
    elif (path := folder / "vocab.txt").is_file():
        tokens, rules = _from_text(path, settings)
    else:
        raise BadInput(f"{folder} has no tokenizer: it needs a tokenizer.json, or vocab.txt and tokenizer_config.json.")
    if any("\n" in token or repair(token) != token for token in tokens):
        raise BadInput(f"{path} has a token that no line of text can hold.")
    roles = _roles(settings)
    others = frozenset(added.token for added in rules.added if added.special and added.token not in roles)
    try:
        vocab = Vocab(tokens, roles, others)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return vocab, rules, longest_input(settings)


def _from_json(path: Path, settings: Mapping[str, Any]) -> tuple[tuple[str, ...], Rules]:
    parts = as_object(read_plain(path), path)
    for name, accepted in _PARTS.items():
        if (kind := _kind(as_object(parts.get(name) or {}, path))) not in accepted:
            raise BadInput(f"{path} has the {name} {kind!r}; a WordPiece tokenizer of BERT has {accepted[0]}.")
    model, normalizer = parts["model"], parts["normalizer"]
    if (prefix := model.get("continuing_subword_prefix")) != PREFIX:
        raise BadInput(f"{path} marks pieces inside words by {prefix!r} instead of {PREFIX!r}.")
    if model.get("unk_token") != (unknown := _roles(settings)[1]):
        raise BadInput(f"{path} takes {model.get('unk_token')!r} for unknown words, tokenizer_config.json {unknown!r}.")
    pieces = {token: as_number(i, path) for token, i in as_object(model.get("vocab"), path).items()}
    rows = as_rows(parts.get("added_tokens"), path)
    added = sorted(((as_number(row.get("id"), path), as_added(row, path)) for row in rows), key=lambda pair: pair[0])
    ids = pieces | {row.token: i for i, row in added}
    tokens = tuple(sorted(ids, key=ids.__getitem__))
    if [ids[token] for token in tokens] != list(range(len(ids))) or max(pieces.values(), default=-1) >= len(pieces):
        raise BadInput(f"{path} does not give every id from 0 on exactly one token.")
    lowercase = as_flag(normalizer, "lowercase", path)
    accents = normalizer.get("strip_accents")
    rules = Rules(
        lowercase=lowercase,
        strip_accents=lowercase if accents is None else as_flag(normalizer, "strip_accents", path),
        chinese_characters=as_flag(normalizer, "handle_chinese_chars", path),
        clean_text=as_flag(normalizer, "clean_text", path),
        longest_word=as_number(model.get("max_input_chars_per_word", 100), path),
        added=tuple(row for _, row in added),
        num_pieces=len(pieces) if len(pieces) < len(tokens) else None,
    )
    _agree(path, rules, settings)
    return tokens, rules


def _from_text(path: Path, settings: Mapping[str, Any]) -> tuple[tuple[str, ...], Rules]:
    lowercase = settings.get("do_lower_case")
    if not isinstance(lowercase, bool):
        raise BadInput(
            f"{path} alone does not say whether its text is lower-cased: put a tokenizer_config.json with "
            '"do_lower_case": true or false beside it.'
        )
    try:
        lines = path.read_bytes().decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text ({error}).") from None
    tokens = tuple(lines[:-1] if not lines[-1] else lines)
    beside = path.with_name("added_tokens.json")
    more = set(as_object(read_plain(beside), beside)) if beside.is_file() else set()
    if more - set(tokens):
        raise BadInput(f"{beside} adds tokens to vocab.txt: save the tokenizer with a tokenizer.json, which says how.")
    roles = set(_roles(settings))
    return tokens, Rules(
        lowercase=lowercase,
        strip_accents=bool(settings.get("strip_accents", lowercase)),
        chinese_characters=bool(settings.get("tokenize_chinese_chars", True)),
        added=tuple(Added(token) for token in tokens if token in roles),
    )


def settings_of(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json, and the special tokens where only their own file names them."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (path := folder / name).is_file():
            settings |= {key: value for key, value in as_object(read_plain(path), path).items() if value is not None}
    return settings


def longest_input(settings: Mapping[str, Any]) -> int | None:
    """The tokens a model reads at once, where the settings tell."""
    longest = settings.get("model_max_length")
    sane = isinstance(longest, int) and not isinstance(longest, bool) and 0 < longest <= _LONGEST_SANE
    return longest if sane else None


def _roles(settings: Mapping[str, Any]) -> tuple[str, ...]:
    named = [settings.get(role, usual) for role, usual in zip(ROLES, SPECIALS, strict=True)]
    return tuple(str(token.get("content") if isinstance(token, dict) else token) for token in named)


def _kind(part: Mapping[str, Any]) -> Any:
    """The type of a part; files of 2020 leave out the model's, and only a WordPiece model has this setting."""
    return part.get("type", "WordPiece" if "max_input_chars_per_word" in part else None)


def _agree(path: Path, rules: Rules, settings: Mapping[str, Any]) -> None:
    pairs = {
        "do_lower_case": rules.lowercase,
        "strip_accents": rules.strip_accents,
        "tokenize_chinese_chars": rules.chinese_characters,
    }
    for name, value in pairs.items():
        if settings.get(name, value) != value:
            raise BadInput(f"{path} and tokenizer_config.json disagree about {name}: correct the one that is wrong.")


def as_added(row: Mapping[str, Any], path: Path) -> Added:
    token = row.get("content")
    if not isinstance(token, str) or not token:
        raise BadInput(f"{path} adds a token that is not text: {token!r}.")
    flags = ("special", "single_word", "lstrip", "rstrip", "normalized")
    return Added(token, **{name: as_flag(row, name, path) for name in flags})


def read_plain(path: Path) -> Any:
    try:
        return read_json(path)
    except RecursionError:
        raise Damaged(f"{path} is nested too deeply to be a tokenizer's.") from None


def as_object(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(f"{path} is not laid out as a tokenizer's file is.")
    return value


def as_rows(value: Any, path: Path) -> list[dict[str, Any]]:
    return [as_object(row, path) for row in value] if isinstance(value, list) else []


def as_number(value: Any, path: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadInput(f"{path} has {value!r} where a number belongs.")
    return value


def as_flag(row: Mapping[str, Any], name: str, path: Path) -> bool:
    if not isinstance(value := row.get(name), bool):
        raise BadInput(f"{path} has {value!r} for {name}, where true or false belongs.")
    return value
