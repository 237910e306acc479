"""Tasks: goals whose labels people wrote. One file holds a task's settings and its three parts, and makes its `Task`.

The parts, in the order they are used (`firth/tasks/task.py` has the signatures):

The config: everything about a file's form, the head and the scores is a field, so that a run remembers it.
`config.with_preset()` fills in what a preset implies.

The reader (`task.reader(config)`) needs no network:
1. `locate(path)` gives the config with what only the header of the training file tells (the name of its text column).
2. `read(path, problems)` turns a file into `Example`s. A row that cannot be used becomes a `Problem` with its row
   number and the remedy. It is not raised: the run decides whether to stop, or to skip and count such rows.
3. `learn(examples)` gives the config with what only the training rows tell (a tag scheme).
4. `labels_of(examples)` gathers the names from the training rows, sorted. `problems(examples, labels)` then finds what
   only shows when all rows or the labels are known (a label that training never saw: `bad=True`; something worth a
   look: `bad=False`). `balance(examples)` counts names for `firth check`; rows of one `group(example)` are held out
   together.

The head (`task.head(config, encoder, labels=...)`) is an `nn.Module`, its weights drawn by `nn.blocks.initialise`:
5. `before_training(examples)` is called once with the training rows (class weights).
6. `encode(examples, tokenizer, max_length=..., training=...)` gives one `data.items.Item` an example, in order: its
   windows (`items.window` adds the special tokens), and how many tokens no window holds (`cut`). Use
   `tokenizers.vocab.windows` for long texts. In training the number of windows may be limited, in prediction never.
7. `batch(items)` packs all windows of some items (`items.pack_items`) and adds the targets; `loss(states, batch)` and
   `counts(batch)` are as in every goal. The key of sums, counts and tallies is `self.name` (`<name>`,
   `<name>_correct`); the loop divides sum by count.
8. `outputs(states, batch)` gives one array for each sequence of a batch without targets (float32, on the CPU).
   `decide(item, outputs)` merges the arrays of all windows of one item into a `Prediction`. Batches in prediction may
   split an item's windows, so `outputs` must not need them all together. `tasks.predicting.predict` is the only code
   that calls these two (through `decide_all`, which a head may override to decide many items at once). A
   `GeneratingHead` has `generate(encoder, items)` in their place: its predictions are texts that the model writes.
9. `tune(predictions, examples)` finds a number on dev that gradients cannot (a threshold), keeps it with
   `self.config = replace(self.config, ...)`, which is what is saved, and gives the predictions as they are with it. It
   is called before scoring the file that epochs are picked on, and never elsewhere.

The scorer (`task.scorer(config, labels)`, or `scorer_of(head)`) needs no network:
10. `score(predictions, examples)` compares by name; `main_metric` names the figure that epochs are picked by.
    `baseline(train, examples)` answers without reading the texts, `perfect(example)` as gold says;
    `error(prediction, example)` ranks mistakes, and `details` has the tables of a report.

A new task is one file and one line in `TABLE`; its law tests (tests/laws/test_tasks.py) ask for a small labelled file.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from firth.config import from_dict, has_field
from firth.config import resolve as _resolve
from firth.errors import BadConfig

if TYPE_CHECKING:
    from firth.tasks.task import Head, Reader, Scorer, Task, TaskConfig

TABLE = {
    "classify": "firth.tasks.classify:CLASSIFY",
    "tag": "firth.tasks.tag:TAG",
    "answer": "firth.tasks.answer:ANSWER",
    "choose": "firth.tasks.choose:CHOOSE",
    "compare": "firth.tasks.compare:COMPARE",
    "rewrite": "firth.tasks.rewrite:REWRITE",
    "prompt": "firth.tasks.prompt:PROMPT",
}


def resolve(name: str) -> "Task":
    """A task by name; `classify-2` is a second one of its kind."""
    task: Task = _resolve(TABLE, name.partition("-")[0], "task")
    return task


def make_config(name: str, options: Mapping[str, object]) -> "TaskConfig":
    """The config of a task with these options; an option of another task is refused with the name of that task."""
    config_class = resolve(name).Config
    for option in options:
        if has_field(config_class, option):
            continue
        owners = [f"`task='{task}'`" for task in TABLE if has_field(resolve(task).Config, option)]
        if "`task='prompt'`" in owners:
            owners.append("`few='prompt'`")
        if owners:
            raise BadConfig(f"`{option}=` is for {' or '.join(owners)}, not for `task='{name}'`.")
    return from_dict(config_class, options)


def reader_of(head: "Head") -> "Reader":
    """What reads the files of a head's task as its training files were read."""
    return resolve(head.name).reader(head.config)


def scorer_of(head: "Head") -> "Scorer":
    """What scores a head's predictions, with its config as it is now."""
    return resolve(head.name).scorer.of(head)
