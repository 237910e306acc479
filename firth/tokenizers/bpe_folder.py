"""A byte-level BPE tokenizer's own files -> what decides its ids. In: a folder; out: vocabulary, merges, rules.

As in `folder`, `tokenizer.json` is read as plain JSON and only the parts that GPT-2's and RoBERTa's tokenizers are made
of are accepted; the regular expression that cuts words is never a file's. Without it, `vocab.json` and `merges.txt` say
the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.errors import BadInput
from firth.tokenizers.folder import (
    ROLES,
    Added,
    as_added,
    as_flag,
    as_number,
    as_object,
    as_rows,
    longest_input,
    read_plain,
    settings_of,
)
from firth.tokenizers.vocab import Frame, Vocab

ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
"""Padding, unknown, opening, separating and masking tokens."""
END_OF_TEXT = "<|endoftext|>"
"""GPT-2's only special token, in all roles."""
_PARTS = {
    "normalizer": (None,),
    "pre_tokenizer": ("ByteLevel",),
    "model": ("BPE",),
    "post_processor": ("RobertaProcessing", "ByteLevel", "TemplateProcessing", None),
    "decoder": ("ByteLevel", None),
}
_ABSENT: dict[str, tuple[Any, ...]] = {
    "dropout": (None, 0, 0.0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False),
}
"""Settings of the model that must say nothing."""
Merges = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Rules:
    """What decides ids besides vocabulary and merges."""

    prefix_space: bool = False
    """Whether a text that begins without a space is read as if it began with one."""
    added: tuple[Added, ...] = ()
    """Tokens looked for in the text before it is cut, in the order of their ids."""
    num_pieces: int | None = None
    """Ids from here on are added tokens that the pieces do not know; None: there are none."""


def frame_of(tokens: tuple[str, ...], roles: tuple[str, ...], *, opens: bool) -> Frame:
    """RoBERTa's `<s> A </s></s> B </s>`; where one token has all roles, `A <|endoftext|> B <|endoftext|>`, on request
    with one in front as well. For GPT these are start, delimiter and extract."""
    cls, sep = tokens.index(roles[2]), tokens.index(roles[3])
    if cls != sep:
        return Frame((cls,), (sep, sep), (sep,), second_segment=0)
    return Frame((cls,) if opens else (), (sep,), (sep,), second_segment=0)


def read_folder(folder: Path) -> tuple[Vocab, Merges, Rules, int | None]:
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.")
    settings = settings_of(folder)
    if (path := folder / "tokenizer.json").is_file():
        tokens, merges, rules = _from_json(path)
    elif (path := folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        tokens, merges, rules = _from_text(path, settings)
    else:
        raise BadInput(f"{folder} has no BPE tokenizer: it needs a tokenizer.json, or vocab.json and merges.txt.")
    _check_merges(path, tokens, merges)
    roles = _roles(settings, tokens)
    others = frozenset(added.token for added in rules.added if added.special and added.token not in roles)
    if missing := [role for role in roles if role not in tokens]:
        raise BadInput(f"{path}: the vocabulary has no {' '.join(dict.fromkeys(missing))}.")
    frame = frame_of(tokens, roles, opens=settings.get("add_bos_token") is True)
    return Vocab(tokens, roles, others, own_frame=frame), merges, rules, longest_input(settings)


def _from_json(path: Path) -> tuple[tuple[str, ...], Merges, Rules]:
    parts = as_object(read_plain(path), path)
    for name, accepted in _PARTS.items():
        part = as_object(parts.get(name) or {}, path)
        kind = part.get("type", "BPE" if "merges" in part else None)  # files of 2020 leave out the model's
        if kind not in accepted:
            raise BadInput(f"{path} has the {name} {kind!r}; a byte-level BPE tokenizer has {accepted[0]}.")
    cutter, model = parts["pre_tokenizer"], parts["model"]
    if not as_flag({"use_regex": True, **cutter}, "use_regex", path):
        raise BadInput(f"{path} does not cut text into words as GPT-2 does (use_regex is false).")
    for name, accepted in _ABSENT.items():
        if model.get(name) not in accepted:
            raise BadInput(f"{path} has a BPE with {name}={model[name]!r}, which GPT-2's and RoBERTa's do not have.")
    pieces = {token: as_number(i, path) for token, i in as_object(model.get("vocab"), path).items()}
    rows = as_rows(parts.get("added_tokens"), path)
    added = sorted(((as_number(row.get("id"), path), as_added(row, path)) for row in rows), key=lambda pair: pair[0])
    tokens = _in_order(path, pieces, {row.token: i for i, row in added})
    merges = tuple(_pair(merge, path) for merge in model.get("merges") or ())
    rules = Rules(as_flag(cutter, "add_prefix_space", path), tuple(row for _, row in added), _beyond(pieces, tokens))
    return tokens, merges, rules


def _from_text(path: Path, settings: Mapping[str, Any]) -> tuple[tuple[str, ...], Merges, Rules]:
    pieces = {token: as_number(i, path) for token, i in as_object(read_plain(path), path).items()}
    beside, listed = path.with_name("added_tokens.json"), path.with_name("merges.txt")
    more = as_object(read_plain(beside), beside) if beside.is_file() else {}
    tokens = _in_order(path, pieces, {token: as_number(i, beside) for token, i in more.items()})
    try:
        lines = listed.read_bytes().decode().replace("\r\n", "\n").split("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"{listed} is not UTF-8 text ({error}).") from None
    merges = tuple(_pair(line, listed) for line in lines if line and not line.startswith("#version"))
    roles = {*_roles(settings, tokens)}
    added = tuple(Added(token) for token in tokens if token in roles or token in more)
    return tokens, merges, Rules(settings.get("add_prefix_space") is True, added, _beyond(pieces, tokens))


def _in_order(path: Path, pieces: Mapping[str, int], added: Mapping[str, int]) -> tuple[str, ...]:
    ids = {**pieces, **added}
    tokens = tuple(sorted(ids, key=ids.__getitem__))
    if [ids[token] for token in tokens] != list(range(len(ids))) or max(pieces.values(), default=-1) >= len(pieces):
        raise BadInput(f"{path} does not give every id from 0 on exactly one token.")
    return tokens


def _beyond(pieces: Mapping[str, int], tokens: tuple[str, ...]) -> int | None:
    return len(pieces) if len(pieces) < len(tokens) else None


def _pair(merge: Any, path: Path) -> tuple[str, str]:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        raise BadInput(f"{path} has a merge that is not two pieces: {merge!r:.80}.")
    return parts[0], parts[1]


def _check_merges(path: Path, tokens: tuple[str, ...], merges: Merges) -> None:
    known = {*tokens}
    for left, right in merges:
        if strange := {left, right, left + right} - known:
            raise BadInput(f"{path} merges {left!r} and {right!r}, but its vocabulary has no {min(strange)!r}.")


def _roles(settings: Mapping[str, Any], tokens: tuple[str, ...]) -> tuple[str, ...]:
    """The tokens that the settings name; else RoBERTa's where the vocabulary has them, else GPT-2's one for all."""
    named = {name: _content(settings[name]) for name in (*ROLES, "bos_token", "eos_token") if name in settings}
    if {"<s>", "</s>"} <= {*tokens} and "cls_token" not in named and named.get("eos_token", "</s>") == "</s>":
        named = {**dict(zip(ROLES, ROBERTA, strict=True)), **named}
    end = named.get("eos_token", END_OF_TEXT)
    return tuple(named.get(role, end) for role in ROLES)


def _content(token: Any) -> str:
    return str(token.get("content") if isinstance(token, dict) else token)
