"""Which tags may follow one another: the schemes that mark entities or words, and pairs that the user forbids.

In: names of tags, such as B-PER. Out: the scheme they are written in, and the legal starts, transitions and ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from firth.errors import BadConfig, BadInput
from firth.metrics import PREFIXES, split_tag

Scheme = Literal["BIO", "BIOES", "BMES", "IO", "none"]
START = "^"
END = "$"
"""The start and the end of a sequence in a forbidden pair."""
_INNER = ("I", "M", "E")
"""Prefixes that continue what the tag before began."""
_OPEN = ("B", "I", "M")
"""Prefixes that can be continued."""


@dataclass(frozen=True)
class Legal:
    """Which tags may begin a sequence, follow one another, and end it."""

    start_T: Tensor
    transitions_TT: Tensor
    """From tag (row) to tag (column)."""
    end_T: Tensor

    def breaks(self, tags_N: Tensor, bounds_B1: Tensor) -> Tensor:
        """Marks the tokens whose tag is illegal after the tag before it, at the start or at the end."""
        first, last = edges(bounds_B1)
        breaks_N = ~self.transitions_TT[tags_N.roll(1), tags_N]
        breaks_N[first] = ~self.start_T[tags_N[first]]
        breaks_N[last] |= ~self.end_T[tags_N[last]]
        return breaks_N

    def first_break(self, tags_N: Tensor) -> int | None:
        """Of one sequence, the first tag that may not follow the one before; its length if only the end is illegal."""
        bounds_2 = torch.tensor([0, len(tags_N)], dtype=torch.int32)
        breaks_N = self.breaks(tags_N, bounds_2)
        if not breaks_N.any():
            return None
        place = int(breaks_N.nonzero()[0])
        allowed_T = self.start_T
        if place:
            allowed_T = self.transitions_TT[tags_N[place - 1]]
        if allowed_T[tags_N[place]]:
            return len(tags_N)
        return place


def guess_scheme(tags: Sequence[str]) -> Scheme:
    """The scheme a set of tags is written in; `none` when the tags do not mark the parts of entities or words."""
    marked = [tag for tag in tags if _is_marked(tag)]
    others = [tag for tag in tags if tag not in marked and tag != "O"]
    # Among labels such as NOUN or X a single letter that looks like a mark is a label.
    has_sure_mark = any(len(tag) > 1 or tag == "B" for tag in marked)
    if not marked or (others and not has_sure_mark):
        return "none"
    if others:
        raise BadInput(
            f"Tag '{others[0]}' does not fit with '{marked[0]}': correct the tags, or choose the scheme 'none'."
        )
    prefixes = {split_tag(tag)[0] for tag in marked}
    if {"I", "M"} <= prefixes:
        raise BadInput("The tags mix I- (BIO, BIOES) and M- (BMES): use one scheme, or choose the scheme 'none'.")
    if not prefixes & {"M", "E", "S"}:
        return "BIO" if "B" in prefixes else "IO"
    # Tags of B, E and S alone fit both schemes; an O shows that they mark entities, not words.
    is_bioes = "I" in prefixes or ("M" not in prefixes and "O" in tags)
    return "BIOES" if is_bioes else "BMES"


def legal_transitions(
    tags: Sequence[str],
    scheme: Scheme | Literal["guess"] = "guess",
    *,
    forbidden: Sequence[str] = (),
) -> Legal:
    """What the scheme and the forbidden pairs allow; refuses a set in which some tag could never be used.

    A pair such as `O I-PER` forbids the second tag after the first; `^` is the start of a sequence, `$` its end.
    """
    legal = _by_scheme(tags, scheme)
    index = {tag: number for number, tag in enumerate(tags)}
    for pair in forbidden:
        before, after = _forbidden_pair(pair, tags)
        if before == START:
            legal.start_T[index[after]] = False
        elif after == END:
            legal.end_T[index[before]] = False
        else:
            legal.transitions_TT[index[before], index[after]] = False
    return legal


def _forbidden_pair(pair: str, tags: Sequence[str]) -> tuple[str, str]:
    """The two names of a forbidden pair."""
    names = pair.split()
    if len(names) == 2:
        before, after = names
        is_known = before in {START, *tags} and after in {END, *tags}
        if is_known and names != [START, END]:
            return before, after
    raise BadConfig(f"'{pair}' does not forbid one tag after another; write it as 'O I-PER', '^ I-PER' or 'O $'.")


def _by_scheme(tags: Sequence[str], scheme: Scheme | Literal["guess"]) -> Legal:
    """What the scheme alone allows."""
    if scheme == "guess":
        scheme = guess_scheme(tags)
    if scheme not in get_args(Scheme):
        raise BadConfig(f"There is no tag scheme '{scheme}'; choose one of {', '.join(get_args(Scheme))} or guess.")
    if scheme in ("IO", "none"):
        num_tags = len(tags)
        free_TT = torch.ones(num_tags, num_tags, dtype=torch.bool)
        return Legal(free_TT[0].clone(), free_TT, free_TT[0].clone())
    _refuse_broken(tags, scheme)
    parts = [split_tag(tag) for tag in tags]
    prefixes = np.array([prefix for prefix, _ in parts])
    kinds = np.array([kind for _, kind in parts])
    is_inner = np.isin(prefixes, _INNER)
    is_open = np.isin(prefixes, _OPEN)
    # In BIO an entity may end after any tag; elsewhere only after E or S.
    must_go_on = is_open & (scheme != "BIO")
    # From tag (row) to tag (column).
    is_same_kind = kinds[:, None] == kinds
    may_continue = is_open[:, None] & is_same_kind
    may_begin = ~must_go_on[:, None]
    transitions = np.where(is_inner, may_continue, may_begin)
    return Legal(torch.from_numpy(~is_inner), torch.from_numpy(transitions), torch.from_numpy(~must_go_on))


def edges(bounds_B1: Tensor) -> tuple[Tensor, Tensor]:
    """The first and last tokens of the sequences that are not empty."""
    is_real_B = bounds_B1.diff() > 0
    first = bounds_B1[:-1][is_real_B].long()
    last = bounds_B1[1:][is_real_B].long() - 1
    return first, last


def _is_marked(tag: str) -> bool:
    """Whether a tag marks a part of an entity or word, such as B-PER or S."""
    prefix, kind = split_tag(tag)
    return prefix in {"B", "I", "M", "E", "S"} and ("-" not in tag or kind != "")


def _refuse_broken(tags: Sequence[str], scheme: Scheme) -> None:
    """Refuses tags that are not of the scheme, or that no legal sequence could have."""
    for tag in tags:
        prefix, _ = split_tag(tag)
        is_foreign = prefix not in [*PREFIXES[scheme]]
        if is_foreign or ("-" in tag and not _is_marked(tag)):
            raise BadInput(f"Tag '{tag}' does not belong to {scheme}: correct it, or choose the scheme 'none'.")
    for tag in tags:
        for partner in partners(tag, scheme):
            if partner not in tags:
                raise BadInput(
                    f"Tag '{tag}' can never be used in {scheme} without '{partner}': "
                    f"add '{partner}' to the tags, rewrite the file in {scheme}, or choose the scheme 'none'."
                )
    has_single = any(split_tag(tag)[0] in "OS" for tag in tags)
    if scheme != "BIO" and not has_single:
        raise BadInput(f"No tag of this {scheme} set can stand for a single token: add 'S' or 'O' to the tags.")


def partners(tag: str, scheme: str) -> list[str]:
    """The tags without which this one cannot occur in a legal sequence."""
    if scheme in ("IO", "none"):
        return []
    needed: Mapping[str, str] = {"B": "E", "E": "B", "I": "BE", "M": "BE"}
    if scheme == "BIO":
        needed = {"I": "B"}
    prefix, _, kind = tag.partition("-")
    suffix = f"-{kind}" if kind else ""
    return [f"{other}{suffix}" for other in needed.get(prefix, "")]
