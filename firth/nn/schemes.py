"""Which tags may follow one another: the schemes that mark entities or words, and what a person forbids besides.

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
EDGE = "^", "$"
"""What stands for the start and the end of a sequence where a person forbids a pair."""


@dataclass(frozen=True)
class Legal:
    """Which tags may begin a sequence, follow one another, and end it."""

    start_T: Tensor
    transitions_TT: Tensor
    """From tag (row) to tag (column)."""
    end_T: Tensor

    def breaks(self, tags_N: Tensor, bounds_B1: Tensor) -> Tensor:
        """Marks the tokens whose tag may not stand where it does."""
        first, last = edges(bounds_B1)
        breaks_N = ~self.transitions_TT[tags_N.roll(1), tags_N]
        breaks_N[first] = ~self.start_T[tags_N[first]]
        breaks_N[last] |= ~self.end_T[tags_N[last]]
        return breaks_N

    def first_break(self, tags_N: Tensor) -> int | None:
        """Of one sequence, the first tag that may not follow the one before; its length if only the end is illegal."""
        bounds_2 = torch.tensor([0, len(tags_N)], dtype=torch.int32)
        broken = self.breaks(tags_N, bounds_2).nonzero().flatten().tolist()
        if not broken:
            return None
        place: int = broken[0]
        allowed_T = self.transitions_TT[tags_N[place - 1]] if place else self.start_T
        only_end_is_illegal = bool(allowed_T[tags_N[place]])
        return len(tags_N) if only_end_is_illegal else place


def guess_scheme(tags: Sequence[str]) -> Scheme:
    """The scheme a set of tags is written in; `none` when the tags do not mark the parts of entities or words."""
    marked = [tag for tag in tags if _is_marked(tag)]
    others = [tag for tag in tags if tag not in marked and tag != "O"]
    if not marked or (others and not any(len(tag) > 1 or tag == "B" for tag in marked)):
        return "none"  # labels such as NOUN or X: a letter that looks like a mark is none among them
    if others:
        raise BadInput(
            f"Tag '{others[0]}' does not fit with '{marked[0]}': mend the tags, or choose the scheme 'none'."
        )
    prefixes = {split_tag(tag)[0] for tag in marked}
    if {"I", "M"} <= prefixes:
        raise BadInput("The tags mix I- (BIO, BIOES) and M- (BMES): use one scheme, or choose the scheme 'none'.")
    if not prefixes & {"M", "E", "S"}:
        return "BIO" if "B" in prefixes else "IO"
    return "BIOES" if "I" in prefixes or ("M" not in prefixes and "O" in tags) else "BMES"


def legal_transitions(
    tags: Sequence[str], scheme: Scheme | Literal["guess"] = "guess", *, forbidden: Sequence[str] = ()
) -> Legal:
    """What the scheme and a person's own pairs allow; refuses a set in which some tag could never be used.

    A pair such as `O I-PER` forbids the second tag after the first; `^` is the start of a sequence, `$` its end.
    """
    legal = _by_scheme(tags, scheme)
    index = {tag: i for i, tag in enumerate(tags)}
    for pair in forbidden:
        names = pair.split()
        if len(names) != 2 or names[0] not in {EDGE[0], *tags} or names[1] not in {EDGE[1], *tags} or names == [*EDGE]:
            raise BadConfig(
                f"'{pair}' does not forbid one tag after another; write it as 'O I-PER', '^ I-PER' or 'O $'."
            )
        if names[0] == EDGE[0]:
            legal.start_T[index[names[1]]] = False
        elif names[1] == EDGE[1]:
            legal.end_T[index[names[0]]] = False
        else:
            legal.transitions_TT[index[names[0]], index[names[1]]] = False
    return legal


def _by_scheme(tags: Sequence[str], scheme: Scheme | Literal["guess"]) -> Legal:
    scheme = guess_scheme(tags) if scheme == "guess" else scheme
    if scheme not in get_args(Scheme):
        raise BadConfig(f"There is no tag scheme '{scheme}'; choose one of {', '.join(get_args(Scheme))} or guess.")
    if scheme in ("IO", "none"):
        free = torch.ones(len(tags), dtype=torch.bool)
        return Legal(free, free.expand(len(tags), -1).clone(), free.clone())
    _refuse_broken(tags, scheme)
    parts = [split_tag(tag) for tag in tags]
    prefix, kind = np.array([p for p, _ in parts]), np.array([k for _, k in parts])
    goes_on = np.isin(prefix, ["I", "M", "E"])  # continues what the tag before began
    is_open = np.isin(prefix, ["B", "I", "M"])  # can be continued
    must_go_on = is_open & (scheme != "BIO")
    same = kind[:, None] == kind
    transitions = np.where(goes_on, is_open[:, None] & same, ~must_go_on[:, None])
    return Legal(torch.from_numpy(~goes_on), torch.from_numpy(transitions), torch.from_numpy(~must_go_on))


def edges(bounds_B1: Tensor) -> tuple[Tensor, Tensor]:
    """The first and last tokens of the sequences that are not empty."""
    real_B = bounds_B1.diff() > 0
    return bounds_B1[:-1][real_B].long(), bounds_B1[1:][real_B].long() - 1


def _is_marked(tag: str) -> bool:
    prefix, kind = split_tag(tag)
    return prefix in {"B", "I", "M", "E", "S"} and ("-" not in tag or kind != "")


def _refuse_broken(tags: Sequence[str], scheme: Scheme) -> None:
    for tag in tags:
        if split_tag(tag)[0] not in [*PREFIXES[scheme]] or ("-" in tag and not _is_marked(tag)):
            raise BadInput(f"Tag '{tag}' does not belong to {scheme}: mend it, or choose the scheme 'none'.")
    for tag in tags:
        for partner in partners(tag, scheme):
            if partner not in tags:
                raise BadInput(
                    f"Tag '{tag}' can never be used in {scheme} without '{partner}': "
                    f"add '{partner}' to the tags, rewrite the file in {scheme}, or choose the scheme 'none'."
                )
    if scheme != "BIO" and not any(split_tag(tag)[0] in "OS" for tag in tags):
        raise BadInput(f"No tag of this {scheme} set can stand for a single token: add 'S' or 'O' to the tags.")


def partners(tag: str, scheme: str) -> list[str]:
    """The tags without which this one has no place in a legal sequence."""
    if scheme in ("IO", "none"):
        return []
    prefix, _, kind = tag.partition("-")
    needed: Mapping[str, str] = {"B": "E", "E": "B", "I": "BE", "M": "BE"} if scheme != "BIO" else {"I": "B"}
    return [f"{other}-{kind}" if kind else other for other in needed.get(prefix, "")]
