"""Passages and a model -> a memory-mapped index that is searched by meaning and by words.

By meaning: a passage's vector has length 1 and is kept as one byte a number: v = centre + scale * code, with a scale of
its own and one centre for all. (Vectors of many models have a large part in common, which would leave few codes for the
rest.) The question is compared with every passage, block by block over the memory-mapped file, so memory does not grow
with the index. An index of more than `GRAPH_FROM` passages gets a graph (`firth/search/graph.py`), which finds nearly
the same passages without looking at all of them.

By words: BM25 (`firth/search/words.py`). A search takes the best passages of both ways and adds their scores. The
folder holds, besides the files of those two modules,

    vectors.npy   N x D int8      the codes
    scales.npy    N float32
    centre.npy    D float32       the mean of the first vectors
    texts.bin     UTF-8           the passages' texts, end to end
    bounds.npy    N + 1 int64     where each text begins in texts.bin, in bytes
    places.npy    N x 4 int64     file number, line number, first and last character of each passage
    index.json                    the model, the width, and the names of the files
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from firth import models
from firth.console import bar
from firth.corpus.finding import TABLES
from firth.corpus.small_files import tell_of_table
from firth.errors import BadConfig, BadInput, Damaged
from firth.files import atomic_folder, check_can_be_made, check_manifest, ending, read_json, write_json, write_manifest
from firth.inference.model import Model, load
from firth.search import By
from firth.search.graph import Graph, GraphWriter
from firth.search.languages import languages_of, reads
from firth.search.passages import MAX_CHARACTERS, Passage, read_passages
from firth.search.words import WordIndex, write_words
from firth.tokenizers.unknown import unknown_share, warn_about_unknown

FORMAT = 2
GRAPH_FROM = 100_000
"""An index with more passages than this gets a graph."""
BLOCK_PASSAGES = 4096
"""Passages embedded at once."""
BLOCK_ROWS = 32_768
"""Passages compared with the questions at once."""
LARGEST_CODE = 127
SAMPLE_PASSAGES = 200
"""Passages that are read to find the languages of an index."""
CANDIDATES = 100
"""Passages that each way of searching brings, at least."""
WORDS_SHARE = 0.8
"""How much the words count in a score by both; the cosine has the rest. Chosen on SQuADShifts and CMRC's train set."""


@dataclass(frozen=True)
class Hit:
    """A passage that was found."""

    number: int
    """Its number in the index."""
    score: float
    """By meaning the cosine to the question, by words BM25 between 0 and 1; or what a cross-encoder says."""
    passage: Passage


def build_index(
    texts: Sequence[Path], out: Path, *, model: str | Path | None = None, max_characters: int = MAX_CHARACTERS
) -> "SearchIndex":
    """Writes an index of the texts' passages. Without a model, the one for the language of the text is used."""
    check_can_be_made(out)
    passages = list(read_passages(texts, max_characters=max_characters))
    if not passages:
        raise BadInput("The text has no passages; give files that hold sentences.")
    if model:
        source = models.find(model)
        is_shipped = str(model) in models.names() and not Path(model).is_dir()
    else:
        source = models.suiting(passage.text for passage in passages)
        is_shipped = True
    loaded = load(source)
    # A model that comes with firth is recorded by its name, so that the index can be copied to another machine.
    name = source.name if is_shipped else str(source.resolve())
    _warn_of_passages(loaded, passages)
    with atomic_folder(out) as folder:
        _write_vectors(folder, loaded, passages)
        files = _write_passages(folder, passages)
        write_words(folder, [passage.text for passage in passages])
        settings = {
            "format": FORMAT,
            "model": name,
            "width": vector_width(loaded),
            "passages": len(passages),
            "files": files,
        }
        write_json(folder / "index.json", settings)
        write_manifest(folder)
    return SearchIndex.open(out)


def _warn_of_passages(model: Model, passages: Sequence[Passage]) -> None:
    """Warns of files whose lines are rows of a table, and of text that the model cannot read."""
    for file in dict.fromkeys(passage.file for passage in passages):
        if ending(Path(file)) in TABLES:
            tell_of_table(Path(file))
    some = [passage.text for passage in passages[:BLOCK_PASSAGES]]
    warn_about_unknown("The text", model.tokenizer, unknown_share(model.tokenizer, model.tokenizer.ids_batch(some)))


def search_vectors(model: Model, texts: Sequence[str]) -> np.ndarray:
    """The vectors that passages and questions are compared by. Where a model has fast ones, an index of 100,000
    passages takes seconds and not a quarter of an hour."""
    return model.embed(texts, pooling=model.embedder.fast_pooling, normalise=True)


def vector_width(model: Model) -> int:
    """The width of these vectors."""
    return model.embedder.width(model.embedder.fast_pooling)


def _write_vectors(folder: Path, model: Model, passages: Sequence[Passage]) -> None:
    width = vector_width(model)
    codes = np.lib.format.open_memmap(folder / "vectors.npy", mode="w+", dtype=np.int8, shape=(len(passages), width))
    scales = np.empty(len(passages), np.float32)
    centre_D = np.zeros(width, np.float32)
    graph = GraphWriter(width) if len(passages) > GRAPH_FROM else None
    start = 0
    with bar("indexing", len(passages), unit="passages") as advance:
        for block in batched_passages(passages):
            vectors = search_vectors(model, [passage.text for passage in block])
            if start == 0:
                centre_D = vectors.mean(0)
            end = start + len(block)
            codes[start:end], scales[start:end] = to_codes(vectors - centre_D)
            if graph is not None:
                graph.add(vectors)
            start = end
            advance(end, "")
    codes.flush()
    if graph is not None:
        graph.save(folder)
    np.save(folder / "scales.npy", scales)
    np.save(folder / "centre.npy", centre_D)


def batched_passages(passages: Sequence[Passage]) -> Iterable[Sequence[Passage]]:
    """The passages in blocks."""
    for start in range(0, len(passages), BLOCK_PASSAGES):
        yield passages[start : start + BLOCK_PASSAGES]


def _write_passages(folder: Path, passages: Sequence[Passage]) -> list[str]:
    """Writes the texts and where they come from; returns the names of the files."""
    numbers: dict[str, int] = {}
    bounds = np.zeros(len(passages) + 1, np.int64)
    places = np.empty((len(passages), 4), np.int64)
    with (folder / "texts.bin").open("wb") as file:
        for i, passage in enumerate(passages):
            bounds[i + 1] = bounds[i] + file.write(passage.text.encode())
            number = numbers.setdefault(passage.file, len(numbers))
            places[i] = (number, passage.line, passage.start, passage.end)
    np.save(folder / "bounds.npy", bounds)
    np.save(folder / "places.npy", places)
    return list(numbers)


def to_codes(vectors_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vectors as int8 codes and a scale for each: the largest number of a vector gets the code 127."""
    reach_N = np.abs(vectors_ND).max(1)
    scales_N = np.maximum(reach_N, 1e-12) / LARGEST_CODE
    codes_ND = np.rint(vectors_ND / scales_N[:, None]).astype(np.int8)
    return codes_ND, scales_N.astype(np.float32)


class SearchIndex:
    """An index that is open."""

    def __init__(self, folder: Path, model: str, files: Sequence[str]) -> None:
        self.folder = folder
        self.model = model
        """The name or path of the model that made its vectors."""
        self.files = files
        self.codes_ND: np.ndarray = np.load(folder / "vectors.npy", mmap_mode="r")
        self.scales_N: np.ndarray = np.load(folder / "scales.npy", mmap_mode="r")
        self.centre_D: np.ndarray = np.load(folder / "centre.npy")
        self.words = WordIndex(folder)
        self.graph = Graph.open(folder)
        """None for an index that is searched exactly."""
        self._bounds: np.ndarray = np.load(folder / "bounds.npy", mmap_mode="r")
        self._places: np.ndarray = np.load(folder / "places.npy", mmap_mode="r")
        self._texts = np.memmap(folder / "texts.bin", np.uint8, mode="r")

    @classmethod
    def open(cls, folder: str | Path) -> "SearchIndex":
        """Opens a folder that `build_index` wrote."""
        path = Path(folder)
        if not (path / "index.json").is_file():
            raise BadInput(f"{path} is not an index; make one with `firth search build`.")
        check_manifest(path, hashes=False)
        settings = read_json(path / "index.json")
        if settings.get("format") != FORMAT:
            raise Damaged(f"{path} is of format {settings.get('format')}; build it again.")
        return cls(path, settings["model"], settings["files"])

    def __len__(self) -> int:
        return len(self.scales_N)

    @cached_property
    def languages(self) -> frozenset[str]:
        """The languages of its passages, by some of them from all parts."""
        places = np.linspace(0, len(self) - 1, SAMPLE_PASSAGES)
        numbers = np.unique(places.astype(np.int64))
        return languages_of(self.passage(number).text for number in numbers.tolist())

    def load_model(self) -> Model:
        """The model that made its vectors, for questions."""
        model = load(self.model)
        self.check_model(model)
        return model

    def check_model(self, model: Model) -> None:
        """Raises if the model's vectors have another width than those of the index."""
        if vector_width(model) != self.codes_ND.shape[1]:
            raise BadInput(f"{self.model} has changed since {self.folder} was built; build it again.")

    def passage(self, number: int) -> Passage:
        """The passage with this number."""
        begin = int(self._bounds[number])
        end = int(self._bounds[number + 1])
        text = self._texts[begin:end].tobytes().decode()
        file, line, first, last = self._places[number].tolist()
        return Passage(text, self.files[file], line, first, last)

    def nearest(self, questions_QD: np.ndarray, *, top: int, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the `top` passages nearest to each question and their cosines, best first.

        With `exact` every passage is compared, also where the index has a graph.
        """
        top = min(top, len(self))
        if self.graph is None or exact:
            return self._nearest_of_all(questions_QD, top)
        numbers_QT = np.empty((len(questions_QD), top), np.int64)
        cosines_QT = np.empty((len(questions_QD), top), np.float32)
        candidates_QC = self.graph.candidates(questions_QD, max(top, CANDIDATES))
        for row, candidates_C in enumerate(candidates_QC):
            # Fewer candidates end with -1.
            numbers_C = candidates_C[candidates_C >= 0]
            numbers_QT[row], cosines_QT[row] = self._nearest_of(numbers_C, questions_QD[row], top)
        return numbers_QT, cosines_QT

    def _nearest_of(self, numbers_C: np.ndarray, question_D: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """The nearest of some passages; of all if there are too few."""
        if len(numbers_C) < top:
            # From where the graph was entered, too few passages can be reached.
            numbers_1T, cosines_1T = self._nearest_of_all(question_D[None], top)
            return numbers_1T[0], cosines_1T[0]
        cosines_C = self.cosines(question_D, numbers_C)
        [best_T] = _best(cosines_C[None], top)
        return numbers_C[best_T], cosines_C[best_T]

    def _nearest_of_all(self, questions_QD: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """The nearest of all passages, block by block."""
        numbers_QT = np.empty((len(questions_QD), 0), np.int64)
        scores_QT = np.empty((len(questions_QD), 0), np.float32)
        # A cosine is that of the codes, scaled, and that of the centre, which all passages share.
        centre_scores_Q1 = (questions_QD @ self.centre_D)[:, None]
        for start in range(0, len(self), BLOCK_ROWS):
            end = min(start + BLOCK_ROWS, len(self))
            codes_BD = np.asarray(self.codes_ND[start:end], np.float32)
            scales_B = self.scales_N[start:end]
            scores_QB = (questions_QD @ codes_BD.T) * scales_B
            scores_QB += centre_scores_Q1
            numbers_QB = np.broadcast_to(np.arange(start, end), scores_QB.shape)
            # The best of this block and of those before it.
            found_QC = np.concatenate([numbers_QT, numbers_QB], 1)
            scores_QC = np.concatenate([scores_QT, scores_QB], 1)
            kept_QT = _best(scores_QC, top)
            numbers_QT = np.take_along_axis(found_QC, kept_QT, 1)
            scores_QT = np.take_along_axis(scores_QC, kept_QT, 1)
        return numbers_QT, scores_QT

    def cosines(self, question_D: np.ndarray, numbers_C: np.ndarray) -> np.ndarray:
        """The cosines of a question to some passages."""
        codes_CD = self.codes_ND[numbers_C].astype(np.float32)
        products_C = codes_CD @ question_D
        return np.asarray(products_C * self.scales_N[numbers_C] + question_D @ self.centre_D)

    def ask(self, model: Model, question: str, *, top: int = 5, by: By = By.both) -> list[Hit]:
        """The passages that fit a question best, best first: those with one of its words or with a meaning like its."""
        [vector_D] = search_vectors(model, [question])
        return self.hits(model, question, vector_D, top=top, by=by)

    def hits(self, model: Model, question: str, vector_D: np.ndarray, *, top: int = 5, by: By = By.both) -> list[Hit]:
        """The same for a question with this vector of the model."""
        if top < 1:
            raise BadConfig(f"`top=` must be at least 1; it is {top}.")
        if by != By.words and not reads(model, question, self.languages):
            # Zeros are similar to nothing, so that only words count.
            vector_D = np.zeros_like(vector_D)
        numbers_C, scores_C = self._found(question, vector_D, max(top, CANDIDATES), by)
        [best_T] = _best(scores_C[None], top)
        numbers = numbers_C[best_T].tolist()
        scores = scores_C[best_T].tolist()
        hits = []
        for number, score in zip(numbers, scores, strict=True):
            hits.append(Hit(number, score, self.passage(number)))
        return hits

    def _found(self, question: str, vector_D: np.ndarray, count: int, by: By) -> tuple[np.ndarray, np.ndarray]:
        """The best `count` passages, or up to twice as many by both ways, and their scores.

        A passage that has neither a word of the question nor a positive cosine to it is not found.
        """
        if by == By.meaning:
            [near_T], [cosines_T] = self.nearest(vector_D[None], top=count)
            is_found_T = cosines_T > 0
            return near_T[is_found_T], cosines_T[is_found_T]
        word_scores_N = self.words.scores(question)
        [by_words_T] = _best(word_scores_N[None], count)
        if by == By.words:
            scores_T = word_scores_N[by_words_T]
            is_found_T = scores_T > 0
            return by_words_T[is_found_T], scores_T[is_found_T]
        [near_T], _ = self.nearest(vector_D[None], top=count)
        numbers_C = np.union1d(near_T, by_words_T)
        cosines_C = self.cosines(vector_D, numbers_C)
        word_scores_C = word_scores_N[numbers_C]
        scores_C = WORDS_SHARE * word_scores_C + (1 - WORDS_SHARE) * cosines_C
        is_found_C = (word_scores_C > 0) | (cosines_C > 0)
        return numbers_C[is_found_C], scores_C[is_found_C]


def _best(scores_QN: np.ndarray, top: int) -> np.ndarray:
    """The columns of the `top` highest scores of each row, best first, and in their order if scores are equal."""
    if scores_QN.shape[1] > top:
        # A partition is faster than sorting everything, but does not say which of equal scores it keeps.
        some_QT = np.argpartition(-scores_QN, top - 1, axis=1)[:, :top]
        columns_QT = np.sort(some_QT, axis=1)
    else:
        columns_QT = np.broadcast_to(np.arange(scores_QN.shape[1]), scores_QN.shape)
    kept_QT = np.take_along_axis(scores_QN, columns_QT, 1)
    order_QT = np.argsort(-kept_QT, axis=1, kind="stable")
    return np.take_along_axis(columns_QT, order_QT, 1)
