"""Chains of labels: HMM, MEMM, CRF and a pre-trained encoder, by the amount of training text."""

from pathlib import Path

from firth.starts import FEW_ROWS
from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Setting, Study

SEEDS = 3
SHARES = (1.0, 0.3, 0.1)
MODELS = {"en": "en-small", "zh": "zh-small"}
ENCODER = (*FEW_ROWS, "batch_size=16", "epochs=4", "train.optim.rate=5e-4")
SYSTEMS: dict[str, tuple[str, ...]] = {
    "hmm": (*FEW_ROWS, "tasks.tag.tagger=hmm"),
    "memm": (*FEW_ROWS, "tasks.tag.tagger=memm"),
    "crf": (*FEW_ROWS, "tasks.tag.tagger=crf"),
    "pre-trained": (*ENCODER, "tasks.tag.tagger=softmax"),
    "pre-trained + crf": (*ENCODER, "tasks.tag.tagger=crf"),
}


def cells(folder: Path) -> list[Cell]:
    found = []
    for share in SHARES:
        for seed in range(1, SEEDS + 1):
            for language in MODELS:
                for system in SYSTEMS:
                    found.append(_cell(folder, system, language, share, seed))
    return found


def _cell(folder: Path, system: str, language: str, share: float, seed: int) -> Cell:
    dataset = f"entities-{language}"
    train, test = sets.labelled(folder, dataset)
    part = sets.share_of_sentences(train, share)
    settings: dict[str, Setting] = {"task": "tag", "seed": seed, "changes": SYSTEMS[system]}
    files: dict[str, tuple[Path, ...]] = {"train": (part,), "test": (test,)}
    seconds = 4.0
    if system.startswith("pre-trained"):
        settings["model"] = MODELS[language]
        files["weights"] = sets.shipped_weights(MODELS[language])
        seconds = 25.0 * share + 5
    else:
        settings["encoder"] = "bag"
    return Cell(system, dataset, seed, Experiment("finetune", settings, files=files, seconds=seconds), x=100 * share)


def _claim(better: str, worse: str, english: str, chinese: str, x: float = 100.0) -> Claim:
    return Claim(better, worse, {"en": english, "zh": chinese}, x=x)


STUDY = Study(
    name="chains",
    question={
        "en": "HMM, MEMM, CRF, pre-trained encoder: in which order, and from how much training text on?",
        "zh": "HMM、MEMM、CRF、预训练编码器：顺序如何？需要多少训练文本？",
    },
    design={
        "en": "Entities in the embedded sentences, entity F1 on a third of them; features written by hand for the "
        "first three, en-small and zh-small for the others.",
        "zh": "自带句子中的实体，在三分之一的句子上计算实体 F1；前三者用手写特征，其余用 en-small 和 zh-small。",
    },
    cells=cells,
    claims=(
        _claim("memm", "hmm", "MEMM is better than HMM", "MEMM 优于 HMM"),
        _claim("crf", "memm", "CRF is better than MEMM", "CRF 优于 MEMM"),
        _claim("pre-trained", "crf", "A pre-trained encoder is better than a CRF", "预训练编码器优于 CRF"),
        _claim("pre-trained", "crf", "The same with a tenth of the text", "文本只有十分之一时同样如此", x=10.0),
        _claim("pre-trained + crf", "pre-trained", "A CRF on top of the encoder helps", "编码器上加 CRF 有帮助"),
    ),
    x_label="% of the training sentences",
)
