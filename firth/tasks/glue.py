"""The GLUE sets (Wang et al. 2018): the columns of their published files, and the metric of each.

In: the columns of a file. Out: which of them are texts and which are labels.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Literal

from firth.errors import BadConfig
from firth.tasks.table_files import Rows

TextsAndLabels = tuple[tuple[str, ...], tuple[str, ...]]
"""The names of the text columns, and those of the label columns."""


@dataclass(frozen=True)
class Preset:
    """How one set is read and scored."""

    layouts: tuple[tuple[str, ...], ...]
    """Columns (label, text[, second text]) of each published form; the first that fits a file is used."""
    main: str = "accuracy"
    """The metric that GLUE reports."""
    kind: Literal["one", "number"] = "one"
    positive: str = ""
    symmetric: bool = False
    """Whether the order of the two texts has no meaning."""

    def reads_both_orders(self, wanted: bool | None) -> bool:
        """Whether pairs are read in both orders: as the user wants it, or because their order has no meaning."""
        return self.symmetric if wanted is None else wanted


PRESETS = {
    "cola": Preset((("label", "sentence"), ("2", "4")), "matthews", positive="1"),
    "sst-2": Preset((("label", "sentence"),), positive="1"),
    "mrpc": Preset(
        (("Quality", "#1 String", "#2 String"), ("label", "sentence1", "sentence2")),
        "f1",
        positive="1",
        symmetric=True,
    ),
    "stsb": Preset(
        (("score", "sentence1", "sentence2"), ("5", "6", "7")),
        "spearman",
        kind="number",
        symmetric=True,
    ),
    "qqp": Preset(
        (("is_duplicate", "question1", "question2"), ("6", "4", "5")),
        "f1",
        positive="1",
        symmetric=True,
    ),
    "mnli": Preset((("gold_label", "sentence1", "sentence2"), ("label", "sentence1", "sentence2"))),
    "qnli": Preset((("label", "question", "sentence"),)),
    "rte": Preset((("label", "sentence1", "sentence2"),)),
    "wnli": Preset((("label", "sentence1", "sentence2"),)),
}
PAIRS = (
    ("sentence1", "sentence2"),
    ("text_a", "text_b"),
    ("text1", "text2"),
    ("first", "second"),
    ("question1", "question2"),
    ("query0", "query1"),
    ("premise", "hypothesis"),
)
"""Well-known names of the columns of a pair."""
SINGLES = ("text", "sentence", "text_a")
"""Well-known names of the column of a single text."""
LABELS = ("label", "labels", "score")
"""Well-known names of the column of the label."""
KNOWN = {*SINGLES, *LABELS, *chain.from_iterable(PAIRS)}
"""All of these names."""


def preset(name: str) -> Preset:
    if name not in PRESETS:
        raise BadConfig(f"There is no preset '{name}' (known: {', '.join(PRESETS)}).")
    return PRESETS[name]


def preset_columns(rows: Rows, name: str, *, labelled: bool) -> TextsAndLabels:
    """The columns of a GLUE file; a test file has no label."""
    # A set was published in several forms: with a header or without, by GLUE or by Hugging Face.
    layouts = preset(name).layouts
    for label, *texts in layouts:
        wanted = [label, *texts] if labelled else texts
        if rows.has_columns(wanted):
            return tuple(texts), (label,)
    raise BadConfig(
        f"{rows.path} does not look like {name}: it has no columns {', '.join(layouts[0])} "
        f"but {rows.shown_columns}; name the columns instead of `preset=`."
    )


def fitting_presets(rows: Rows) -> list[str]:
    """The sets that have been published with columns of these names."""
    found = []
    for name, preset in PRESETS.items():
        for layout in preset.layouts:
            if set(layout) <= set(rows.columns):
                found.append(name)
                break
    return found


def known_columns(columns: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """All pairs of text columns with well-known names; if there are none, all such single text columns."""
    pairs = [pair for pair in PAIRS if set(pair) <= set(columns)]
    if pairs:
        return tuple(pairs)
    return tuple((name,) for name in SINGLES if name in columns)
