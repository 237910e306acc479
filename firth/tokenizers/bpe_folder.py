"""Reads the files of a byte-level BPE tokenizer. In: a folder; out: vocabulary, merges, rules and longest input.

As in `folder`, `tokenizer.json` is read as plain JSON and only the components of GPT-2's, RoBERTa's and ModernBERT's
tokenizers are accepted; the regular expression that cuts words never comes from a file. Without `tokenizer.json`,
`vocab.json` and `merges.txt` hold the same information.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from firth.errors import BadInput
from firth.tokenizers.unigram_folder import template_frame
from firth.tokenizers.vocab import Frame, Vocab
from firth.tokenizers.wordpiece_folder import (
    ROLES,
    Added,
    JsonObject,
    as_flag,
    as_object,
    longest_input,
    other_specials,
    read_added,
    read_pieces,
    read_plain,
    settings_of,
    token_text,
    tokens_by_id,
)

ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
"""RoBERTa's padding, unknown, opening, separating and mask tokens."""
END_OF_TEXT = "<|endoftext|>"
"""GPT-2's only special token, in all roles."""
_ACCEPTED: dict[str, tuple[str | None, ...]] = {
    "normalizer": (None, "NFC"),
    "pre_tokenizer": ("ByteLevel",),
    "model": ("BPE",),
    "post_processor": ("RobertaProcessing", "ByteLevel", "TemplateProcessing", None),
    "decoder": ("ByteLevel", None),
}
"""The type that each component of tokenizer.json may have."""
_UNSET: dict[str, tuple[float | str | None, ...]] = {
    "dropout": (None, 0, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False),
}
"""Settings of the model that must be absent or switched off."""
Merges = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class BPERules:
    """Everything besides vocabulary and merges that decides ids."""

    prefix_space: bool = False
    """Whether a text that begins without a space is read as if it began with one."""
    added: tuple[Added, ...] = ()
    """Tokens that are matched in the text before it is cut, in the order of their ids."""
    num_pieces: int | None = None
    """Ids from here on are added tokens outside the BPE model; None: there are none."""
    normalizer: str = ""
    """`NFC` where characters are composed before text is cut, as in ModernBERT; empty for no normalizer."""


def frame_of(tokens: tuple[str, ...], roles: tuple[str, ...], *, opens: bool) -> Frame:
    """RoBERTa's `<s> A </s></s> B </s>`; where one token has all roles, `A <|endoftext|> B <|endoftext|>`.

    With `opens` the latter also begins with that token. For GPT these are start, delimiter and extract tokens.
    """
    # All segments are 0: neither RoBERTa nor GPT distinguishes the texts of a pair.
    cls = tokens.index(roles[2])
    sep = tokens.index(roles[3])
    if cls != sep:
        return Frame((cls,), (sep, sep), (sep,), second_segment=0)
    opening = (cls,) if opens else ()
    return Frame(opening, (sep,), (sep,), second_segment=0)


def read_folder(folder: Path) -> tuple[Vocab, Merges, BPERules, int | None]:
    """Vocabulary, merges, rules, and the longest input in tokens where the folder states it."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.")
    settings = settings_of(folder)
    json_path = folder / "tokenizer.json"
    vocab_path = folder / "vocab.json"
    if json_path.is_file():
        path = json_path
        tokens, merges, rules = _from_json(path)
    elif vocab_path.is_file() and (folder / "merges.txt").is_file():
        path = vocab_path
        tokens, merges, rules = _from_text(path, settings)
    else:
        raise BadInput(f"{folder} has no BPE tokenizer: it needs a tokenizer.json, or vocab.json and merges.txt.")
    _check_merges(path, tokens, merges)
    roles = _roles(settings, tokens)
    missing = [role for role in roles if role not in tokens]
    if missing:
        raise BadInput(f"{path}: the vocabulary has no {' '.join(dict.fromkeys(missing))}.")
    frame = frame_of(tokens, roles, opens=settings.get("add_bos_token") is True)
    if path == json_path and roles[2] != roles[3]:
        frame = _template(path, tokens) or frame
    vocab = Vocab(tokens, roles, other_specials(rules.added, roles), own_frame=frame)
    return vocab, merges, rules, longest_input(settings)


def _template(path: Path, tokens: tuple[str, ...]) -> Frame | None:
    """The frame of a tokenizer.json that spells it out, as ModernBERT's does."""
    post_processor = as_object(read_plain(path), path).get("post_processor")
    if not post_processor or as_object(post_processor, path).get("type") != "TemplateProcessing":
        return None
    ids = {token: i for i, token in enumerate(tokens)}
    return template_frame(post_processor, ids, path)


def _from_json(path: Path) -> tuple[tuple[str, ...], Merges, BPERules]:
    components = as_object(read_plain(path), path)
    _check_components(components, path)
    pre_tokenizer = as_object(components["pre_tokenizer"], path)
    model = as_object(components["model"], path)
    if not as_flag({"use_regex": True, **pre_tokenizer}, "use_regex", path):
        raise BadInput(f"{path} does not cut text into words as GPT-2 does (use_regex is false).")
    for name, accepted in _UNSET.items():
        if model.get(name) not in accepted:
            raise BadInput(f"{path} has a BPE with {name}={model[name]!r}, which GPT-2's and RoBERTa's do not have.")

    # Added tokens may repeat pieces of the model or follow them.
    pieces = read_pieces(model.get("vocab"), path)
    added_with_ids = read_added(components.get("added_tokens"), path)
    added_ids = {added.token: i for i, added in added_with_ids}
    tokens = tokens_by_id(path, pieces, added_ids)
    normalizer = "NFC" if components.get("normalizer") else ""
    rules = BPERules(
        prefix_space=as_flag(pre_tokenizer, "add_prefix_space", path),
        added=tuple(added for _, added in added_with_ids),
        num_pieces=_num_pieces(pieces, tokens),
        normalizer=normalizer,
    )
    return tokens, _read_merges(model.get("merges") or [], path), rules


def _check_components(components: JsonObject, path: Path) -> None:
    for name, accepted in _ACCEPTED.items():
        component = as_object(components.get(name) or {}, path)
        # Files from 2020 leave out the model's type.
        default = "BPE" if "merges" in component else None
        kind = component.get("type", default)
        if kind not in accepted:
            raise BadInput(f"{path} has the {name} {kind!r}; a byte-level BPE tokenizer has {accepted[0]}.")


def _read_merges(rows: object, path: Path) -> Merges:
    if not isinstance(rows, list):
        raise BadInput(f"{path} is not laid out as a tokenizer's file is.")
    return tuple(_merge_pair(row, path) for row in rows)


def _from_text(path: Path, settings: Mapping[str, object]) -> tuple[tuple[str, ...], Merges, BPERules]:
    """Reads vocab.json (`path`), merges.txt and, where there is one, added_tokens.json."""
    pieces = read_pieces(read_plain(path), path)
    added_path = path.with_name("added_tokens.json")
    added_ids: dict[str, int] = {}
    if added_path.is_file():
        added_ids = read_pieces(read_plain(added_path), added_path)
    tokens = tokens_by_id(path, pieces, added_ids)

    merges_path = path.with_name("merges.txt")
    try:
        text = merges_path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"{merges_path} is not UTF-8 text ({error}).") from None
    lines = text.replace("\r\n", "\n").split("\n")
    merge_lines = [line for line in lines if line and not line.startswith("#version")]
    merges = tuple(_merge_pair(line, merges_path) for line in merge_lines)

    roles = set(_roles(settings, tokens))
    rules = BPERules(
        prefix_space=settings.get("add_prefix_space") is True,
        added=tuple(Added(token) for token in tokens if token in roles or token in added_ids),
        num_pieces=_num_pieces(pieces, tokens),
    )
    return tokens, merges, rules


def _num_pieces(pieces: Mapping[str, int], tokens: tuple[str, ...]) -> int | None:
    if len(pieces) < len(tokens):
        return len(pieces)
    return None


def _merge_pair(merge: object, path: Path) -> tuple[str, str]:
    """A merge is written as "left right" or as a list of both."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if isinstance(parts, list) and len(parts) == 2:
        left, right = parts
        are_texts = isinstance(left, str) and isinstance(right, str)
        if are_texts and left and right:
            return left, right
    raise BadInput(f"{path} has a merge that is not two pieces: {merge!r:.80}.")


def _check_merges(path: Path, tokens: tuple[str, ...], merges: Merges) -> None:
    known = set(tokens)
    for left, right in merges:
        missing = {left, right, left + right} - known
        if missing:
            raise BadInput(f"{path} merges {left!r} and {right!r}, but its vocabulary has no {min(missing)!r}.")


def _roles(settings: Mapping[str, object], tokens: tuple[str, ...]) -> tuple[str, ...]:
    """The tokens that the settings name; else RoBERTa's where the vocabulary has them, else GPT-2's one for all."""
    names = (*ROLES, "bos_token", "eos_token")
    named = {name: token_text(settings[name]) for name in names if name in settings}
    has_roberta_tokens = "<s>" in tokens and "</s>" in tokens
    ends_like_roberta = named.get("eos_token", "</s>") == "</s>"
    if has_roberta_tokens and ends_like_roberta and "cls_token" not in named:
        defaults = dict(zip(ROLES, ROBERTA, strict=True))
        named = {**defaults, **named}
    # A GPT-2 folder names no roles but the end of a text, which then has all of them.
    end = named.get("eos_token", END_OF_TEXT)
    return tuple(named.get(role, end) for role in ROLES)
