"""The head of a fine-tuned model as transformers has it: tensors for `model.safetensors`, keys for `config.json`.

In: the type of a model folder, an encoder and a task's head. Out: what `BertForTokenClassification` and the like load,
or None if transformers has no class that computes the same. Firth itself reads the head from `head.safetensors`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from firth.nn.taggers import SoftmaxTagger
from firth.tasks.classify import ClassifyHead
from firth.tasks.tag import TagHead
from firth.tasks.task import Head
from firth.tensors import Encoder

CLASSES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "albert": "Albert",
    "distilbert": "DistilBert",
    "electra": "Electra",
}
"""Type of a model folder -> how the names of its classes begin. All have the same head for token classification."""
POOLED = ("bert", "albert")
"""The types whose sequence classification is one linear layer over the pooler. The others have a layer before it."""
PROBLEMS = {"one": "single_label_classification", "many": "multi_label_classification"}


@dataclass(frozen=True)
class TransformersHead:
    tensors: Mapping[str, Tensor]
    settings: Mapping[str, object]
    """Keys of `config.json`."""


def transformers_head(model_type: str, encoder: Encoder, head: Head) -> TransformersHead | None:
    """The head in transformers' layout, or None if transformers has no such head for this type."""
    if model_type not in CLASSES:
        return None
    if isinstance(head, TagHead):
        tagger = head.tagger
        if isinstance(tagger, SoftmaxTagger) and isinstance(tagger.head, nn.Linear) and head.lstm is None:
            return _classifier(tagger.head, head.tags, architecture=f"{CLASSES[model_type]}ForTokenClassification")
    if isinstance(head, ClassifyHead) and model_type in POOLED:
        has_pooler = getattr(encoder.config, "pooler", False)
        is_pooled = head.config.pooling == "cls" and has_pooler
        if is_pooled and isinstance(head.head, nn.Linear) and len(head.labels) == 1:
            (names,) = head.labels.values()
            architecture = f"{CLASSES[model_type]}ForSequenceClassification"
            return _classifier(head.head, names, architecture=architecture, problem_type=PROBLEMS[head.config.kind])
    return None


def _classifier(layer: nn.Linear, labels: Sequence[str], *, architecture: str, **settings: str) -> TransformersHead:
    tensors: dict[str, Tensor] = {}
    for name, tensor in layer.state_dict().items():
        # Cloned, because safetensors refuses tensors that share memory.
        tensors[f"classifier.{name}"] = tensor.detach().cpu().contiguous().clone()
    names = {
        "architectures": [architecture],
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }
    return TransformersHead(tensors, {**names, **settings})
