"""Where the GLUE files (Wang et al. 2018), as published, keep their texts and labels, and how each is judged."""

from dataclasses import dataclass

from firth.errors import BadConfig
from firth.tasks.table_files import Rows


@dataclass(frozen=True)
class Preset:
    layouts: tuple[tuple[str, ...], ...]
    """Columns (label, text[, second text]) of each published form; the first that fits a file is used."""
    main: str = "accuracy"
    kind: str = "one"
    positive: str = ""
    symmetric: bool = False
    """Whether the order of the two texts says nothing."""


PRESETS = {
    "cola": Preset((("label", "sentence"), ("2", "4")), "matthews", positive="1"),
    "sst-2": Preset((("label", "sentence"),), positive="1"),
    "mrpc": Preset(
        (("Quality", "#1 String", "#2 String"), ("label", "sentence1", "sentence2")), "f1", positive="1", symmetric=True
    ),
    "stsb": Preset((("score", "sentence1", "sentence2"), ("5", "6", "7")), "spearman", kind="number", symmetric=True),
    "qqp": Preset((("is_duplicate", "question1", "question2"), ("6", "4", "5")), "f1", positive="1", symmetric=True),
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
SINGLES = ("text", "sentence", "text_a")
LABELS = ("label", "labels", "score")


def preset(name: str) -> Preset:
    if name not in PRESETS:
        raise BadConfig(f"There is no preset '{name}' (known: {', '.join(PRESETS)}).")
    return PRESETS[name]


def preset_columns(rows: Rows, name: str, *, labelled: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(text columns, label columns) of a GLUE file; a test file has no label."""
    for label, *texts in preset(name).layouts:
        if rows.layout([label, *texts] if labelled else texts):
            return tuple(texts), (label,)
    label, *texts = preset(name).layouts[0]
    raise BadConfig(
        f"{rows.path} does not look like {name}: it has no columns {', '.join([label, *texts])} "
        f"but {', '.join(rows.columns)}; name the columns instead of `preset=`."
    )


def known_columns(columns: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The text columns that go by a well-known name: one reading, several, or none."""
    pairs = [pair for pair in PAIRS if set(pair) <= set(columns)]
    return tuple(pairs) or tuple((name,) for name in SINGLES if name in columns)
