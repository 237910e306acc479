"""Texts to compare -> the windows an encoder reads: each text alone (siamese), or two in one sequence (cross-encoder).

In: examples of two or three texts. Out: items whose facts count the windows of each text, or of each pair of texts.
"""

from firth.data.items import Item, Window, cut_window, text_items
from firth.tasks.task import Examples, different_texts
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import windows
from firth.types import Example


def separate_items(examples: Examples, tokenizer: Tokenizer, *, max_length: int, max_windows: int | None) -> list[Item]:
    """Each text in its own windows; an item's facts count the windows of its texts."""
    vocab = tokenizer.vocab
    num_specials = vocab.frame.size()
    size = max_length - num_specials
    # A text that occurs in several examples is encoded once.
    texts = different_texts(examples)
    windows_of: dict[str, list[Window]] = {}
    length_of: dict[str, int] = {}
    for text, encoding in zip(texts, tokenizer.encode_batch(texts), strict=True):
        spans = windows(len(encoding), size, size)[:max_windows]
        windows_of[text] = []
        for start, end in spans:
            windows_of[text].append(cut_window(vocab, (encoding, start, end)))
        length_of[text] = len(encoding)
    items = []
    for example in examples:
        cuts: list[Window] = []
        counts = []
        total = 0
        for text in example.texts:
            cuts += windows_of[text]
            counts.append(len(windows_of[text]))
            total += length_of[text]
        # Windows do not overlap here, so their tokens can be added.
        num_read = sum(len(window.ids) - num_specials for window in cuts)
        items.append(Item(example, tuple(cuts), total, total - num_read, tuple(counts)))
    return items


def joined_items(examples: Examples, tokenizer: Tokenizer, *, max_length: int, both_orders: bool = False) -> list[Item]:
    """The first text with each other one in a sequence; with `both_orders` also in a second one the other way round."""
    pairs = []
    for example in examples:
        first, *others = example.texts
        pairs += [Example((first, other)) for other in others]
    pair_items = iter(text_items(pairs, tokenizer, max_length=max_length, both_orders=both_orders))
    items = []
    for example in examples:
        cuts: list[Window] = []
        counts = []
        total = 0
        num_cut = 0
        # The pairs of an example, put together again.
        for _ in example.texts[1:]:
            pair = next(pair_items)
            cuts += pair.windows
            counts.append(len(pair.windows))
            total += pair.tokens
            num_cut += pair.cut
        items.append(Item(example, tuple(cuts), total, num_cut, tuple(counts)))
    return items
