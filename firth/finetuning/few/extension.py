"""What learning from few labels adds to a fine-tuning run: the rows that self-training labelled.

In: RUN's config with the path of a file of rows (`few.pseudo_rows`). Out: more training rows.
"""

from collections.abc import Sequence
from pathlib import Path

from firth.finetuning.extension import Extension
from firth.finetuning.few.settings import FewConfig
from firth.finetuning.few.table import read_table
from firth.types import Example


class FewExtension(Extension):
    """The base of all ways: it only adds rows."""

    def __init__(self, config: FewConfig) -> None:
        self.few = config

    def more_rows(self, name: str, examples: Sequence[Example]) -> Sequence[Example]:
        if not self.few.pseudo_rows:
            return examples
        return [*examples, *read_table(Path(self.few.pseudo_rows))]
