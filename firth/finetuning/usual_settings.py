"""The defaults of a fine-tuning run: passes, optimizer, learning rate, layer decay, evaluations.

In: what the run starts from and how many steps it makes. Out: numbers that did well on the sets of docs/results.md.
"""

import math
from dataclasses import replace

from firth.finetuning.settings import FinetuneConfig
from firth.finetuning.start import Start
from firth.finetuning.transfer import TransferConfig
from firth.train.settings import Optimizer, TrainConfig

USUAL_EPOCHS = 3.0
"""Passes over the training rows by default."""
FEWEST_STEPS = 150
"""More passes are made if the usual ones would be fewer steps than this ..."""
MOST_EPOCHS = 20.0
"""... but not more than this."""
RATES = {128: 5e-4, 256: 3e-4, 384: 1e-4, 512: 1e-4, 768: 5e-5}
"""Learning rate by the width of a pre-trained model: 768 is BERT's own, 384 and 512 did well on the sets of
docs/results.md (at 2e-4 and width 384 RTE, CoLA and GoEmotions diverged in some seeds)."""
WIDE_RATE = 3e-5
"""Learning rate of wider models."""
DEEP = 10
"""A narrow model of at least this many layers is fine-tuned with `DEEP_RATE` and `DEEP_DECAY`."""
DEEP_WIDTH = 384
DEEP_RATE = 2e-4
DEEP_DECAY = 0.8
"""Chosen for 12 layers of width 256 on parts of CoLA's, QNLI's and QQP's labelled rows that no figure is reported on,
and on STS-B's development set (docs/speedrun.md). Without layer decay such models fall back at rates above 1e-4."""
MUON_RATE = 1e-3
SHORT_RUN = 200
MUON_SHORT_RATE = 2e-3
"""Runs of fewer steps have this rate: tagging with 44 steps learned nothing at 1e-3."""
MUON_DECAY = 0.9
MUON_ADAMW_SHARE = 0.2
"""For models that Muon pre-trained and fine-tunes, chosen on rows that no figure is reported on (docs/speedrun.md).
Their weights are large, and AdamW, whose updates have few and large singular values, damages them."""
NEW_PARTS_RATE = 1e-3
"""Learning rate if only adapters or layers over frozen features learn."""


def usual_epochs(steps_of_epoch: float) -> float:
    """The usual passes, or more if those were too few steps."""
    enough = math.ceil(FEWEST_STEPS / steps_of_epoch)
    return min(MOST_EPOCHS, max(USUAL_EPOCHS, enough))


def resolve_train(train: TrainConfig, epochs: float, steps_of_epoch: float) -> TrainConfig:
    """The loop's settings: an evaluation after each epoch, about 50 rows of metrics or more."""
    steps = max(1, round(epochs * steps_of_epoch))
    whole_steps_of_epoch = max(1, round(steps_of_epoch))
    return replace(
        train,
        steps=steps,
        evaluate_every=min(whole_steps_of_epoch, steps),
        checkpoint_every=min(whole_steps_of_epoch, 500),
        log_every=max(1, min(20, steps // 50)),
    )


def usual_optimizer(start: Start, config: FinetuneConfig) -> Optimizer:
    """The optimizer that the user chose, or the one that pre-trained the weights if all of them learn."""
    chosen = config.train.optim.optimizer
    if chosen != "auto":
        return chosen
    # New parts have no past, and ranks that share matrices cannot make their updates orthogonal.
    do_whole_weights_learn = config.transfer.mode == "full" and config.train.parallel != "fsdp"
    if start.optimizer == "muon" and start.trained is not None and do_whole_weights_learn:
        return "muon"
    return "adamw"


def usual_rate(start: Start, transfer: TransferConfig, optimizer: Optimizer, *, steps: float) -> float:
    """The rate that did well on small sets: higher for smaller models, for random weights and for new parts."""
    if transfer.mode != "full":
        return NEW_PARTS_RATE
    if optimizer == "muon":
        return MUON_SHORT_RATE if steps < SHORT_RUN else MUON_RATE
    if is_deep_and_narrow(start) and start.trained is not None:
        return DEEP_RATE
    rate = WIDE_RATE
    for width, rate_of_width in RATES.items():
        if start.shape.width <= width:
            rate = rate_of_width
            break
    if start.trained is None:
        return 2 * rate
    return rate


def usual_layer_decay(start: Start, optimizer: Optimizer) -> float:
    """Lower layers of deep and narrow models learn slowly; all layers of other models learn alike."""
    if optimizer == "muon" and start.trained is not None:
        return MUON_DECAY
    if is_deep_and_narrow(start) and start.trained is not None:
        return DEEP_DECAY
    return 1.0


def is_deep_and_narrow(start: Start) -> bool:
    return start.num_blocks >= DEEP and start.shape.width <= DEEP_WIDTH
