"""What the layers of a pre-trained model know: a linear layer reads each of them, the model stays as it is."""

from dataclasses import dataclass
from pathlib import Path

from firth.study import sets
from firth.study.design import Cell, Claim, Experiment, Setting, Study
from firth.study.lineage import SYSTEMS, pretrained
from firth.study.probe_sets import TEST, probe_files
from firth.study.sets import BETWEEN, Sources

SEEDS = 5
TASKS = {"public": ("pos", "entities", "order"), "embedded": ("entities", "order")}
ELMO = "elmo"


@dataclass(frozen=True)
class Probed:
    """A model whose layers are read."""

    languages: tuple[str, ...]
    num_layers: int


MODELS = {
    **{name: Probed((language,), sets.num_layers(name)) for language, name in sets.MODELS.items()},
    # It may not be installed.
    sets.MINILM: Probed(("en",), 6),
    ELMO: Probed(("en", "zh"), 2),
}


def cells(sources: Sources) -> list[Cell]:
    tasks = TASKS[sources.origin]
    found = []
    for name, probed in MODELS.items():
        if name == sets.MINILM and not sets.has_minilm():
            continue
        for language in probed.languages:
            for task in tasks:
                for seed in range(1, SEEDS + 1):
                    run = _run(sources, name, task, language, seed=seed)
                    for layer in range(probed.num_layers + 1):
                        place = Cell(name, f"{task}-{language}", seed, run, f"layer_{layer}", x=float(layer))
                        found.append(place)
    return found


def _run(sources: Sources, name: str, task: str, language: str, *, seed: int) -> Experiment:
    train, test = probe_files(sources, task, language, seed=seed)
    settings: dict[str, Setting] = {"between": BETWEEN[language]}
    files: dict[str, tuple[Path, ...]] = {"train": (train,), "test": (test,)}
    if name == ELMO:
        start = pretrained(SYSTEMS[ELMO], sources.corpus)
        return Experiment("probe", settings, files=files, needs={"model": start}, seconds=8)
    settings["model"] = name
    files["weights"] = sets.weights(name)
    return Experiment("probe", settings, files=files, seconds=8)


def _claims(name: str) -> tuple[Claim, ...]:
    last = MODELS[name].num_layers
    middle = last // 2

    def claim(better: int, worse: int, english: str, chinese: str) -> Claim:
        text = {"en": f"{name}: {english}", "zh": f"{name}：{chinese}"}
        return Claim(name, name, text, x=float(better), worse_x=float(worse))

    return (
        claim(middle, 0, f"layer {middle} knows more than the embeddings", f"第 {middle} 层比词嵌入知道得多"),
        claim(middle, last, f"layer {middle} knows more than the last", f"第 {middle} 层比最后一层知道得多"),
    )


STUDY = Study(
    name="layers",
    question={
        "en": "Which layers of a pre-trained model know the part of speech, entities, and the order of words?",
        "zh": "预训练模型的哪些层知道词性、实体和词序？",
    },
    design={
        "en": "A linear layer (ridge regression) reads a word's state in one layer; the share of right labels on "
        f"{TEST['public']} other sentences ({TEST['embedded']} of the embedded sets). order: was this word exchanged "
        "with its right neighbour? Without reading the text half of these answers are right. Each seed draws other "
        "sentences. The ELMo is the tiny one of the study `lineage`.",
        "zh": "用线性层（岭回归）读取词在某一层的状态，在另外 "
        f"{TEST['public']} 个句子（内置数据为 {TEST['embedded']} 个）上计算正确率。order：这个词是否与右边的词"
        "交换过？不读文本时正确率为一半。每个种子抽取不同的句子。ELMo 是研究 `lineage` 中的小模型。",
    },
    cells=cells,
    claims=(
        *_claims("en-small"),
        *_claims("zh-small"),
        *_claims(sets.MINILM),
    ),
    x_label="layer (0: embeddings)",
    score="accuracy",
)
