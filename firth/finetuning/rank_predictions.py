"""Predictions by several ranks: each predicts every size-th item, and all ranks have all predictions afterwards."""

from collections.abc import Sequence

from firth.data.items import Item
from firth.tasks.predicting import predict
from firth.tasks.task import Head
from firth.tensors import Encoder
from firth.train.parallel import current_world
from firth.types import Prediction


def predict_together(encoder: Encoder, head: Head, items: Sequence[Item]) -> list[Prediction]:
    """A prediction for each item, in their order; each item is predicted exactly once."""
    world = current_world()
    if world.size == 1:
        return predict(encoder, head, items)
    own_items = items[world.rank :: world.size]
    own_predictions = predict(encoder, head, own_items) if own_items else []
    predictions: dict[int, Prediction] = {}
    for rank, of_rank in enumerate(world.gathered(own_predictions)):
        for turn, prediction in enumerate(of_rank):
            predictions[turn * world.size + rank] = prediction
    return [predictions[number] for number in range(len(items))]
