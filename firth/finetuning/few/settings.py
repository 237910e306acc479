"""The settings of fine-tuning with few labels: part of `run.toml`."""

from dataclasses import dataclass
from typing import Literal

from firth.errors import BadConfig


@dataclass(frozen=True)
class FewConfig:
    way: Literal["none", "plain", "contrast", "prompt"] = "none"
    """How a run learns from few labels: a layer over the pooled vector, contrastive pairs and then a head, or a prompt;
    none is fine-tuning without any of the settings here."""
    temperature: float = 0.1
    """With way=contrast, what cosines are divided by before the softmax over the other rows of a batch."""
    cross_entropy: float = 0.0
    """With way=contrast, the weight of the head's own loss, which is added to the contrastive one."""
    l2: float = 1.0
    """With way=contrast, the penalty of the head's weights, for vectors of length 1."""
    pseudo_rows: str = ""
    """A file of texts with the labels that self-training gave them; they are learned from, too."""
    pseudo_share: float = 0.5
    """Of the unlabelled texts, the share that self-training keeps: the most confident answers for each label."""
    pseudo_most: int = 400
    """The most texts that self-training keeps."""

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.cross_entropy < 0 or self.l2 <= 0:
            raise BadConfig("few needs a temperature and an l2 above 0, and a cross_entropy of at least 0.")
        if not 0 < self.pseudo_share <= 1 or self.pseudo_most < 1:
            raise BadConfig("few.pseudo_share must be above 0 and at most 1, and few.pseudo_most at least 1.")
