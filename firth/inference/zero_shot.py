"""Answers of a model that was not fine-tuned: a pattern and words for the labels in, a classifier's checkpoint out."""

from dataclasses import replace

from firth.checkpoint import Checkpoint, make_head
from firth.errors import BadConfig
from firth.tasks.prompt import LabelWords, PromptConfig, example_of, words_as_text, words_by_label

TASK = "prompt"


def with_prompt(checkpoint: Checkpoint, *, pattern: str, words: LabelWords) -> Checkpoint:
    """The model with a prompt as its only task; `words` are `positive=great,negative=terrible`, or a dict of them."""
    config = PromptConfig(pattern=pattern, label_words=words_as_text(words))
    names = tuple(words_by_label(config.label_words))
    if len(names) == 1:
        example = example_of(config.label_words)
        raise BadConfig(f"Words are given for one label only ({names[0]}); give those of all, such as {example}.")
    labels = {"label": names}
    head = make_head(TASK, config, checkpoint.encoder, labels=labels)
    head.start_from(checkpoint.goals)
    head.calibrate_prompt(checkpoint.encoder, checkpoint.tokenizer)
    return replace(checkpoint, tasks={TASK: head}, feature_encoder=None)
