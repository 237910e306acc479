"""A unigram tokenizer's own files -> what decides its ids. In: a folder; out: vocabulary, scores, rules.

As in `folder`, `tokenizer.json` is read as plain JSON and only the parts that ALBERT's and XLM-R's tokenizers are made
of are accepted; no regular expression of a file reaches the tokenizers library. Without it, SentencePiece's own file
says the same.
"""

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firth.errors import BadInput
from firth.tokenizers.folder import (
    ROLES,
    Added,
    as_added,
    as_number,
    as_object,
    as_rows,
    longest_input,
    read_plain,
    settings_of,
)
from firth.tokenizers.sentencepiece import CONTROL, USER_DEFINED, read_model
from firth.tokenizers.vocab import Frame, Vocab

SPACE = "\u2581"
SPACES = " {2,}"
"""The one regular expression that is known: several spaces in a row."""
ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
XLM_ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
PLAIN = ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "StripAccents", "Lowercase")
"""Normalizers without settings."""
MODELS = ("spiece.model", "sentencepiece.bpe.model")
"""SentencePiece's file under the names that ALBERT's and XLM-R's folders give it."""
Step = tuple[str, ...]
"""A normalizer and its settings."""


@dataclass(frozen=True)
class Rules:
    """What decides ids besides the vocabulary."""

    scores: tuple[float, ...]
    """Logarithms of the pieces' probabilities, in the order of their ids."""
    unknown: int
    normalizer: tuple[Step, ...] = ()
    by_space: bool = True
    """Whether text is first cut at white space, so that no piece holds several spaces."""
    scheme: str = "always"
    """Whether the mark of a space is put before texts that begin without one."""
    added: tuple[Added, ...] = ()


def read_folder(folder: Path) -> tuple[Vocab, Rules, int | None]:
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.")
    settings = settings_of(folder)
    models = [folder / name for name in MODELS if (folder / name).is_file()]
    if (path := folder / "tokenizer.json").is_file():
        tokens, rules, frame = _from_json(path)
    elif models:
        path = models[0]
        tokens, rules, frame = _from_model(path, settings)
    else:
        raise BadInput(f"{folder} has no unigram tokenizer: it needs a tokenizer.json or a {MODELS[0]}.")
    usual = ALBERT if "[CLS]" in tokens else XLM_ROBERTA
    named = [settings.get(role, token) for role, token in zip(ROLES, usual, strict=True)]
    roles = tuple(str(token.get("content") if isinstance(token, dict) else token) for token in named)
    others = frozenset(added.token for added in rules.added if added.special and added.token not in roles)
    try:
        vocab = Vocab(tokens, roles, others, frame)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return vocab, rules, longest_input(settings)


def _from_json(path: Path) -> tuple[tuple[str, ...], Rules, Frame | None]:
    parts = as_object(read_plain(path), path)
    model = as_object(parts.get("model"), path)
    if model.get("type") != "Unigram" or model.get("byte_fallback"):
        raise BadInput(f"{path} has the model {model.get('type')!r}; a unigram tokenizer without bytes has 'Unigram'.")
    pairs = model.get("vocab")
    if not isinstance(pairs, list) or not all(map(_is_piece, pairs)):
        raise BadInput(f"{path} does not list pieces with their scores.")
    rows = as_rows(parts.get("added_tokens"), path)
    added = sorted(((as_number(row.get("id"), path), as_added(row, path)) for row in rows), key=lambda pair: pair[0])
    tokens = [piece for piece, _ in pairs]
    for i, one in added:
        if i == len(tokens):
            tokens.append(one.token)
        elif i > len(tokens) or tokens[i] != one.token:
            raise BadInput(f"{path} does not give every id from 0 on exactly one token.")
    by_space, scheme = _pre_tokenizer(parts.get("pre_tokenizer"), path)
    rules = Rules(
        scores=tuple(float(score) for _, score in pairs),
        unknown=as_number(model.get("unk_id"), path),
        normalizer=tuple(_steps(parts.get("normalizer"), path)),
        by_space=by_space,
        scheme=scheme,
        added=tuple(one for _, one in added),
    )
    return tuple(tokens), rules, _frame(parts.get("post_processor"), {token: i for i, token in enumerate(tokens)}, path)


def _from_model(path: Path, settings: Mapping[str, Any]) -> tuple[tuple[str, ...], Rules, Frame | None]:
    """SentencePiece's file as ALBERT and XLM-R use it: the one by its name, the other by its name and shifted ids."""
    model = read_model(path)
    charsmap = (("Precompiled", base64.b64encode(model.charsmap).decode()),) if model.charsmap else ()
    pieces = [(piece.text, piece.score) for piece in model.pieces]
    if path.name == MODELS[1]:
        pieces = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")] + pieces[3:] + [("<mask>", 0.0)]
        steps: tuple[Step, ...] = (*charsmap, ("Replace", "", SPACES, " "))
        specials, unknown, frame = XLM_ROBERTA, 3, Frame((0,), (2, 2), (2,), second_segment=0)
    else:
        # ALBERT never ends a piece with a digit and a comma; such a piece is as good as forbidden.
        pieces = [(text, score - 100 * (text[-1:] == "," and text[-2:-1].isdigit())) for text, score in pieces]
        accents = () if settings.get("keep_accents") else (("NFKD",), ("StripAccents",))
        lower = (("Lowercase",),) if settings.get("do_lower_case", True) else ()
        quotes = (("Replace", "``", "", '"'), ("Replace", "''", "", '"'))
        steps = (*quotes, *accents, *lower, *charsmap, ("Replace", "", SPACES, " "))
        specials, unknown, frame = ALBERT, model.unknown, None
    named = {piece.text: piece.kind for piece in model.pieces if piece.kind in (CONTROL, USER_DEFINED)}
    tokens = tuple(text for text, _ in pieces)
    added = tuple(
        Added(token, special=token in specials or named.get(token) == CONTROL)
        for token in tokens
        if token in specials or token in named
    )
    return tokens, Rules(tuple(score for _, score in pieces), unknown, steps, added=added), frame


def _is_piece(pair: Any) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and isinstance(pair[1], int | float)
        and math.isfinite(pair[1])
    )


def _steps(part: Any, path: Path) -> Iterator[Step]:
    if part is None:
        return
    part = as_object(part, path)
    kind = part.get("type")
    if kind == "Sequence":
        for inner in as_rows(part.get("normalizers"), path):
            yield from _steps(inner, path)
    elif kind in PLAIN:
        yield (str(kind),)
    elif kind == "Precompiled":
        try:
            charsmap = base64.b64decode(str(part.get("precompiled_charsmap")), validate=True)
        except binascii.Error:
            raise BadInput(f"{path} has a table of characters that is not base64.") from None
        yield "Precompiled", base64.b64encode(charsmap).decode()
    elif kind == "Replace":
        pattern = as_object(part.get("pattern"), path)
        text, regex, content = pattern.get("String", ""), pattern.get("Regex", ""), part.get("content")
        if (
            not isinstance(text, str)
            or regex not in ("", SPACES)
            or not (text or regex)
            or not isinstance(content, str)
        ):
            raise BadInput(f"{path} replaces {pattern!r}, which is neither a text nor several spaces.")
        yield "Replace", text, regex, content
    else:
        raise BadInput(f"{path} has the normalizer {kind!r}, which firth does not know.")


def _pre_tokenizer(part: Any, path: Path) -> tuple[bool, str]:
    part = as_object(part, path)
    rows = as_rows(part.get("pretokenizers"), path) if part.get("type") == "Sequence" else [part]
    kinds = [row.get("type") for row in rows]
    if kinds not in (["WhitespaceSplit", "Metaspace"], ["Metaspace"]):
        raise BadInput(f"{path} cuts text by {kinds}; a unigram tokenizer does it by Metaspace.")
    space = rows[-1]
    scheme = space.get("prepend_scheme", "always" if space.get("add_prefix_space", True) else "never")
    if space.get("replacement", SPACE) != SPACE or scheme not in ("always", "first", "never"):
        raise BadInput(f"{path} marks spaces by {space.get('replacement')!r}, scheme {scheme!r}, instead of {SPACE!r}.")
    return len(kinds) == 2, scheme


def _frame(part: Any, ids: Mapping[str, int], path: Path) -> Frame | None:
    """What stands before, between and behind the texts of a pair; None where the file does not say."""
    if part is None:
        return None
    if as_object(part, path).get("type") != "TemplateProcessing":
        raise BadInput(f"{path} frames texts by {part.get('type')!r}; a unigram tokenizer does it by a template.")
    parts: list[list[int]] = [[]]
    second = 0
    for row in as_rows(part.get("pair"), path):
        if "Sequence" in row:
            second = as_number(as_object(row["Sequence"], path).get("type_id"), path)
            parts.append([])
        else:
            token = str(as_object(row.get("SpecialToken"), path).get("id"))
            if token not in ids:
                raise BadInput(f"{path} frames texts by {token!r}, which is no token.")
            parts[-1].append(ids[token])
    if len(parts) != 3:
        raise BadInput(f"{path} has a template without two texts.")
    opening, between, closing = map(tuple, parts)
    return Frame(opening, between, closing, second_segment=second)
