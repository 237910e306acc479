"""Few labels: fine-tuning everything, adapters, LoRA, features alone, and gradual unfreezing, by the number of rows."""

from pathlib import Path

from firth.starts import FEW_ROWS
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Setting, Study
from firth.study.sets import MODELS, Sources
from firth.study.topic_sets import set_names, test_rows, training_rows

SEEDS = 5
EPOCHS = {100: 10, 300: 6, 1000: 3}
"""By the number of training rows."""
FEW = 100
WAYS: dict[str, tuple[str, ...]] = {
    "everything": (),
    "features": ("transfer.mode=features", "tasks.classify.pooling=mean", "train.optim.rate=1e-2"),
    "adapters": ("transfer.mode=adapters", "train.optim.rate=1e-3"),
    "lora": ("transfer.mode=lora", "train.optim.rate=1e-3"),
    "unfreezing": ("transfer.unfreeze_every=0.5",),
}
RANDOM = "random weights"


def cells(sources: Sources) -> list[Cell]:
    found = []
    for language, name in set_names(sources).items():
        test = test_rows(sources, language)
        for count in EPOCHS:
            for seed in range(1, SEEDS + 1):
                train = training_rows(sources, language, count, seed=seed)
                for way in (*WAYS, RANDOM):
                    run = _run(way, MODELS[language], train, test, count=count, seed=seed)
                    found.append(Cell(way, name, seed, run, x=float(count)))
    return found


def _run(way: str, model: str, train: Path, test: Path, *, count: int, seed: int) -> Experiment:
    changes = (*FEW_ROWS, "batch_size=8", f"epochs={EPOCHS[count]}", *WAYS.get(way, ()))
    settings: dict[str, Setting] = {"task": "classify", "seed": seed, "model": model, "changes": changes}
    if way == RANDOM:
        settings["random"] = True
    files = {"train": (train,), "test": (test,), "weights": sets.weights(model)}
    return Experiment("finetune", settings, files=files, seconds=5 + 0.015 * count * EPOCHS[count])


def _claim(better: str, worse: str, english: str, chinese: str) -> Claim:
    return Claim(better, worse, {"en": english, "zh": chinese}, x=float(FEW))


STUDY = Study(
    name="few-labels",
    question={
        "en": "With few labels, what should learn: everything, something small beside the model, or only the last "
        "layer?",
        "zh": "标注很少时，应当训练全部参数、旁加的小部件，还是只训练最后一层？",
    },
    design={
        "en": "Accuracy on 400 test rows of SST-2 and THUCNews titles (without public sets: the embedded reviews), "
        "from en-small and zh-small; each seed draws other training rows, the same for all ways.",
        "zh": "在 SST-2 和 THUCNews 标题的 400 行测试数据上的准确率（没有公开数据时用自带评论），"
        "从 en-small 和 zh-small 出发；每个种子抽取不同的训练行，各方法相同。",
    },
    cells=cells,
    claims=(
        _claim("everything", RANDOM, f"With {FEW} rows, pre-training helps", f"{FEW} 行时预训练有帮助"),
        _claim(
            "everything",
            "features",
            f"With {FEW} rows, fine-tuning beats frozen features",
            f"{FEW} 行时微调优于固定特征",
        ),
        _claim("adapters", "everything", f"With {FEW} rows, adapters beat fine-tuning", f"{FEW} 行时适配器优于微调"),
        _claim("unfreezing", "everything", f"With {FEW} rows, gradual unfreezing helps", f"{FEW} 行时逐层解冻有帮助"),
    ),
    x_label="training rows",
    log_x=True,
)
