"""Reads the files of a BERT tokenizer. In: a folder; out: its vocabulary, rules and longest input.

`tokenizer.json` is read as plain JSON, component by component: only the components of BERT tokenizers are accepted, and
none of the file reaches the tokenizers library, where a hostile regular expression could end the process. Its
truncation and padding settings are ignored. Without it, `vocab.txt` and `tokenizer_config.json` hold the same
information. The JSON helpers at the end are shared by the readers of BPE and unigram folders.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from firth.errors import BadInput, Damaged
from firth.files import read_json
from firth.tokenizers.segmentation import repair
from firth.tokenizers.vocab import PREFIX, SPECIALS, Frame, Vocab

JsonObject = dict[str, object]
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
_ACCEPTED: dict[str, tuple[str | None, ...]] = {
    "normalizer": ("BertNormalizer",),
    "pre_tokenizer": ("BertPreTokenizer",),
    "model": ("WordPiece",),
    "post_processor": ("TemplateProcessing", "BertProcessing", "RobertaProcessing", None),
    "decoder": ("WordPiece", None),
}
"""The type that each component of tokenizer.json may have."""
MPNET = ("<pad>", "[UNK]", "<s>", "</s>", "<mask>")
"""MPNet's special tokens; its texts are framed as RoBERTa's: `<s> A </s></s> B </s>`."""
_LONGEST_PLAUSIBLE = 1_000_000  # folders without a limit state 1e30


@dataclass(frozen=True)
class Added:
    """A token that is matched in the text before it is cut into words."""

    token: str
    special: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True)
class WordPieceRules:
    """Everything besides the vocabulary that decides ids."""

    lowercase: bool
    strip_accents: bool
    chinese_characters: bool
    clean_text: bool = True
    longest_word: int = 100
    """A word of more characters is unknown."""
    added: tuple[Added, ...] = tuple(map(Added, SPECIALS))
    """In the order of their ids."""
    num_pieces: int | None = None
    """Ids from here on are added tokens outside the WordPiece model; None: there are none."""


def read_folder(folder: Path) -> tuple[Vocab, WordPieceRules, int | None]:
    """Vocabulary, rules, and the longest input in tokens where the folder states it."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.")
    settings = settings_of(folder)
    json_path = folder / "tokenizer.json"
    vocab_path = folder / "vocab.txt"
    if json_path.is_file():
        path = json_path
        tokens, rules = _from_json(path, settings)
    elif vocab_path.is_file():
        path = vocab_path
        tokens, rules = _from_text(path, settings)
    else:
        raise BadInput(f"{folder} has no tokenizer: it needs a tokenizer.json, or vocab.txt and tokenizer_config.json.")
    # vocab.txt, which `save` writes, has one token a line in UTF-8.
    if any("\n" in token or repair(token) != token for token in tokens):
        raise BadInput(f"{path} has a token that no line of text can hold.")
    roles = role_tokens(settings, defaults=usual_roles(settings))
    try:
        vocab = Vocab(tokens, roles, other_specials(rules.added, roles), _own_frame(path, tokens, roles, settings))
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return vocab, rules, longest_input(settings)


def usual_roles(settings: Mapping[str, object]) -> tuple[str, ...]:
    """The special tokens of a folder that names none."""
    return MPNET if _is_mpnet(settings) else SPECIALS


def _is_mpnet(settings: Mapping[str, object]) -> bool:
    return str(settings.get("tokenizer_class", "")).startswith("MPNet")


def _own_frame(
    path: Path,
    tokens: tuple[str, ...],
    roles: tuple[str, ...],
    settings: Mapping[str, object],
) -> Frame | None:
    """MPNet's frame, where a folder has it; None for BERT's."""
    doubles = _is_mpnet(settings)
    if path.name == "tokenizer.json":
        components = as_object(read_plain(path), path)
        post_processor = as_object(components.get("post_processor") or {}, path)
        doubles = post_processor.get("type") == "RobertaProcessing"
    if not doubles or roles[2] not in tokens or roles[3] not in tokens:
        return None
    cls = tokens.index(roles[2])
    sep = tokens.index(roles[3])
    return Frame((cls,), (sep, sep), (sep,), second_segment=0)


def _from_json(path: Path, settings: Mapping[str, object]) -> tuple[tuple[str, ...], WordPieceRules]:
    components = as_object(read_plain(path), path)
    model = _checked_model(components, path, settings)
    pieces = read_pieces(model.get("vocab"), path)
    added_with_ids = read_added(components.get("added_tokens"), path)
    added_ids = {added.token: i for i, added in added_with_ids}
    tokens = tokens_by_id(path, pieces, added_ids)

    normalizer = as_object(components["normalizer"], path)
    num_pieces = None
    if len(pieces) < len(tokens):
        num_pieces = len(pieces)
    rules = WordPieceRules(
        lowercase=as_flag(normalizer, "lowercase", path),
        strip_accents=_strips_accents(normalizer, path),
        chinese_characters=as_flag(normalizer, "handle_chinese_chars", path),
        clean_text=as_flag(normalizer, "clean_text", path),
        longest_word=as_number(model.get("max_input_chars_per_word", 100), path),
        added=tuple(added for _, added in added_with_ids),
        num_pieces=num_pieces,
    )
    _check_settings(path, rules, settings)
    return tokens, rules


def _checked_model(components: JsonObject, path: Path, settings: Mapping[str, object]) -> JsonObject:
    """The model of a tokenizer.json whose components are those of a BERT; raises for any other file."""
    for name, accepted in _ACCEPTED.items():
        kind = _component_type(as_object(components.get(name) or {}, path))
        if kind not in accepted:
            raise BadInput(f"{path} has the {name} {kind!r}; a WordPiece tokenizer of BERT has {accepted[0]}.")
    model = as_object(components["model"], path)
    prefix = model.get("continuing_subword_prefix")
    if prefix != PREFIX:
        raise BadInput(f"{path} marks pieces inside words by {prefix!r} instead of {PREFIX!r}.")
    # The model names the unknown token itself; both files must agree.
    unknown = role_tokens(settings, defaults=usual_roles(settings))[1]
    if model.get("unk_token") != unknown:
        raise BadInput(f"{path} takes {model.get('unk_token')!r} for unknown words, tokenizer_config.json {unknown!r}.")
    return model


def _strips_accents(normalizer: JsonObject, path: Path) -> bool:
    """Without a setting of its own, accents are stripped where text is lower-cased."""
    if normalizer.get("strip_accents") is None:
        return as_flag(normalizer, "lowercase", path)
    return as_flag(normalizer, "strip_accents", path)


def _from_text(path: Path, settings: Mapping[str, object]) -> tuple[tuple[str, ...], WordPieceRules]:
    """Reads vocab.txt (`path`), one token a line; the rules are those of tokenizer_config.json."""
    lowercase = settings.get("do_lower_case")
    if not isinstance(lowercase, bool):
        raise BadInput(
            f"{path} alone does not say whether its text is lower-cased: add a tokenizer_config.json with "
            '"do_lower_case": true or false to its folder.'
        )
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text ({error}).") from None
    lines = text.replace("\r\n", "\n").split("\n")
    if not lines[-1]:
        lines.pop()  # after the last line end there is no token
    tokens = tuple(lines)
    _check_no_more_tokens(path.with_name("added_tokens.json"), tokens)
    roles = set(role_tokens(settings, defaults=usual_roles(settings)))
    rules = WordPieceRules(
        lowercase=lowercase,
        strip_accents=bool(settings.get("strip_accents", lowercase)),
        chinese_characters=bool(settings.get("tokenize_chinese_chars", True)),
        added=tuple(Added(token) for token in tokens if token in roles),
    )
    return tokens, rules


def _check_no_more_tokens(added_path: Path, tokens: tuple[str, ...]) -> None:
    if not added_path.is_file():
        return
    added = set(as_object(read_plain(added_path), added_path))
    if added - set(tokens):
        raise BadInput(
            f"{added_path} adds tokens to vocab.txt: save the tokenizer with a tokenizer.json, which says how."
        )


def settings_of(folder: Path) -> JsonObject:
    """tokenizer_config.json, and the special tokens where only special_tokens_map.json names them."""
    settings: JsonObject = {}
    # In this order, so that tokenizer_config.json wins.
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = folder / name
        if path.is_file():
            values = as_object(read_plain(path), path)
            settings |= {key: value for key, value in values.items() if value is not None}
    return settings


def longest_input(settings: Mapping[str, object]) -> int | None:
    """How many tokens the model reads at once, where the settings state a plausible number."""
    longest = settings.get("model_max_length")
    if not isinstance(longest, int) or isinstance(longest, bool):
        return None
    if not 0 < longest <= _LONGEST_PLAUSIBLE:
        return None
    return longest


def role_tokens(settings: Mapping[str, object], *, defaults: tuple[str, ...]) -> tuple[str, ...]:
    """The tokens that the settings name for the `ROLES`; a role without a name gets its default."""
    named = [settings.get(role, default) for role, default in zip(ROLES, defaults, strict=True)]
    return tuple(token_text(token) for token in named)


def token_text(token: object) -> str:
    """Settings write a token as text or as an object with `content`."""
    if isinstance(token, dict):
        return str(token.get("content"))
    return str(token)


def other_specials(added: Iterable[Added], roles: tuple[str, ...]) -> frozenset[str]:
    """Special tokens that have none of the roles."""
    return frozenset(one.token for one in added if one.special and one.token not in roles)


def _component_type(component: JsonObject) -> object:
    """The type of a component. Files from 2020 leave out the model's; only a WordPiece model has this setting."""
    default = "WordPiece" if "max_input_chars_per_word" in component else None
    return component.get("type", default)


def _check_settings(path: Path, rules: WordPieceRules, settings: Mapping[str, object]) -> None:
    expected = {
        "do_lower_case": rules.lowercase,
        "strip_accents": rules.strip_accents,
        "tokenize_chinese_chars": rules.chinese_characters,
    }
    for name, value in expected.items():
        if settings.get(name, value) != value:
            raise BadInput(f"{path} and tokenizer_config.json disagree about {name}: correct the one that is wrong.")


# What all readers of tokenizer.json share.


def read_pieces(value: object, path: Path) -> dict[str, int]:
    """A JSON object of token -> id."""
    return {token: as_number(i, path) for token, i in as_object(value, path).items()}


def read_added(value: object, path: Path) -> list[tuple[int, Added]]:
    """The rows of `added_tokens` as (id, token), sorted by id."""
    added = []
    for row in as_rows(value, path):
        token_id = as_number(row.get("id"), path)
        added.append((token_id, as_added(row, path)))
    added.sort(key=lambda pair: pair[0])
    return added


def tokens_by_id(path: Path, pieces: Mapping[str, int], added: Mapping[str, int]) -> tuple[str, ...]:
    """All tokens in the order of their ids, which must be 0, 1, 2 ... with those of the pieces first."""
    ids = {**pieces, **added}
    tokens = tuple(sorted(ids, key=ids.__getitem__))
    has_gaps = [ids[token] for token in tokens] != list(range(len(ids)))
    if has_gaps or max(pieces.values(), default=-1) >= len(pieces):
        raise BadInput(f"{path} does not give every id from 0 on exactly one token.")
    return tokens


def as_added(row: JsonObject, path: Path) -> Added:
    token = row.get("content")
    if not isinstance(token, str) or not token:
        raise BadInput(f"{path} adds a token that is not text: {token!r}.")
    return Added(
        token,
        special=as_flag(row, "special", path),
        single_word=as_flag(row, "single_word", path),
        lstrip=as_flag(row, "lstrip", path),
        rstrip=as_flag(row, "rstrip", path),
        normalized=as_flag(row, "normalized", path),
    )


def read_plain(path: Path) -> object:
    """The JSON values of a file."""
    try:
        value: object = read_json(path)
    except RecursionError:
        raise Damaged(f"{path} is nested too deeply to be a tokenizer's.") from None
    return value


def as_object(value: object, path: Path) -> JsonObject:
    if not isinstance(value, dict):
        raise BadInput(f"{path} is not laid out as a tokenizer's file is.")
    return value


def as_rows(value: object, path: Path) -> list[JsonObject]:
    if not isinstance(value, list):
        return []
    return [as_object(row, path) for row in value]


def as_number(value: object, path: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadInput(f"{path} has {value!r} where a number belongs.")
    return value


def as_flag(row: Mapping[str, object], name: str, path: Path) -> bool:
    value = row.get(name)
    if not isinstance(value, bool):
        raise BadInput(f"{path} has {value!r} for {name}, where true or false belongs.")
    return value
