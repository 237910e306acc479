"""Compression without training: the score against the speed, all methods on one picture."""

from pathlib import Path

from firth.starts import FEW_ROWS
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Setting, Study
from firth.study.sets import MODELS, Sources
from firth.study.topic_sets import set_names, test_rows, training_rows

SEEDS = 3
ROWS = 1000
"""Training rows of the original."""
METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    "4 layers": ("layers", ("num_layers=4",)),
    "6 layers": ("layers", ("num_layers=6",)),
    "heads - 50 %": ("heads", ("remove=0.5",)),
    "ffn - 50 %": ("ffn", ("remove=0.5",)),
    "ffn - 25 %": ("ffn", ("remove=0.25",)),
    "low-rank": ("low-rank", ("energy=0.9",)),
    "int8": ("int8", ()),
    "4 bits": ("weights", ("bits=4",)),
}
"""By name: a method of `firth compress`, and its settings."""
UNCHANGED = "original"


def cells(sources: Sources) -> list[Cell]:
    found = []
    for language, name in set_names(sources).items():
        test = test_rows(sources, language)
        for seed in range(1, SEEDS + 1):
            train = training_rows(sources, language, ROWS, seed=seed)
            original = _original(MODELS[language], train, test, seed=seed)
            for system, (method, changes) in METHODS.items():
                settings: dict[str, Setting] = {"by": method, "changes": changes}
                files = {"train": (train,), "data": (test,)}
                run = Experiment("compress", settings, files=files, needs={"model": original}, seconds=15)
                found.append(Cell(system, name, seed, run))
            found.append(Cell(UNCHANGED, name, seed, original))
    return found


def _original(model: str, train: Path, test: Path, *, seed: int) -> Experiment:
    changes = (*FEW_ROWS, "batch_size=8", "epochs=3")
    settings: dict[str, Setting] = {"task": "classify", "seed": seed, "model": model, "changes": changes}
    files = {"train": (train,), "test": (test,), "weights": sets.weights(model)}
    return Experiment("finetune", settings, files=files, seconds=50)


def _claim(worse: str, english: str, chinese: str) -> Claim:
    return Claim(UNCHANGED, worse, {"en": english, "zh": chinese})


STUDY = Study(
    name="compression",
    question={
        "en": "What does each method of compression without training cost, and how much faster is the model?",
        "zh": "各种不需训练的压缩方法代价多大，模型快了多少？",
    },
    design={
        "en": f"en-small and zh-small fine-tuned on {ROWS} rows of SST-2 and THUCNews titles; accuracy on 400 test "
        "rows and texts a second in batches, as a multiple of the original's in the same process.",
        "zh": f"en-small 和 zh-small 在 SST-2 与 THUCNews 标题的 {ROWS} 行上微调；在 400 行测试数据上的准确率，"
        "以及成批处理的速度（同一进程中相对原模型的倍数）。",
    },
    cells=cells,
    claims=(
        _claim("4 layers", "Dropping half of the layers costs accuracy", "去掉一半的层会损失准确率"),
        _claim("heads - 50 %", "Removing half of the heads costs accuracy", "去掉一半的注意力头会损失准确率"),
        _claim("ffn - 50 %", "Removing half of the feed-forward rows costs accuracy", "去掉一半的前馈行会损失准确率"),
        _claim("int8", "Arithmetic in 8 bits costs accuracy", "8 位运算会损失准确率"),
    ),
    x_label="times the speed of the original",
    against="speedup",
)
