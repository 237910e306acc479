"""Answers of a model that was not fine-tuned: a pattern and words for the labels in, a classifier's checkpoint out."""

from dataclasses import replace

from firth.checkpoint import Checkpoint, make_head
from firth.tasks.prompt import PromptConfig, words_by_label

TASK = "prompt"


def with_prompt(checkpoint: Checkpoint, *, pattern: str, words: str) -> Checkpoint:
    """The model with a prompt as its only task; `words` are `positive=great,negative=terrible`."""
    config = PromptConfig(pattern=pattern or PromptConfig.pattern, label_words=words)
    labels = {"label": tuple(words_by_label(words))}
    head = make_head(TASK, config, checkpoint.encoder, labels=labels)
    head.start_from(checkpoint.goals)
    head.calibrate_prompt(checkpoint.encoder, checkpoint.tokenizer)
    return replace(checkpoint, tasks={TASK: head}, feature_encoder=None)
