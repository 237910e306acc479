"""The route of fine-tuned models: what a task predicts for inputs."""

from collections.abc import Mapping, Sequence

from firth.checkpoint import only_task
from firth.data.items import Item, all_windows
from firth.serving import schemas
from firth.serving.batching import PredictOperation
from firth.serving.server_state import ServerState
from firth.types import Cell, Prediction, TaskInput


async def predict(state: ServerState, request: schemas.PredictRequest) -> schemas.PredictResponse:
    name, model = state.find_able_model(request.model, "predict")
    task, _ = only_task(model.checkpoint, "This model", request.task)
    predictions, unknown = await predict_inputs(state, name, task, request.inputs)
    rows = [_input_prediction(prediction) for prediction in predictions]
    return schemas.PredictResponse(model=name, task=task, predictions=rows, unknown=unknown)


def _input_prediction(prediction: Prediction) -> schemas.InputPrediction:
    spans = []
    for span in prediction.spans:
        spans.append(
            schemas.PredictedSpan(
                label=span.label, start=span.start, end=span.end, text=span.text, probability=span.probability
            )
        )
    return schemas.InputPrediction(
        label=prediction.label,
        probability=prediction.probability,
        probabilities=dict(prediction.probabilities),
        spans=spans,
    )


async def predict_inputs(
    state: ServerState,
    name: str,
    task: str,
    inputs: Sequence[TaskInput],
) -> tuple[list[Prediction], float]:
    """What the task predicts for each input, after all checks; and the share of unknown tokens."""
    model = state.models[name]
    texts: list[str] = []
    for value in inputs:
        texts += _texts_of(value)
    state.check_texts(texts, inputs=len(inputs))

    def encode() -> Sequence[Item]:
        examples = model.examples(inputs, task=task)
        return model.encode_examples(examples, task=task)

    items = await state.prepare(texts, encode)
    sequences = [window.ids for window in all_windows(items)]
    tokens = sum(map(len, sequences))
    predictions = await state.compute(PredictOperation(model, task), items, tokens=tokens)
    return predictions, state.unknown_share(name, sequences)


def _texts_of(value: TaskInput) -> list[str]:
    """All texts of an input; numbers in its columns are not texts."""
    if not isinstance(value, Mapping):
        return _texts_of_cell(value)
    texts = []
    for cell in value.values():
        texts += _texts_of_cell(cell)
    return texts


def _texts_of_cell(cell: Cell) -> list[str]:
    if isinstance(cell, str):
        return [cell]
    if isinstance(cell, Sequence):
        return [text for text in cell if isinstance(text, str)]
    return []
