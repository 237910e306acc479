"""How a pre-trained encoder is used for a task. Config in; an encoder ready to learn out.

Fine-tune everything (Devlin et al. 2018), frozen features (table 7 there; Peters et al. 2018), adapters (Houlsby et al.
2019), LoRA (Hu et al. 2021), biases alone (BitFit, Ben Zaken et al. 2021) or prefixes (Li & Liang 2021). New weights
for the top layers (Zhang et al. 2021), a lower rate for lower layers, gradual unfreezing from the top (Howard & Ruder
2018) and the language model's loss as a second one (Radford et al. 2018) can be added.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from torch import nn

from firth.checkpoint import make_objective
from firth.errors import BadConfig
from firth.finetuning.knowledge import fill, read_known_names
from firth.finetuning.start import Start
from firth.nn.adapters import insert_adapters
from firth.nn.blocks import initialise
from firth.nn.features import Features
from firth.nn.lora import LoraConfig, insert_lora
from firth.nn.prefix import insert_prefixes
from firth.objectives.auxiliary_lm import NAME, AuxiliaryLM
from firth.objectives.causal_lm import CausalLM
from firth.objectives.objective import Objective
from firth.tensors import Encoder
from firth.tokenizers import Tokenizer
from firth.train.layer_rates import depth_below_head
from firth.train.loop import Learner

OWN_SETTINGS = {"features": "features", "adapter_width": "adapters", "lora": "lora", "prefix_length": "prefix"}
"""Settings that only one mode reads."""


@dataclass(frozen=True)
class TransferConfig:
    mode: Literal["full", "features", "adapters", "lora", "bitfit", "prefix"] = "full"
    """What learns besides the head: everything, nothing of the encoder, adapters and norms, low-rank matrices beside
    those of the blocks, biases, or keys and values before each text."""
    features: Features.Config = field(default_factory=Features.Config)
    """Which layers of the frozen encoder are read, with mode=features."""
    adapter_width: int = 64
    """Bottleneck of the adapters, with mode=adapters."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """The low-rank matrices, with mode=lora."""
    merge: bool = True
    """With mode=lora, whether the low-rank matrices are added to the model's own when it is saved; false keeps them as
    a small folder in peft's layout, which needs the model it was made from."""
    prefix_length: int = 16
    """Keys and values before each text, with mode=prefix."""
    layer_decay: float = 0.0
    """Each layer's rate is this times that of the layer above it; 0: 0.8 for deep and narrow models, otherwise 1."""
    unfreeze_every: float = 0.0
    """Epochs after which one more block begins to learn, from the top; 0 lets all learn at once."""
    reinit_layers: int = 0
    """Top blocks (and the pooler) that begin with new weights, because their own are too much of pre-training's goal
    (Zhang et al. 2021); on small sets together with a longer train.optim.warmup_rate."""
    frozen_layers: int = 0
    """Lowest blocks that do not learn, and the embeddings below; steps cost less, because no gradient goes there."""
    auxiliary_lm: float = 0.0
    """Weight of the language model's loss on the task's texts, added to the task's; GPT's paper: 0.5. 0 for none."""

    def __post_init__(self) -> None:
        if not 0 <= self.layer_decay <= 1 or self.unfreeze_every < 0 or self.adapter_width < 1:
            raise BadConfig(
                "transfer needs 0 <= layer_decay <= 1, unfreeze_every of at least 0 and adapter_width of at least 1."
            )
        if self.prefix_length < 1:
            raise BadConfig("transfer.prefix_length must be at least 1.")
        if not self.merge and self.mode != "lora":
            raise BadConfig("transfer.merge=false goes with transfer.mode=lora.")
        if self.features.vectors and self.mode != "features":
            raise BadConfig("transfer.features.vectors goes with transfer.mode=features.")
        if self.auxiliary_lm < 0 or (self.auxiliary_lm and self.mode == "features"):
            raise BadConfig("transfer.auxiliary_lm must be at least 0, and 0 with transfer.mode=features.")
        if self.unfreeze_every and self.mode != "full":
            raise BadConfig("transfer.unfreeze_every goes with transfer.mode=full.")
        if min(self.reinit_layers, self.frozen_layers) < 0:
            raise BadConfig("transfer.reinit_layers and transfer.frozen_layers must be at least 0.")
        if (self.reinit_layers or self.frozen_layers) and self.mode != "full":
            raise BadConfig("transfer.reinit_layers and transfer.frozen_layers go with transfer.mode=full.")
        if self.frozen_layers and self.unfreeze_every:
            raise BadConfig("transfer.frozen_layers and transfer.unfreeze_every both say what learns; leave one out.")


def settings_without_effect(config: TransferConfig) -> list[str]:
    """A sentence for each changed setting that belongs to another mode."""
    usual = TransferConfig()
    sentences = []
    for name, mode in OWN_SETTINGS.items():
        if config.mode != mode and getattr(config, name) != getattr(usual, name):
            sentences.append(f"transfer.{name} has no effect without transfer.mode={mode}.")
    return sentences


def adapt(encoder: Encoder, config: TransferConfig, *, tokenizer: Tokenizer | None = None) -> Encoder:
    """The encoder that the heads read; draws the new weights of adapters and features.

    Features that are fused with word vectors need the tokenizer.
    """
    if config.mode == "features":
        return _features(encoder, config.features, tokenizer)
    if config.mode == "adapters":
        insert_adapters(encoder, config.adapter_width)
        for name, parameter in encoder.named_parameters():
            # Adapters, and the norms they feed, learn; everything else is frozen.
            is_norm = ".norm." in f".{name}" or "_norm." in name
            is_adapter = "_slot." in name
            parameter.requires_grad_(is_adapter or is_norm)
        pooler = getattr(encoder, "pooler", None)
        if pooler is not None:
            pooler.requires_grad_(True)
    if config.mode == "lora":
        insert_lora(encoder, config.lora)
    if config.mode == "prefix":
        insert_prefixes(encoder, config.prefix_length)
    if config.mode == "bitfit":
        _freeze_all_but_biases(encoder)
    if config.reinit_layers:
        reinitialise_top(encoder, config.reinit_layers)
    if config.frozen_layers:
        freeze_bottom(encoder, config.frozen_layers)
    return encoder


def _freeze_all_but_biases(encoder: Encoder) -> None:
    num_biases = 0
    for name, parameter in encoder.named_parameters():
        is_bias = name.endswith("bias")
        num_biases += is_bias
        parameter.requires_grad_(is_bias)
    if not num_biases:
        raise BadConfig(f"{type(encoder).__name__} has no biases that could learn; use transfer.mode=lora.")


def reinitialise_top(encoder: Encoder, count: int) -> None:
    """Draws new weights for the top blocks and for the pooler."""
    blocks = _blocks(encoder, count, setting="reinit_layers")
    for block in blocks[len(blocks) - count :]:
        initialise(block, std=encoder.init_std)
    pooler = getattr(encoder, "pooler", None)
    if pooler is not None:
        initialise(pooler, std=encoder.init_std)


def freeze_bottom(encoder: Encoder, count: int) -> None:
    """Lets neither the lowest blocks learn nor the embeddings below them."""
    num_blocks = len(_blocks(encoder, count, setting="frozen_layers"))
    for name, parameter in encoder.named_parameters():
        # The lowest frozen block is the deepest below the head.
        if depth_below_head(name, num_blocks) > num_blocks - count:
            parameter.requires_grad_(False)


def own_blocks(encoder: Encoder) -> nn.ModuleList | None:
    """The blocks of an encoder in which every layer has its own; None for others, such as ALBERT and ELMo."""
    blocks = getattr(encoder, "blocks", None)
    if not isinstance(blocks, nn.ModuleList) or len(blocks) != encoder.num_layers:
        return None
    return blocks


def _blocks(encoder: Encoder, count: int, *, setting: str) -> nn.ModuleList:
    """The blocks of an encoder, of which there are more than `count`."""
    blocks = own_blocks(encoder)
    if blocks is None:
        raise BadConfig(f"transfer.{setting} needs a model with blocks of their own weights; this one has none.")
    if count >= len(blocks):
        raise BadConfig(f"transfer.{setting} must be below the model's {len(blocks)} blocks; it is {count}.")
    return blocks


def _features(encoder: Encoder, config: Features.Config, tokenizer: Tokenizer | None) -> Features:
    if not config.vectors:
        return Features(config, encoder)
    assert tokenizer is not None
    known = read_known_names(config.vectors, tokenizer, vocab_size=encoder.vocab_size)
    num_names, name_width = known.vectors_ME.shape
    sizes = (num_names, name_width, known.longest)
    # Only the name of the vectors' folder is kept: the model holds the vectors themselves.
    features = Features(replace(config, names=sizes, vectors=Path(config.vectors).name), encoder)
    assert features.table is not None
    fill(features.table, known)
    return features


def unfreeze(encoder: nn.Module, *, num_layers: int, epochs_done: float, every: float) -> None:
    """Gradual unfreezing: the head learns first, then one more block every so many epochs, the embeddings last."""
    num_unfrozen = int(epochs_done / every)
    for name, parameter in encoder.named_parameters():
        parameter.requires_grad_(depth_below_head(name, num_layers) <= num_unfrozen)


def auxiliary_goals(start: Start, encoder: Encoder, config: TransferConfig) -> dict[str, AuxiliaryLM]:
    """The second loss of every batch: that of the language model that the encoder was trained as, or none."""
    if not config.auxiliary_lm:
        return {}
    trained = (start.goals or {}).get("causal_lm")
    if not isinstance(trained, CausalLM) or not encoder.causal:
        raise BadConfig(
            "transfer.auxiliary_lm needs a model that predicts the next token, as gpt, gpt-2 and ulmfit do, with its "
            "own weights; leave it out."
        )
    # A copy, because every seed starts from the trained head again.
    head = make_objective("causal_lm", trained.config, encoder, start.tokenizer)
    head.load_state_dict(trained.state_dict())
    assert isinstance(head, CausalLM)
    return {NAME: AuxiliaryLM(head, weight=config.auxiliary_lm)}


def pretraining_heads(learner: Learner) -> dict[str, Objective]:
    """The heads of pre-training that learned along and so still fit the encoder."""
    for goal in learner.auxiliary.values():
        if isinstance(goal, AuxiliaryLM):
            return {"causal_lm": goal.head.cpu().eval()}
    return {}
