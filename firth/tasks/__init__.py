"""Goals whose labels people wrote. One file holds a task's formats, head, loss, prediction and score.

How the parts of a task meet (`firth.tensors.Task` has the signatures), in the order they are called:

0. `settle(config)` fills in what a preset implies, so that a saved config says everything; `locate(config, path)`
   what only the header of the training file tells (the name of its text column).
1. `read(path, config, problems)` turns a file into `Example`s. Everything about the file's form (preset, columns, tag
   scheme) is a field of the task's `Config`, so that a run remembers it. A row that cannot be used becomes a `Problem`
   with its row number and the remedy; it is not raised: the run decides whether to stop or to skip and count.
   A form that fits no row (a missing column) raises `BadInput`. With `labelled=False` gold may be missing.
   `learn(config, examples)` then gives the config with what only the training rows tell (a tag scheme).
2. `labels_of(examples, config)` gathers the names from the training rows, sorted; `problems(examples, config, labels)`
   then finds what only shows when all rows or the labels are known (a label that training never saw: `bad=True`;
   something worth a look: `bad=False`).
   `balance(examples, config)` counts names for `firth check`; rows of one `group(example)` are held out together.
3. `__init__(config, encoder, labels=...)` makes the head, its weights drawn by `nn.blocks.initialise`. Only
   `encoder.width` and `encoder.config` may be read; the encoder is not kept.
4. `encode(examples, tokenizer, max_length=..., training=...)` gives one `data.items.Item` an example, in order: its
   windows (`items.window` adds the special tokens), and how many tokens no window holds (`cut`). Use
   `tokenizers.vocab.windows` for long texts. In training the number of windows may be limited, in prediction never.
5. `batch(items)` packs all windows of some items (`items.pack_items`) and adds the targets; `loss(states, batch)` and
   `counts(batch)` are as in every goal. The key of sums, counts and tallies is `self.name` (`<name>`,
   `<name>_correct`): the table's name, unless several tasks of one kind learn together; the loop divides sum by count.
6. `outputs(states, batch)` gives one array for each sequence of a batch without targets (float32, on the CPU);
   `decide(item, outputs)` merges the arrays of all windows of one item into a `Prediction`. Batches in prediction may
   split an item's windows, so nothing that needs them all together may stand in `outputs`.
   `tasks.predicting.predict` is the only code that calls these two (through `decide_all`, which a task may override
   to decide many items at once).
7. `score(predictions, examples)` compares by name; `main` names the figure to pick on. `baseline(train, examples)`
   answers without reading the texts, `perfect(example)` as gold says; `error(prediction, example)` ranks mistakes.
8. `weigh(examples)` is called once, before training, with the training rows (class weights). Where a number must be
   found on dev (a threshold), `tune(predictions, examples)` sets it (`self.config = replace(self.config, ...)`, which
   is what is saved) and gives the predictions as they are with it; it is called before `score` on the file epochs are
   picked on, and never elsewhere.

A new task is one file, one line in `TABLE`; its law tests (tests/laws/test_tasks.py) ask for a small labelled file.
"""

from typing import Any

from firth.config import resolve as _resolve

TABLE = {
    "classify": "firth.tasks.classify:Classify",
    "tag": "firth.tasks.tag:Tag",
    "answer": "firth.tasks.answer:Answer",
    "choose": "firth.tasks.choose:Choose",
    "compare": "firth.tasks.compare:Compare",
}


def resolve(name: str) -> Any:
    """The class of a task; `classify-2` is a second one of its kind."""
    return _resolve(TABLE, name.partition("-")[0], "task")
