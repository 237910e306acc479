"""What the layers of a pre-trained model know: one linear layer reads each of them, the model stays as it is."""

from pathlib import Path

from firth.starts import FEW_ROWS
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Study

SEEDS = 3
LAYERS = (12, 6, 0, 9, 3)
MODELS = {"en": "en-small", "zh": "zh-small"}
PROBES = {"entities": "tag", "classify": "classify"}
PROBE = "probe"
MIDDLE = 6
LAST = 12


def cells(folder: Path) -> list[Cell]:
    found = []
    for seed in range(1, SEEDS + 1):
        for layer in LAYERS:
            for probe in PROBES:
                for language in MODELS:
                    found.append(_cell(folder, probe, language, layer, seed))
    return found


def _cell(folder: Path, probe: str, language: str, layer: int, seed: int) -> Cell:
    dataset = f"{probe}-{language}"
    task = PROBES[probe]
    train, test = sets.labelled(folder, dataset)
    changes: tuple[str, ...] = (
        *FEW_ROWS,
        "transfer.mode=features",
        f"transfer.features.layers={layer}",
        "transfer.features.combine=sum",
        "batch_size=16",
        "epochs=8",
        "train.optim.rate=5e-3",
    )
    if task == "classify":
        changes = (*changes, "tasks.classify.pooling=mean")
    model = MODELS[language]
    run = Experiment(
        "finetune",
        {"task": task, "seed": seed, "model": model, "changes": changes},
        files={"train": (train,), "test": (test,), "weights": sets.shipped_weights(model)},
        seconds=15,
    )
    return Cell(PROBE, dataset, seed, run, x=float(layer))


def _claim(better: int, worse: int, english: str, chinese: str) -> Claim:
    return Claim(PROBE, PROBE, {"en": english, "zh": chinese}, x=float(better), worse_x=float(worse))


STUDY = Study(
    name="layers",
    question={
        "en": "Which layer of a pre-trained model knows most about entities and about sentiment?",
        "zh": "预训练模型的哪一层最了解实体和情感？",
    },
    design={
        "en": "A linear layer reads the states of one layer of en-small or zh-small, which stay as they are.",
        "zh": "用一个线性层读取 en-small 或 zh-small 某一层的状态，模型保持不变。",
    },
    cells=cells,
    claims=(
        _claim(MIDDLE, 0, "The middle layer knows more than the embeddings", "中间层比词嵌入知道得多"),
        _claim(MIDDLE, LAST, "The middle layer knows more than the last", "中间层比最后一层知道得多"),
        _claim(LAST, 0, "The last layer knows more than the embeddings", "最后一层比词嵌入知道得多"),
    ),
    x_label="layer (0: embeddings)",
)
