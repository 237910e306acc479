"""The head of a fine-tuned model as transformers has it: tensors for `model.safetensors`, keys for `config.json`.

Written: what `BertForTokenClassification` and the like load, or None if transformers has no class that computes the
same. Read: the head of a folder that transformers wrote, as the config and the tensors of one of firth's tasks. A model
of firth's own keeps its head in `head.safetensors`, and reads it from there.

Many types have a layer before the scores of a text where firth's head has none. It is then written so that it changes
nothing: tanh is linear near 0, gelu and relu are far above it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from firth.files import JsonObject
from firth.nn.heads import ScoringLayer
from firth.nn.schemes import guess_scheme
from firth.nn.taggers import SoftmaxTagger
from firth.tasks.answer import AnswerHead
from firth.tasks.classify import ClassifyHead
from firth.tasks.compare import CompareHead
from firth.tasks.tag import TagHead
from firth.tasks.task import Head
from firth.tensors import Encoder

PROBLEMS = {"one": "single_label_classification", "many": "multi_label_classification", "number": "regression"}
TEXT = "ForSequenceClassification"
TOKENS = "ForTokenClassification"
ANSWERS = "ForQuestionAnswering"
NEAR_ZERO = 2.0**-10
"""Where tanh is linear: its relative error is x^2 / 3 times the square of this."""
FAR_ABOVE = 32.0
"""What is added to states so that gelu and relu change none; the last weights take it away again."""
IDENTITY = "Identity"
"""The end of the name of the function that a cross-encoder's score goes through where it is left as it is."""


@dataclass(frozen=True)
class TypeHeads:
    """How a model type names its classes and the tensors of their heads."""

    classes: str
    """How the names of its classes begin."""
    layer: str = ""
    """The layer before a text's scores; empty where it is the model's own pooler."""
    kind: str = "tanh"
    """Its kind, as in `firth.nn.heads`."""
    text: str = "classifier"
    """The last layer of sequence classification."""
    answers: str = "qa_outputs"
    """The last layer of question answering."""
    norm: str = ""
    """The norm after the layer; where there is one, tokens go through layer and norm, too."""


TYPES = {
    "bert": TypeHeads("Bert"),
    "albert": TypeHeads("Albert"),
    "nomic_bert": TypeHeads("NomicBert", answers=""),
    "roberta": TypeHeads("Roberta", layer="classifier.dense", text="classifier.out_proj"),
    "xlm-roberta": TypeHeads("XLMRoberta", layer="classifier.dense", text="classifier.out_proj"),
    "mpnet": TypeHeads("MPNet", layer="classifier.dense", text="classifier.out_proj"),
    "electra": TypeHeads("Electra", layer="classifier.dense", kind="gelu", text="classifier.out_proj"),
    "distilbert": TypeHeads("DistilBert", layer="pre_classifier", kind="relu"),
    "deberta-v2": TypeHeads("DebertaV2", layer="pooler.dense", kind="gelu"),
    "modernbert": TypeHeads("ModernBert", layer="head.dense", kind="gelu-norm", norm="head.norm", answers="classifier"),
}
"""Type of a model folder -> its heads."""


@dataclass(frozen=True)
class TransformersHead:
    tensors: Mapping[str, Tensor]
    settings: Mapping[str, object]
    """Keys of `config.json`."""


@dataclass(frozen=True)
class TaskWeights:
    """A head that transformers wrote, as one of firth's tasks."""

    task: str
    config: Mapping[str, object]
    labels: Mapping[str, tuple[str, ...]]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """With the names of the task's head."""


# Writing


def transformers_head(model_type: str, encoder: Encoder, head: Head) -> TransformersHead | None:
    """The head in transformers' layout, or None if transformers has no such head for this type."""
    heads = TYPES.get(model_type)
    if heads is None:
        return None
    if isinstance(head, TagHead):
        return _tags(heads, head)
    if isinstance(head, AnswerHead) and heads.answers:
        tensors = _renamed(head.head, heads.answers) | _token_layer(heads, head.layer)
        return TransformersHead(tensors, {"architectures": [heads.classes + ANSWERS]})
    if isinstance(head, ClassifyHead):
        return _names(heads, encoder, head)
    if isinstance(head, CompareHead) and head.config.way == "cross" and head.pair_pooling == "cls":
        return _pair_score(heads, encoder, head)
    return None


def _tags(heads: TypeHeads, head: TagHead) -> TransformersHead | None:
    tagger = head.tagger
    is_linear = isinstance(tagger, SoftmaxTagger) and isinstance(tagger.head, nn.Linear)
    if not is_linear or head.lstm is not None:
        return None
    assert isinstance(tagger.head, nn.Linear)
    tensors = _renamed(tagger.head, "classifier") | _token_layer(heads, head.layer)
    return TransformersHead(tensors, {"architectures": [heads.classes + TOKENS]} | _label_settings(head.tags))


def _names(heads: TypeHeads, encoder: Encoder, head: ClassifyHead) -> TransformersHead | None:
    if not isinstance(head.head, nn.Linear) or len(head.labels) > 1 or head.config.both_orders:
        return None
    # Only ModernBERT's class can take the mean of the tokens.
    has_choice = bool(heads.norm)
    if head.config.pooling != "cls" and not (has_choice and head.config.pooling == "mean"):
        return None
    last = head.head
    if head.config.kind == "number":
        last = _rescaled(last, scale=head.config.scale, centre=head.config.centre)
    tensors = _text_tensors(heads, encoder, head.layer, last)
    if tensors is None:
        return None
    (names,) = head.labels.values() or (("LABEL_0",),)
    settings = {"architectures": [heads.classes + TEXT], "problem_type": PROBLEMS[head.config.kind]}
    if has_choice:
        settings["classifier_pooling"] = head.config.pooling
    return TransformersHead(tensors, settings | _label_settings(names))


def _pair_score(heads: TypeHeads, encoder: Encoder, head: CompareHead) -> TransformersHead | None:
    """A cross-encoder, whose class has one score; sentence-transformers reads what becomes of it."""
    config = head.config
    if config.both_orders:
        return None
    last = head.head
    function = "torch.nn.modules.activation.Sigmoid"
    if config.kind == "number":
        last = _rescaled(last, scale=config.spread or 1.0, centre=config.centre)
        function = "torch.nn.modules.linear.Identity"
    tensors = _text_tensors(heads, encoder, head.layer, last)
    if tensors is None:
        return None
    settings = {
        "architectures": [heads.classes + TEXT],
        "sentence_transformers": {"activation_fn": function},
        **_label_settings(("LABEL_0",)),
    }
    return TransformersHead(tensors, settings)


def _text_tensors(heads: TypeHeads, encoder: Encoder, layer: nn.Module, last: nn.Linear) -> dict[str, Tensor] | None:
    """The tensors of sequence classification; None if this type's class computes something else."""
    pooler: nn.Module | None = getattr(encoder, "pooler", None)
    is_plain = not isinstance(layer, ScoringLayer)
    if not heads.layer:
        # The class has the model's pooler before the scores.
        if pooler is None or not is_plain:
            return None
        return _renamed(last, heads.text)
    if isinstance(layer, ScoringLayer):
        if layer.kind != heads.kind or pooler is not None:
            return None
        return _renamed(last, heads.text) | _renamed_layer(heads, layer)
    if pooler is not None:
        if heads.kind != "tanh":
            return None
        dense: nn.Linear = pooler.dense  # type: ignore[assignment]
        return _renamed(last, heads.text) | _renamed(dense, heads.layer)
    if heads.norm:
        return None
    return _linear_layer(heads, last)


def _linear_layer(heads: TypeHeads, last: nn.Linear) -> dict[str, Tensor]:
    """Tensors with which the layer before the scores changes nothing, and the scores are those of `last`."""
    weight_TD = last.weight.detach().double().cpu()
    bias_T = last.bias.detach().double().cpu()
    width = weight_TD.shape[1]
    identity_DD = torch.eye(width, dtype=torch.double)
    shift = 0.0
    if heads.kind == "tanh":
        identity_DD *= NEAR_ZERO
        weight_TD = weight_TD / NEAR_ZERO
    else:
        shift = FAR_ABOVE
        bias_T = bias_T - weight_TD.sum(1) * shift
    return {
        f"{heads.layer}.weight": identity_DD.float(),
        f"{heads.layer}.bias": torch.full((width,), shift),
        f"{heads.text}.weight": weight_TD.float(),
        f"{heads.text}.bias": bias_T.float(),
    }


def _rescaled(layer: nn.Linear, *, scale: float, centre: float) -> nn.Linear:
    """A layer that gives numbers as the rows have them, where firth's head learned standardised ones."""
    scaled = nn.Linear(layer.in_features, layer.out_features)
    with torch.no_grad():
        scaled.weight.copy_(layer.weight * scale)
        scaled.bias.copy_(layer.bias * scale + centre)
    return scaled


def _token_layer(heads: TypeHeads, layer: nn.Module) -> dict[str, Tensor]:
    if not isinstance(layer, ScoringLayer):
        return {}
    return _renamed_layer(heads, layer)


def _renamed_layer(heads: TypeHeads, layer: ScoringLayer) -> dict[str, Tensor]:
    tensors = _renamed(layer.dense, heads.layer)
    if heads.norm:
        tensors |= _renamed(layer.norm, heads.norm)
    return tensors


def _renamed(layer: nn.Module, name: str) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for key, tensor in layer.state_dict().items():
        on_cpu = tensor.detach().cpu().contiguous()
        # Cloned, because safetensors refuses tensors that share memory.
        renamed[f"{name}.{key}"] = on_cpu.clone()
    return renamed


def _label_settings(labels: Sequence[str]) -> dict[str, object]:
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


# Reading


def pop_head(model_type: str, values: JsonObject, tensors: dict[str, Tensor]) -> TaskWeights | None:
    """Removes the head of a task from the tensors of a folder, and returns it; None if the folder has none."""
    heads = TYPES.get(model_type)
    architecture = _architecture(values)
    if heads is None:
        return None
    if architecture.endswith(TEXT):
        if heads.layer:
            _drop_pooler(model_type, tensors)
        return _pop_text_head(heads, values, tensors)
    if architecture.endswith(TOKENS):
        return _pop_tagger(heads, values, tensors)
    if architecture.endswith(ANSWERS) and heads.answers:
        found = _popped(tensors, {heads.answers: "head"} | _layer_names(heads, tokens=True))
        return TaskWeights("answer", {"unanswerable": "no", "rules": "guess"}, {}, found)
    return None


def drop_head(model_type: str, values: JsonObject, tensors: dict[str, Tensor]) -> None:
    """Removes the copy of a head that `transformers_head` wrote; firth reads it from `head.safetensors`."""
    heads = TYPES.get(model_type)
    if heads is None or not _architecture(values).endswith((TEXT, TOKENS, ANSWERS)):
        return
    for name in {"classifier", "qa_outputs", heads.text, heads.layer, heads.norm} - {""}:
        tensors.pop(f"{name}.weight", None)
        tensors.pop(f"{name}.bias", None)


def _architecture(values: JsonObject) -> str:
    architectures = values.get("architectures") or [""]
    return str(architectures[0])


def _drop_pooler(model_type: str, tensors: dict[str, Tensor]) -> None:
    """Removes the model's own pooler, which classes with a layer of their own do not use."""
    prefix = model_type.removeprefix("xlm-")
    for name in [name for name in tensors if name.startswith(f"{prefix}.pooler.")]:
        del tensors[name]


def _pop_text_head(heads: TypeHeads, values: JsonObject, tensors: dict[str, Tensor]) -> TaskWeights:
    found = _popped(tensors, {heads.text: "head"} | _layer_names(heads))
    names = _label_names(values, len(found["head.bias"]))
    layer = heads.kind if heads.layer else "none"
    problem = values.get("problem_type")
    if len(names) > 1 or problem == PROBLEMS["number"]:
        kinds = {problem: kind for kind, problem in PROBLEMS.items()}
        kind = kinds.get(str(problem), "one")
        pooling = "cls"
        if heads.norm:
            pooling = values.get("classifier_pooling", "cls")
        config = {"kind": kind, "layer": layer, "pooling": pooling, "spread": 0.0}
        if kind == "number":
            config["spread"] = 1.0
            return TaskWeights("classify", config, {}, found)
        return TaskWeights("classify", config, {"label": names}, found)
    settings = values.get("sentence_transformers") or {}
    function = str(settings.get("activation_fn", ""))
    # A score as it is, or a probability.
    kind = "number" if function.endswith(IDENTITY) else "one"
    config = {"way": "cross", "kind": kind, "layer": layer, "highest": 1.0, "spread": 1.0}
    labels = {"label": ("0", "1")} if kind == "one" else {}
    return TaskWeights("compare", config, labels, found)


def _pop_tagger(heads: TypeHeads, values: JsonObject, tensors: dict[str, Tensor]) -> TaskWeights:
    found = _popped(tensors, {"classifier": "tagger.head"} | _layer_names(heads, tokens=True))
    names = _label_names(values, len(found["tagger.head.bias"]))
    found["known_words_U"] = torch.zeros(0, dtype=torch.long)
    config: dict[str, object] = {"head": "linear", "scheme": guess_scheme(names), "unit": "word"}
    return TaskWeights("tag", config, {"tag": names}, found)


def _layer_names(heads: TypeHeads, *, tokens: bool = False) -> dict[str, str]:
    """The names of the layer before the scores -> firth's; of tokens' scores only where there is a norm."""
    if not heads.layer or (tokens and not heads.norm):
        return {}
    names = {heads.layer: "layer.dense"}
    if heads.norm:
        names[heads.norm] = "layer.norm"
    return names


def _popped(tensors: dict[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, own_name in names.items():
        for kind in ("weight", "bias"):
            tensor = tensors.pop(f"{name}.{kind}", None)
            if tensor is not None:
                found[f"{own_name}.{kind}"] = tensor
    return found


def _label_names(values: JsonObject, count: int) -> tuple[str, ...]:
    known = values.get("id2label") or {}
    names = []
    for number in range(count):
        name = known.get(str(number), f"LABEL_{number}")
        names.append(str(name))
    return tuple(names)
