"""What a tokenizer can do beyond the usual: attributes of its class. All tokenizers derive from `Capabilities`."""

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from firth.tokenizers.vocab import Vocab


class Capabilities:
    """The usual answers."""

    vocab: "Vocab"
    counts_all_words: ClassVar[bool] = False
    """Whether it is trained on all of the text, not on a sample of it."""
    words_by_text: ClassVar[bool] = False
    """Whether a piece begins a word depends on the text before it, not on the piece alone."""
    keeps_space: ClassVar[bool] = False
    """Whether spaces are part of the pieces, so that the space before a sentence belongs to its tokens."""
    has_word_parts: ClassVar[bool] = False
    """Whether a token has parts (n-grams, characters) that its id alone does not give."""
    pieces_hold_spaces: ClassVar[bool] = False
    """Whether a piece holds the space before it; `spelled` shows it."""

    @property
    def lowercases(self) -> bool:
        """Whether it lower-cases its texts."""
        return False

    @property
    def num_rows(self) -> int:
        """Rows of an embedding table over all tokens, and over their parts where they have some."""
        return len(self.vocab)

    def spelled(self, token: int) -> str:
        """The text of a token."""
        return self.vocab.tokens[token]
