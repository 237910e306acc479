"""Special tokens around the texts of many sequences at once, as arrays: how many, where, and in which segment.

In: a frame and the sizes of the pieces of each sequence (B x P); an empty piece is no text. Out: places, ids and
segments of a pack that has these sequences end to end.
"""

import numpy as np

from firth.tokenizers.vocab import Frame


def count_specials(frame: Frame, sizes_SP: np.ndarray) -> np.ndarray:
    """The number of special tokens of each sequence; an empty piece has none in front of it."""
    num_texts_S = np.maximum((sizes_SP > 0).sum(1), 1)
    return np.asarray(frame.size(1) + (num_texts_S - 1) * len(frame.between))


def piece_starts(frame: Frame, bounds_B1: np.ndarray, sizes_BP: np.ndarray) -> np.ndarray:
    """Where every piece begins in the pack (B x P): after the one before it and the special tokens between them."""
    first_piece_B = bounds_B1[:-1] + len(frame.opening)
    # How far each piece begins behind the one before it.
    steps_BP = np.zeros_like(sizes_BP)
    steps_BP[:, 1:] = sizes_BP[:, :-1] + len(frame.between)
    return np.asarray(first_piece_B[:, None] + np.cumsum(steps_BP, 1))


def special_ids(frame: Frame, bounds_B1: np.ndarray, ends_BP: np.ndarray, *, has_next_BP: np.ndarray) -> np.ndarray:
    """The ids of a pack in which only the special tokens are set."""
    ids_N = np.empty(bounds_B1[-1], np.int64)
    _put(ids_N, bounds_B1[:-1], frame.opening)
    _put(ids_N, ends_BP[:, :-1][has_next_BP], frame.between)
    _put(ids_N, bounds_B1[1:] - len(frame.closing), frame.closing)
    return ids_N


def segments_of(frame: Frame, sizes_BP: np.ndarray, sequence_N: np.ndarray, positions_N: np.ndarray) -> np.ndarray:
    """The segment of each token: 0, or the frame's second one from the second text on."""
    segments_N = np.zeros(len(positions_N), np.int64)
    num_pieces = sizes_BP.shape[1]
    if num_pieces > 1:
        first_B = len(frame.opening) + sizes_BP[:, 0] + len(frame.between)
        has_second_N = sizes_BP[sequence_N, 1] > 0
        in_second_N = (positions_N >= first_B[sequence_N]) & has_second_N
        segments_N[in_second_N] = frame.second_segment
    if frame.last_segment is not None:
        is_last_N = np.append(sequence_N[1:] != sequence_N[:-1], True)
        segments_N[is_last_N] = frame.last_segment
    return segments_N


def segments_around(
    segments_N: np.ndarray, ordinary_N: np.ndarray, positions_N: np.ndarray, *, num_opening: int
) -> np.ndarray:
    """The segments of all tokens, from those of the text.

    Special tokens have the segment of the text before them; those that open a sequence that of the text after.
    """
    num_tokens = len(segments_N)
    place_N = np.arange(num_tokens)
    # For each token the nearest one of the text that is not behind it, and that is not before it.
    before_N = np.maximum.accumulate(np.where(ordinary_N, place_N, 0))
    places_of_text_N = np.where(ordinary_N, place_N, num_tokens - 1)
    after_N = np.minimum.accumulate(places_of_text_N[::-1])[::-1]
    is_opening_N = positions_N < num_opening
    return np.asarray(segments_N[np.where(is_opening_N, after_N, before_N)])


def _put(ids_N: np.ndarray, starts: np.ndarray, tokens: tuple[int, ...]) -> None:
    """Writes the same tokens at all starts."""
    for offset, token in enumerate(tokens):
        ids_N[starts + offset] = token
