"""A loaded model and all it can answer. The command line, Python and the server all predict through it.

A server answers in two steps: what prepares one request (`embedder.tokenize`, `mask_filler.tokenize`,
`encode_examples`), and what computes many requests together (`embedder.embed_tokenized`, `mask_filler.fill_batch`,
`predict_items`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from firth import checkpoint as checkpoints
from firth import models
from firth.checkpoint import Checkpoint, only_task
from firth.config import check_whole
from firth.console import bar
from firth.data.items import Item
from firth.encoders.bag import Bag
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import check_writable
from firth.finetuning.labelled import report_cuts, unknown_share_of
from firth.inference.attention import read_attention
from firth.inference.embedding import Embedder
from firth.inference.explaining import Explainer, Explanation, Method
from firth.inference.filling import MaskFiller
from firth.inference.generation import GenerationOptions, generate
from firth.inference.head_embedding import HeadEmbedder
from firth.inference.inputs_file import read_inputs
from firth.inference.lexicon import Lexicon, open_lexicon
from firth.inference.model_info import ModelInfo, model_info, num_parameters
from firth.inference.rewriting import Rewriter, RewriteSettings, WrittenAttention
from firth.inference.saved_precision import ServingEncoder, saved_precision
from firth.inference.zero_shot import with_prompt
from firth.nn.decoding import Choice
from firth.objectives.replaced_token import mask_filler
from firth.tasks import reader_of
from firth.tasks.calibration import threshold_for
from firth.tasks.k_best import k_best
from firth.tasks.predicting import outputs_of, predict
from firth.tasks.prompt import LabelWords
from firth.tasks.rewrite import RewriteHead
from firth.tasks.segmenting import segment
from firth.tasks.tag import TagHead
from firth.tasks.task import Head
from firth.tensors import Encoder
from firth.tokenizers.templates import Templates
from firth.tokenizers.unknown import unknown_share, warn_about_unknown
from firth.types import Example, Fill, Generated, Prediction, Rewritten, TaskInput

if TYPE_CHECKING:
    from firth.inference.word_senses import Senses


class Model:
    """A model in memory; `firth.load` gives it."""

    def __init__(self, checkpoint: Checkpoint, *, precision: str | None = None, folder: Path | None = None) -> None:
        self.folder = folder
        """Where it was loaded from; None for a model that was never saved."""
        self.checkpoint = checkpoint
        self.encoder = checkpoint.encoder
        self.tokenizer = checkpoint.tokenizer
        self._rewriters: dict[str, Rewriter] = {}
        saved = saved_precision(checkpoint)
        self.embedder = Embedder(
            self.encoder,
            self.tokenizer,
            checkpoint.embedding,
            precision=precision or saved.name,
            choices=saved.choices,
            head=HeadEmbedder.of(checkpoint),
            layers=checkpoint.vector_layers,
        )

    @property
    def width(self) -> int:
        """The width of the vectors that `embed` gives without a pooling."""
        return self.embedder.width()

    @property
    def num_parameters(self) -> int:
        return num_parameters(self.checkpoint)

    def info(self) -> ModelInfo:
        """What the model consists of and where it comes from."""
        return model_info(self.checkpoint)

    def save(self, folder: str | Path) -> None:
        """Writes the model as a new folder that firth and transformers open."""
        path = _path(folder, "save")
        # The files of another model would be lost or mixed with those of this one.
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            raise BadInput(f"{path} already exists; choose another folder or remove it.")
        check_writable(path)
        checkpoints.save(path, self.checkpoint)

    def tokens(self, text: str, *, specials: bool = False) -> list[str]:
        """The tokens of a text, as strings."""
        _check_is_text(text)
        encoding = self.tokenizer.encode(text, specials=specials)
        return list(encoding.tokens)

    @cached_property
    def languages(self) -> list[str]:
        """The languages that it can read; the language of the rows of its fine-tuning is not all of them."""
        notes = {name: note for name, note in self.checkpoint.info.items() if name != models.TEXT_LANGUAGE}
        tokens = (self.tokenizer.spelled(token) for token in range(len(self.tokenizer.vocab)))
        return models.languages_of_model(notes, tokens)

    @cached_property
    def mask_filler(self) -> MaskFiller | None:
        """The part that fills masks; None for a model without a masked-LM head."""
        found = mask_filler(self.encoder, self.checkpoint.goals)
        if found is None:
            return None
        # ELECTRA's discriminator fills by its generator, so this encoder may be another one.
        encoder, head = found
        return MaskFiller(encoder, head, self.tokenizer, self.encoder.max_positions)

    def require_mask_filler(self) -> MaskFiller:
        """The part that fills masks; raises for a model without a masked-LM head."""
        if self.mask_filler is None:
            raise Unsupported("This model has no masked-LM head, so it cannot fill; `firth info` lists what it has.")
        return self.mask_filler

    def fill(self, text: str, *, top: int = 5, specials: bool = False) -> list[Fill]:
        """The most likely tokens for each `[MASK]`: `top` candidates for every mask, in order."""
        _check_is_text(text)
        check_whole(top=top)
        mask_filler = self.require_mask_filler()
        masked_text = mask_filler.tokenize(text, specials=specials)
        warn_about_unknown("The text", self.tokenizer, unknown_share(self.tokenizer, [masked_text.ids]))
        [fills] = mask_filler.fill_batch([masked_text], top=top)
        return fills

    def generate(
        self,
        text: str,
        *,
        max_tokens: int = 50,
        seed: int = 1,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        no_repeat_ngram: int = 0,
    ) -> Generated:
        """The text and its continuation by a causal language model.

        A temperature of 0 takes the most likely tokens. `top_k` and `top_p` draw from the most likely tokens only; 0
        and 1 draw from all. No `no_repeat_ngram` tokens in a row occur twice, if that is not 0.
        """
        _check_is_text(text)
        choice = Choice(temperature=temperature, top_k=top_k, top_p=top_p, no_repeat_ngram=no_repeat_ngram)
        options = GenerationOptions(max_tokens, choice, seed)
        [generated] = generate(self.checkpoint, [text], options)
        return generated

    def rewrite(
        self,
        texts: Iterable[str],
        *,
        beams: int | None = None,
        length_penalty: float | None = None,
        no_repeat_ngram: int | None = None,
        max_tokens: int | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 1,
        task: str = "",
    ) -> list[Rewritten]:
        """What an encoder-decoder writes for each text, in order: its translation, its summary.

        Settings that are None are the model's own. A temperature above 0 draws tokens in place of beam search.
        """
        _check_is_list("rewrite", texts)
        texts = list(texts)
        for text in texts:
            _check_is_text(text)
        settings = RewriteSettings(beams, length_penalty, no_repeat_ngram, max_tokens, temperature, top_k, top_p, seed)
        rewriter = self.rewriter(task)
        items = rewriter.tokenize(texts)
        report_cuts("The inputs", items)
        return rewriter.rewrite(items, settings)

    def rewrite_with_attention(self, text: str, *, beams: int | None = None) -> WrittenAttention:
        """What is written for a text, and where in the text each of the written tokens looked."""
        _check_is_text(text)
        rewriter = self.rewriter()
        [item] = rewriter.tokenize([text])
        return rewriter.rewrite_with_attention(item, RewriteSettings(beams=beams))

    def rewriter(self, task: str = "") -> Rewriter:
        """The part that rewrites, the same each time; raises for a model that cannot write."""
        if task not in self._rewriters:
            self._rewriters[task] = Rewriter(self.checkpoint, task)
        return self._rewriters[task]

    @cached_property
    def can_rewrite(self) -> bool:
        """Whether it is an encoder-decoder, which writes."""
        try:
            self.rewriter()
        except (BadConfig, Unsupported):
            # With several tasks that rewrite, each is available by name.
            return any(isinstance(head, RewriteHead) for head in self.checkpoint.tasks.values())
        return True

    def embed(
        self,
        texts: Iterable[str],
        *,
        pooling: str | None = None,
        normalise: bool | None = None,
        max_length: int | None = None,
        specials: bool = False,
        prompt: str | None = None,
    ) -> np.ndarray:
        """One vector for each text, in order. Settings that are None are those of the model's folder.

        A text longer than the model reads is read in windows, unless `max_length` (or the folder) limits its length.
        `prompt` names one of the prompts of the model's folder, such as `query`; an empty name is for none.
        """
        _check_is_list("embed", texts)
        texts = list(texts)
        for text in texts:
            _check_is_text(text)
        return self.embedder.embed(
            texts, pooling=pooling, normalise=normalise, max_length=max_length, specials=specials, prompt=prompt
        )

    def predict(self, inputs: Iterable[TaskInput], *, task: str = "") -> list[Prediction]:
        """What a fine-tuned model predicts for each input, in order.

        An input is a text, a pair, or a row with the columns of the training files. A model with several tasks needs
        `task`.
        """
        _check_is_list("predict", inputs)
        return self.predict_examples(self.examples(inputs, task=task), task=task)

    def zero_shot(self, inputs: Iterable[TaskInput], *, words: LabelWords, pattern: str = "") -> list[Prediction]:
        """What a masked language model answers without fine-tuning, by the words that it expects at a mask.

        `words` gives each label its words: `positive=great/good,negative=terrible`, or a dict of label and words.
        `pattern` puts the text and the mask into a sentence. By default it is `{text} It was [MASK].`, or
        `{text} 总之很[MASK]。` for Chinese words.
        """
        return self.prompted(words=words, pattern=pattern).predict(inputs)

    def prompted(self, *, words: LabelWords, pattern: str = "") -> "Model":
        """The same model as a classifier that answers by a prompt, as `zero_shot` does."""
        return Model(with_prompt(self.checkpoint, pattern=pattern, words=words), folder=self.folder)

    def predict_file(self, path: str | Path, *, task: str = "", **columns: object) -> list[Prediction]:
        """The same for every row of a labelled file, or every line of a text file.

        `columns` are settings such as `text_column`, for a file whose columns differ from those of the training file.
        """
        return self.predict_examples(self.read_examples(path, task=task, **columns), task=task)

    def read_examples(self, path: str | Path, *, task: str = "", **columns: object) -> list[Example]:
        """The rows of a labelled file, or the lines of a text file, as examples of the task; labels are not needed."""
        return read_inputs(self.checkpoint, Path(path), task, columns=columns)

    def examples(self, inputs: Iterable[TaskInput], *, task: str = "") -> list[Example]:
        """Inputs as examples of the task, without gold labels."""
        reader = reader_of(self._head(task))
        return [reader.example(value) for value in inputs]

    def predict_examples(self, examples: Sequence[Example], *, task: str = "") -> list[Prediction]:
        """The same for rows that a task has read."""
        items = self.encode_inputs(examples, task=task)
        num_windows = sum(len(item.windows) for item in items)
        with bar("predicting", num_windows, unit="sequences") as advance:
            return self.predict_items(items, task=task, advance=advance)

    def abstain_threshold(self, precision: float, *, task: str = "") -> float:
        """The probability below which to abstain, so that the other answers have this precision.

        It was found on the held-out rows of fine-tuning.
        """
        name, _ = only_task(self.checkpoint, "This model", task)
        return threshold_for(self.checkpoint.info, name, precision)

    @property
    def comparing_task(self) -> str | None:
        """The first task that compares two texts; None if it has none."""
        for name in self.checkpoint.tasks:
            if name.startswith("compare"):
                return name
        return None

    def explain(self, inputs: Iterable[TaskInput], *, task: str = "", by: Method = "auto") -> list[Explanation]:
        """Why a classifier gives each input its label: the weight of every word, in order.

        `by` is gradients (integrated gradients), occlusion (each word left out in turn), or auto.
        """
        _check_is_list("explain", inputs)
        return self.explain_examples(self.examples(inputs, task=task), task=task, by=by)

    def explain_examples(
        self,
        examples: Sequence[Example],
        *,
        task: str = "",
        by: Method = "auto",
    ) -> list[Explanation]:
        """The same for rows that a task has read."""
        # Not the encoder of a saved precision: whole numbers have no gradients.
        encoder = self.checkpoint.feature_encoder or self.encoder
        return Explainer(encoder, self._head(task), self.tokenizer, self._max_length).explain(examples, by=by)

    @property
    def _max_length(self) -> int:
        """Texts are cut as in fine-tuning."""
        return int(self.checkpoint.info.get("max_length", self.encoder.max_positions))

    def encode_examples(self, examples: Sequence[Example], *, task: str = "") -> Sequence[Item]:
        """Examples as windows of tokens, ready for `predict_items`."""
        return self._head(task).encode(examples, self.tokenizer, max_length=self._max_length, training=False)

    def encode_inputs(self, examples: Sequence[Example], *, task: str = "") -> Sequence[Item]:
        """The same for what a user gives: warns about tokens that are cut, and about those that are unknown."""
        items = self.encode_examples(examples, task=task)
        report_cuts("The inputs", items)
        if not isinstance(self.encoder, Bag):
            warn_about_unknown("The inputs", self.tokenizer, unknown_share_of(items, self.tokenizer))
        return items

    def predict_items(
        self,
        items: Sequence[Item],
        *,
        task: str = "",
        advance: Callable[[float, str], None] | None = None,
    ) -> list[Prediction]:
        """What the task's head predicts for encoded examples; `advance` reports progress."""
        return predict(self._task_encoder, self._head(task), items, advance=advance)

    @cached_property
    def _task_encoder(self) -> Encoder:
        """What the heads of tasks read."""
        # A task on frozen features has its own encoder over the model's.
        if self.checkpoint.feature_encoder is not None:
            return self.checkpoint.feature_encoder
        # The folder's own precision was measured by the task's score; one that the user names is for vectors.
        if saved_precision(self.checkpoint).name == self.embedder.precision != "fp32":
            return ServingEncoder(self.encoder, self.embedder.fast_encoder)
        return self.encoder

    def k_best(self, examples: Sequence[Example], k: int, *, task: str = "") -> list[list[Prediction]]:
        """The k most likely tag sequences of each row, the best first; fewer if the rules allow fewer."""
        head = self._head(task)
        items = self.encode_examples(examples, task=task)
        encoder = self.checkpoint.feature_encoder or self.encoder
        return k_best(head, items, outputs_of(encoder, head, items), k=k)

    def segment(self, texts: Sequence[str], *, task: str = "") -> list[list[str]]:
        """The words of each text, by a model fine-tuned on segmented text."""
        head = self._head(task)
        if not isinstance(head, TagHead) or not head.segments:
            raise Unsupported(
                "This model was not fine-tuned on segmented text (tags B, M, E, S), so it finds no words."
            )
        # A linear model over feature templates has a faster way that gives the same words.
        has_layer = head.config.head != "none"
        if not has_layer and isinstance(self.encoder, Bag) and isinstance(self.tokenizer, Templates):
            return segment(texts, head, self.encoder, templates=self.tokenizer)
        words = []
        for prediction in self.predict(texts, task=task):
            words.append([span.text for span in prediction.spans])
        return words

    @cached_property
    def lexicon(self) -> Lexicon:
        """The model's table of words: word vectors, or the input embeddings of a BERT."""
        if self.folder is None:
            raise Unsupported("The words of a model are read from its folder; save this one and load it from there.")
        return open_lexicon(self.folder)

    def neighbours(self, word: str, *, top: int = 10) -> list[tuple[str, float]]:
        """The words nearest to a word, with the cosines of their vectors."""
        _check_is_text(word)
        return self.lexicon.neighbours(word, top=top)

    def analogy(self, first: str, second: str, third: str, *, top: int = 10) -> list[tuple[str, float]]:
        """The words nearest to first - second + third: king, man, woman should give queen."""
        for word in (first, second, third):
            _check_is_text(word)
        return self.lexicon.analogy(first, second, third, top=top)

    def senses(self, word: str, lines: Sequence[str], *, groups: int | None = None, layer: int = -1) -> "Senses":
        """The occurrences of a word in lines of text, grouped by what it means there."""
        _check_is_text(word)
        # That module imports this one.
        from firth.inference.word_senses import find_senses

        return find_senses(self, word, lines, count=groups, layer=layer)

    def attention(self, text: str) -> tuple[list[str], np.ndarray]:
        """The tokens of a text with its special ones, and the attention weights: layers x H x L x L."""
        _check_is_text(text)
        return read_attention(self.encoder, self.tokenizer, text)

    def _head(self, task: str) -> Head:
        """The head of the task with this name; without a name, of the model's only task."""
        _, head = only_task(self.checkpoint, "This model", task)
        return head


def _path(folder: object, function: str) -> Path:
    if not isinstance(folder, str | Path):
        raise BadInput(f"{function} takes the path of a model folder; it is {folder!r}.")
    return Path(folder)


def _check_is_list(method: str, texts: object) -> None:
    # A program would iterate over the characters of a text, and over the columns of a row.
    if isinstance(texts, str | Mapping):
        raise BadInput(f"{method} takes a list of texts; put the one text into a list.")
    if not isinstance(texts, Iterable):
        raise BadInput(f"{method} takes a list of texts; it is {texts!r}.")


def _check_is_text(text: object) -> None:
    if not isinstance(text, str):
        raise BadInput(f"A text must be a string; it is {text!r}.")


def load(folder: str | Path, *, precision: str | None = None, language: str = "") -> Model:
    """Opens a model folder: one made by firth, or a Hugging Face folder of a model that firth reads (BERT, GPT-2 ...).

    `en-small` and `zh-small` are models that come with firth; a folder of that name comes before them.
    `precision` is that of `embed`: fp32, bf16, int8, or auto, the fastest that keeps the cosine to fp32 above 0.999.
    Without it, the folder's own is used, which `firth compress --by int8` saves there, or fp32.
    `language` is that of the texts, for a model with language embeddings; without it, the one it was fine-tuned in.
    """
    path = models.find(_path(folder, "load"))
    checkpoint = checkpoints.load(path)
    if language:
        checkpoint = checkpoints.set_language(checkpoint, language)
    return Model(checkpoint, precision=precision, folder=path)
