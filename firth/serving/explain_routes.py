"""The route that explains a classifier's predictions: which words speak for the label."""

from firth.data.items import all_windows
from firth.inference.explaining import STEPS, Explanation
from firth.serving.responses import unsupported
from firth.serving.schemas import ExplainRequest, ExplainResponse, WeighedWord, text_list
from firth.serving.server_state import ServerState


async def explain(state: ServerState, request: ExplainRequest) -> ExplainResponse:
    """Why an input got its label."""
    name, model = state.find_model(request.model)
    able = [other for other in state.models if state.can_explain(other)]
    if name not in able:
        others = f"; these can: {', '.join(able)}" if able else ""
        raise unsupported(f"{name} is no classifier, so there is nothing to explain{others}.")
    given = text_list(request.input)
    state.check_texts(given)
    examples = model.examples([request.input], task=request.task)
    items = await state.prepare(given, lambda: model.encode_examples(examples, task=request.task))
    num_tokens = sum(len(window.ids) for window in all_windows(items))
    # Gradients read the text once for each step, occlusion once for each word.
    times = STEPS
    if request.by == "occlusion":
        times = max(STEPS, num_tokens)
    num_read = num_tokens * times

    def compute() -> Explanation:
        [explained] = model.explain_examples(examples, task=request.task, by=request.by)
        return explained

    found = await state.compute_alone(compute, tokens=num_read)
    words = []
    for word in found.words:
        weighed = WeighedWord(
            word=word.word,
            weight=word.weight,
            start=word.start,
            end=word.end,
            text=word.text,
        )
        words.append(weighed)
    return ExplainResponse(
        model=name, label=found.label, probability=found.probability, method=found.method, words=words
    )
