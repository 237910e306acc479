"""Reads the files of a unigram tokenizer. In: a folder; out: vocabulary, rules with scores, and longest input.

As in `folder`, `tokenizer.json` is read as plain JSON and only the components of the tokenizers of ALBERT, XLNet,
XLM-R, T5 and DeBERTa are accepted; only two regular expressions of a file reach the tokenizers library. Without
`tokenizer.json`, SentencePiece's own file holds the same information.
"""

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from firth.errors import BadInput
from firth.tokenizers.sentencepiece import CONTROL, USER_DEFINED, SentencePieceModel, read_model
from firth.tokenizers.vocab import Frame, Vocab
from firth.tokenizers.wordpiece_folder import (
    Added,
    JsonObject,
    as_flag,
    as_number,
    as_object,
    as_rows,
    longest_input,
    other_specials,
    read_added,
    read_plain,
    role_tokens,
    settings_of,
)

SPACE = "\u2581"
SPACES = " {2,}"
"""Several spaces in a row."""
WHITE_SPACE = r"\s{2,}|[\n\r\t]"
"""What DeBERTa's tokenizer replaces by one space. No other regular expression than these two is accepted."""
ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
XLNET = ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>")
DEBERTA = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
XLM_ROBERTA = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
T5 = ("<pad>", "<unk>", "<pad>", "</s>", "<extra_id_0>")
"""T5's targets begin with its padding; its first sentinel is the nearest thing to a mask."""
NUM_SENTINELS = 100
"""Sentinels of T5's folders that do not say how many there are."""
PLAIN = ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "StripAccents", "Lowercase")
"""Normalizers without settings."""
MODELS = ("spiece.model", "sentencepiece.bpe.model", "spm.model")
"""SentencePiece's file under the names that ALBERT's and T5's, XLM-R's, and DeBERTa's folders give it."""
Step = tuple[str, ...]
"""A normalizer and its settings."""
ScoredPieces = list[tuple[str, float]]


@dataclass(frozen=True)
class UnigramRules:
    """Everything besides the vocabulary that decides ids."""

    scores: tuple[float, ...]
    """Log probabilities of the pieces, in the order of their ids."""
    unknown: int
    """The id of the unknown token."""
    normalizer: tuple[Step, ...] = ()
    by_space: bool = True
    """Whether text is first cut at white space, so that no piece holds several spaces."""
    scheme: str = "always"
    """When the space mark is put before a text that begins without a space: always, first or never."""
    added: tuple[Added, ...] = ()


def read_folder(folder: Path) -> tuple[Vocab, UnigramRules, int | None]:
    """Vocabulary, rules, and the longest input in tokens where the folder states it."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder.")
    settings = settings_of(folder)
    json_path = folder / "tokenizer.json"
    model_paths = [folder / name for name in MODELS if (folder / name).is_file()]
    if json_path.is_file():
        path = json_path
        tokens, rules, frame = _from_json(path)
    elif model_paths:
        path = model_paths[0]
        tokens, rules, frame = _from_model(path, settings)
    else:
        raise BadInput(f"{folder} has no unigram tokenizer: it needs a tokenizer.json or a {MODELS[0]}.")
    # Folders that name no special tokens have their model's usual ones.
    roles = role_tokens(settings, defaults=_usual_roles(tokens))
    try:
        vocab = Vocab(tokens, roles, other_specials(rules.added, roles), frame)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    return vocab, rules, longest_input(settings)


def _usual_roles(tokens: tuple[str, ...]) -> tuple[str, ...]:
    if "[PAD]" in tokens:
        return DEBERTA
    for roles in (ALBERT, XLNET):
        if roles[2] in tokens:
            return roles
    return XLM_ROBERTA if "<s>" in tokens else T5


def _from_json(path: Path) -> tuple[tuple[str, ...], UnigramRules, Frame | None]:
    components = as_object(read_plain(path), path)
    model = as_object(components.get("model"), path)
    if model.get("type") != "Unigram" or model.get("byte_fallback"):
        raise BadInput(f"{path} has the model {model.get('type')!r}; a unigram tokenizer without bytes has 'Unigram'.")
    pieces = _scored_pieces(model.get("vocab"), path)
    added_with_ids = read_added(components.get("added_tokens"), path)
    tokens = [piece for piece, _ in pieces]
    # An added token either names a piece of the model or takes the next id behind them.
    for i, added in added_with_ids:
        if i == len(tokens):
            tokens.append(added.token)
        elif i > len(tokens) or tokens[i] != added.token:
            raise BadInput(f"{path} does not give every id from 0 on exactly one token.")
    by_space, scheme = _pre_tokenizer(components.get("pre_tokenizer"), path)
    normalizer = _normalizer_steps(components.get("normalizer"), path)
    rules = UnigramRules(
        scores=tuple(score for _, score in pieces),
        unknown=as_number(model.get("unk_id"), path),
        normalizer=tuple(normalizer),
        by_space=by_space,
        scheme=scheme,
        added=tuple(added for _, added in added_with_ids),
    )
    ids = {token: i for i, token in enumerate(tokens)}
    return tuple(tokens), rules, template_frame(components.get("post_processor"), ids, path)


def _scored_pieces(rows: object, path: Path) -> ScoredPieces:
    """Rows of [piece, score]."""
    if not isinstance(rows, list) or not all(map(_is_scored_piece, rows)):
        raise BadInput(f"{path} does not list pieces with their scores.")
    return [(piece, float(score)) for piece, score in rows]


def _is_scored_piece(row: object) -> bool:
    if not isinstance(row, list) or len(row) != 2:
        return False
    piece, score = row
    return isinstance(piece, str) and isinstance(score, int | float) and math.isfinite(score)


@dataclass(frozen=True)
class _ModelFile:
    """What SentencePiece's file means as one model uses it."""

    pieces: ScoredPieces
    specials: tuple[str, ...]
    unknown: int
    steps: list[Step]
    """Normalizers."""
    frame: Frame | None = None


def _from_model(path: Path, settings: Mapping[str, object]) -> tuple[tuple[str, ...], UnigramRules, Frame | None]:
    """Reads SentencePiece's file as ALBERT, XLNet, T5 and XLM-R use it; its name and pieces say which of them it is."""
    model = read_model(path)
    texts = tuple(piece.text for piece in model.pieces)
    is_deberta = path.name == MODELS[2]
    if path.name == MODELS[1]:
        file = _xlm_roberta(model)
    elif is_deberta:
        file = _deberta(model, settings)
    elif _usual_roles(texts) == T5:
        file = _t5(model, settings)
    elif "<cls>" in texts and "[CLS]" not in texts:
        file = _xlnet(model, settings)
    else:
        file = _albert(model, settings)
    tokens = tuple(text for text, _ in file.pieces)
    rules = UnigramRules(
        scores=tuple(score for _, score in file.pieces),
        unknown=file.unknown,
        normalizer=(*file.steps, ("Replace", "", SPACES, " ")),
        by_space=not is_deberta,
        added=_added_tokens(model, tokens, file.specials),
    )
    return tokens, rules, file.frame


def _pieces_of(model: SentencePieceModel) -> ScoredPieces:
    return [(piece.text, piece.score) for piece in model.pieces]


def _xlm_roberta(model: SentencePieceModel) -> _ModelFile:
    # XLM-R replaces the first three pieces by four special tokens, which shifts all ids by one.
    opening = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces = opening + _pieces_of(model)[3:] + [("<mask>", 0.0)]
    frame = Frame((0,), (2, 2), (2,), second_segment=0)
    return _ModelFile(pieces, XLM_ROBERTA, 3, _charsmap_steps(model), frame)


def _deberta(model: SentencePieceModel, settings: Mapping[str, object]) -> _ModelFile:
    pieces = _pieces_of(model)
    if "[MASK]" not in [text for text, _ in pieces]:
        pieces.append(("[MASK]", 0.0))
    steps: list[Step] = [("Strip", "both"), *_charsmap_steps(model)]
    if settings.get("do_lower_case"):
        steps.insert(0, ("Lowercase",))
    return _ModelFile(pieces, DEBERTA, model.unknown, steps)


def _t5(model: SentencePieceModel, settings: Mapping[str, object]) -> _ModelFile:
    sentinels = _sentinels(settings)
    pieces = _pieces_of(model) + [(sentinel, 0.0) for sentinel in sentinels]
    end = [text for text, _ in pieces].index("</s>")
    frame = Frame((), (end,), (end,), second_segment=0)
    return _ModelFile(pieces, (*T5, *sentinels), model.unknown, _charsmap_steps(model), frame)


def _xlnet(model: SentencePieceModel, settings: Mapping[str, object]) -> _ModelFile:
    ids = {piece.text: i for i, piece in enumerate(model.pieces)}
    steps = _albert_steps(settings, lowercase=False) + _charsmap_steps(model)
    frame = _xlnet_frame(ids["<sep>"], ids["<cls>"])
    return _ModelFile(_without_digit_commas(model), XLNET, model.unknown, steps, frame)


def _albert(model: SentencePieceModel, settings: Mapping[str, object]) -> _ModelFile:
    steps = _albert_steps(settings, lowercase=True) + _charsmap_steps(model)
    return _ModelFile(_without_digit_commas(model), ALBERT, model.unknown, steps)


def _without_digit_commas(model: SentencePieceModel) -> ScoredPieces:
    """ALBERT and XLNet never end a piece with a digit and a comma: a low score effectively forbids such a piece."""
    pieces = []
    for piece in model.pieces:
        ends_so = piece.text[-1:] == "," and piece.text[-2:-1].isdigit()
        pieces.append((piece.text, piece.score - 100 if ends_so else piece.score))
    return pieces


def _sentinels(settings: Mapping[str, object]) -> list[str]:
    """T5's sentinels behind the pieces of the file, the last one first."""
    count = settings.get("extra_ids", NUM_SENTINELS)
    if not isinstance(count, int) or not 0 < count <= 10_000:
        raise BadInput(f"tokenizer_config.json has extra_ids={count!r}; a T5 has a number of sentinels above 0.")
    return [f"<extra_id_{i}>" for i in reversed(range(count))]


def _xlnet_frame(separator: int, cls: int) -> Frame:
    """`first <sep> second <sep> <cls>`."""
    return Frame((), (separator,), (separator, cls), last_segment=2)


def _albert_steps(settings: Mapping[str, object], *, lowercase: bool) -> list[Step]:
    """ALBERT's and XLNet's own preprocessing; `lowercase` is what they do where the settings do not say."""
    # In this order: quotes, accents, case.
    steps: list[Step] = [("Replace", "``", "", '"'), ("Replace", "''", "", '"')]
    if not settings.get("keep_accents"):
        steps += [("NFKD",), ("StripAccents",)]
    if settings.get("do_lower_case", lowercase):
        steps.append(("Lowercase",))
    return steps


def _charsmap_steps(model: SentencePieceModel) -> list[Step]:
    if not model.charsmap:
        return []
    return [("Precompiled", base64.b64encode(model.charsmap).decode())]


def _added_tokens(model: SentencePieceModel, tokens: tuple[str, ...], specials: tuple[str, ...]) -> tuple[Added, ...]:
    """The special tokens, and the file's own control and user-defined pieces."""
    kinds = {piece.text: piece.kind for piece in model.pieces if piece.kind in (CONTROL, USER_DEFINED)}
    added = []
    for token in tokens:
        if token in specials or token in kinds:
            is_special = token in specials or kinds.get(token) == CONTROL
            added.append(Added(token, special=is_special))
    return tuple(added)


def _normalizer_steps(value: object, path: Path) -> Iterator[Step]:
    """The normalizers of tokenizer.json in order; a sequence within a sequence is flattened."""
    if value is None:
        return
    normalizer = as_object(value, path)
    kind = normalizer.get("type")
    if kind == "Sequence":
        for inner in as_rows(normalizer.get("normalizers"), path):
            yield from _normalizer_steps(inner, path)
    elif kind in PLAIN:
        yield (str(kind),)
    elif kind == "Precompiled":
        try:
            charsmap = base64.b64decode(str(normalizer.get("precompiled_charsmap")), validate=True)
        except binascii.Error:
            raise BadInput(f"{path} has a table of characters that is not base64.") from None
        yield "Precompiled", base64.b64encode(charsmap).decode()  # in canonical form: it enters the fingerprint
    elif kind == "Strip":
        yield "Strip", _stripped_side(normalizer, path)
    elif kind == "Replace":
        yield _replace_step(normalizer, path)
    else:
        raise BadInput(f"{path} has the normalizer {kind!r}, which firth does not know.")


def _stripped_side(normalizer: JsonObject, path: Path) -> str:
    """Where white space is removed: left, right or both."""
    left = as_flag({"strip_left": True, **normalizer}, "strip_left", path)
    right = as_flag({"strip_right": True, **normalizer}, "strip_right", path)
    if left and right:
        return "both"
    return "left" if left else "right"


def _replace_step(normalizer: JsonObject, path: Path) -> Step:
    """("Replace", text, regex, content), where either the text or the regular expression is empty."""
    pattern = as_object(normalizer.get("pattern"), path)
    text = pattern.get("String", "")
    regex = pattern.get("Regex", "")
    content = normalizer.get("content")
    is_text = isinstance(text, str) and isinstance(content, str)
    is_known = regex in ("", SPACES, WHITE_SPACE) and (text or regex)
    if not is_text or not is_known:
        raise BadInput(f"{path} replaces {pattern!r}, which is neither a text nor several spaces.")
    return "Replace", str(text), str(regex), str(content)


def _pre_tokenizer(value: object, path: Path) -> tuple[bool, str]:
    """Whether text is first cut at white space, and when the space mark is put in front."""
    pre_tokenizer = as_object(value, path)
    rows = [pre_tokenizer]
    if pre_tokenizer.get("type") == "Sequence":
        rows = as_rows(pre_tokenizer.get("pretokenizers"), path)
    kinds = [row.get("type") for row in rows]
    if kinds not in (["WhitespaceSplit", "Metaspace"], ["Metaspace"]):
        raise BadInput(f"{path} cuts text by {kinds}; a unigram tokenizer does it by Metaspace.")
    metaspace = rows[-1]
    # Older files have a flag in place of the scheme.
    default = "always" if metaspace.get("add_prefix_space", True) else "never"
    scheme = metaspace.get("prepend_scheme", default)
    replacement = metaspace.get("replacement", SPACE)
    if replacement != SPACE or scheme not in ("always", "first", "never"):
        raise BadInput(
            f"{path} marks spaces by {metaspace.get('replacement')!r}, scheme {scheme!r}, instead of {SPACE!r}."
        )
    return len(kinds) == 2, str(scheme)


def template_frame(value: object, ids: Mapping[str, int], path: Path) -> Frame | None:
    """The special tokens before, between and after two texts; None where the file has no template."""
    if value is None:
        return None
    post_processor = as_object(value, path)
    if post_processor.get("type") != "TemplateProcessing":
        raise BadInput(
            f"{path} frames texts by {post_processor.get('type')!r}; such a tokenizer does it by a template."
        )
    groups: list[list[int]] = [[]]  # the special tokens before the first text, between the texts, after the second
    second_segment = 0
    last_segment = 0
    for row in as_rows(post_processor.get("pair"), path):
        if "Sequence" in row:
            second_segment = as_number(as_object(row["Sequence"], path).get("type_id"), path)
            groups.append([])
        else:
            special = as_object(row.get("SpecialToken"), path)
            token = str(special.get("id"))
            last_segment = as_number(special.get("type_id"), path)
            if token not in ids:
                raise BadInput(f"{path} frames texts by {token!r}, which is no token.")
            groups[-1].append(ids[token])
    if len(groups) != 3:
        raise BadInput(f"{path} has a template without two texts.")
    opening, between, closing = map(tuple, groups)
    # Only XLNet's last token is of a segment of its own.
    own_segment = last_segment if closing and last_segment > second_segment else None
    return Frame(opening, between, closing, second_segment=second_segment, last_segment=own_segment)
