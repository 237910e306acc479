"""Models to and from files: import_model, extend, compress, export, and the vectors of a file's lines.

In: model folders and files of other programs. Out: new folders and files. As in `pipeline.py`, each function imports
only what it needs. `firth.export` etc. are these functions.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from firth import models
from firth.arguments import checked
from firth.config import check_whole
from firth.console import counted
from firth.errors import BadConfig, BadInput
from firth.files import check_can_be_made, write_bytes

if TYPE_CHECKING:
    from firth.compression.compressing import CompressionSummary
    from firth.inference.model import Model
    from firth.surgery.extending import ExtensionFigures

SAMPLE_TEXTS = 10_000
"""Texts of a file whose unknown tokens `embed_file` counts."""
MODEL_FORMATS = ("huggingface", "quantised", "sentence-transformers", "onnx")
"""Kinds of `export` that write a whole model."""
DEFAULT_BITS = 8
PROOF_TEXTS = 50
"""Texts on which an exported model is compared."""
log = logging.getLogger(__name__)


@checked
def import_model(
    source: str | Path,
    *,
    out: str | Path,
    unsafe_pickle: bool = False,
    cased: bool | None = None,
    skip_bad: bool = False,
) -> dict[str, object]:
    """Turns model files of other programs, or a file of word vectors, into a model folder; returns what it holds."""
    from firth.inference.model import Model
    from firth.surgery import importing

    options = importing.ImportOptions(unsafe_pickle, cased, skip_bad)
    imported = importing.import_model(Path(source), Path(out), options=options)
    return asdict(Model(imported).info())


@checked
def extend(
    model: str | Path,
    *,
    text: str | Path | Sequence[str | Path],
    add: int,
    out: str | Path,
    min_count: int = 5,
) -> "ExtensionFigures":
    """Adds tokens for the words of a domain's text to a model, in `out`; returns tokens per text before and after."""
    from firth.surgery import extending

    check_whole(add=add, min_count=min_count)
    texts = _paths(text)
    return extending.extend(models.find(model), texts, add=add, min_count=min_count, out=Path(out))


@checked
def vector_head(
    model: str | Path,
    *,
    text: str | Path | Sequence[str | Path],
    out: str | Path,
    changes: Sequence[str] = (),
) -> dict[str, object]:
    """Learns a vector head for a model from text without labels; `out` is the model with it. Returns its size.

    Nothing else of the model changes. `changes` are settings, such as steps=3000.
    """
    from dataclasses import replace

    from firth import checkpoint as checkpoints
    from firth.config import override
    from firth.convert.row_quantised import QUANTISED
    from firth.files import atomic_folder
    from firth.finetuning.vector_head import VectorHeadConfig, train_vector_head
    from firth.train.shared_cores import share_cores

    texts = _paths(text)
    config = override(VectorHeadConfig(), changes)
    check_can_be_made(Path(out))
    source = models.find(model)
    checkpoint = checkpoints.load(source)
    with share_cores():
        head = train_vector_head(checkpoint, texts, config)
    notes = {"sentences": config.sentences, "steps": config.steps, "width": head.width}
    bits = int(checkpoint.info.get("bits_of_a_weight", DEFAULT_BITS)) if (source / QUANTISED).exists() else 0
    changed = replace(checkpoint, vector_head=head, info={**checkpoint.info, "vector_head": notes})
    with atomic_folder(Path(out)) as folder:
        checkpoints.save(folder, changed, bits=bits)
    return {"out": str(out), "width": head.width, "vocabulary": len(head.token_weights_V)}


@checked
def compress(
    model: str | Path,
    *,
    by: str,
    data: str | Path,
    out: str | Path,
    train: str | Path | None = None,
    keep: float | None = None,
    faster: float | None = None,
    then: str | Sequence[str] = (),
    vocabulary_from: str | Path | Sequence[str | Path] = (),
    task: str = "",
    changes: Sequence[str] = (),
    skip_bad: bool = False,
    resume: bool = False,
    seed: int = 1,
    device: str | None = None,
) -> "CompressionSummary":
    """Makes a smaller or faster model in `out` by a method, measures it against the original; returns all figures.

    `data` are labelled rows of the model's task, or lines of text for a model without one: both models are measured on
    them. Methods that look at rows take those of `train`. With `keep` (share of the score) or `faster` (multiple of the
    speed) the method's strength is searched; `reached` in the result says whether one was found. Methods in `then` do
    not train and follow the first one, such as `then=["int8"]`. `changes` are `key=value` settings of the method; those
    of a method that follows begin with its name, such as `weights.bits=4`.
    """
    from firth.compression import compressing
    from firth.compression.request import CompressionRequest
    from firth.compression.strength_search import Wanted
    from firth.run_folder import is_begun
    from firth.train.launch import is_restart, joined_ranks

    texts = [vocabulary_from] if isinstance(vocabulary_from, str | Path) else vocabulary_from
    train_path = None if train is None else Path(train)
    methods_after = (then,) if isinstance(then, str) else tuple(then)
    request = CompressionRequest(
        model=models.find(model),
        method=by,
        data=Path(data),
        train=train_path,
        vocabulary_from=tuple(Path(text) for text in texts),
        task=task,
        wanted=Wanted(keep, faster),
        then=methods_after,
        changes=tuple(changes),
        skip_bad=skip_bad,
        seed=seed,
    )
    with joined_ranks():
        is_begun_again = is_restart() and is_begun(Path(out))
        return compressing.compress(request, Path(out), resume=resume or is_begun_again, device=device)


@checked
def export(model: str | Path, *, out: str | Path, kind: str = "word2vec", bits: int | None = None) -> dict[str, object]:
    """Writes a model for other programs, or its word vectors; returns what was written.

    `kind` is one of the files of word vectors (word2vec, word2vec-binary, vec), or a folder: huggingface has plain
    weights that transformers opens, quantised has weights of `bits` bits (8 unless given) that firth opens like any
    other model, sentence-transformers has the files of that library, onnx a `model.onnx` besides plain weights. The
    last two are compared with firth on sample texts, and `difference` in the result is the largest one found.
    """
    path = Path(out)
    check_can_be_made(path)
    from firth.convert.vector_files import FORMATS, write_vectors
    from firth.inference.lexicon import open_lexicon

    formats = (*FORMATS, *MODEL_FORMATS)
    if kind not in formats:
        nearest = get_close_matches(kind, formats, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"known are {', '.join(formats)}."
        raise BadConfig(f"There is no format '{kind}' to export to; {hint}")
    if bits is not None and kind != "quantised":
        raise BadConfig("`bits=` is for `kind='quantised'`; leave it out.")
    if kind in ("sentence-transformers", "onnx"):
        return _export_with_proof(models.find(model), path, kind=kind)
    if kind in MODEL_FORMATS:
        weight_bits = 0
        if kind == "quantised":
            weight_bits = bits or DEFAULT_BITS
        return _export_model(models.find(model), path, bits=weight_bits)
    lexicon = open_lexicon(models.find(model))
    count = len(lexicon)
    width = lexicon.rows_VD.shape[1]
    write_vectors(path, lexicon.blocks(), count=count, width=width, kind=kind)
    return {"words": count, "width": width, "out": str(out)}


def _export_model(model: Path, out: Path, *, bits: int) -> dict[str, object]:
    from firth.surgery.exporting import export_folder
    from firth.tensors import parameter_count

    checkpoint = export_folder(model, out, bits=bits)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    parameters = parameter_count([checkpoint.encoder, *checkpoint.goals.values()])
    return {"parameters": parameters, "megabytes": size / 1e6, "out": str(out)}


def _export_with_proof(model: Path, out: Path, *, kind: str) -> dict[str, object]:
    """Writes a model for another library and compares the library's answers with firth's."""
    from firth.files import atomic_folder

    texts = _proof_texts()
    if kind == "onnx":
        from firth import checkpoint as checkpoints
        from firth.compression import onnx_export
        from firth.data.items import text_sequences
        from firth.surgery.exporting import without_generator

        checkpoint = without_generator(checkpoints.merged(checkpoints.load(model)))
        onnx_export.check_exportable(checkpoint, str(model))
        with atomic_folder(out) as folder:
            sequences = text_sequences(texts, checkpoint.tokenizer, max_length=checkpoint.encoder.max_positions)
            difference = onnx_export.write_with_proof(folder, checkpoint, sequences)
        return {"difference": difference, "texts": len(texts), "out": str(out)}
    from firth.surgery.exporting import export_sentence_transformers

    export_sentence_transformers(model, out)
    return {"difference": _library_difference(out, texts), "texts": len(texts), "out": str(out)}


def _proof_texts() -> list[str]:
    """Sample texts in two languages."""
    from firth import samples

    texts: list[str] = []
    for language in samples.LANGUAGES:
        lines = samples.prose(language).read_text("utf-8").splitlines()
        texts += [line for line in lines if line.strip()][: PROOF_TEXTS // 2]
    return texts


def _library_difference(folder: Path, texts: list[str]) -> float | None:
    """The largest difference of a number of a vector between sentence-transformers and firth; None without it."""
    from importlib.util import find_spec

    if find_spec("sentence_transformers") is None:
        log.warning("sentence-transformers is not installed, so the folder was not compared with it.")
        return None
    import numpy as np
    from sentence_transformers import SentenceTransformer

    from firth.inference.model import load

    loaded = load(folder)
    own = loaded.embed(texts, pooling=loaded.checkpoint.embedding.pooling)
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts, show_progress_bar=False)
    return float(np.abs(own - theirs).max())


@checked
def package(model: str | Path, *, out: str | Path, name: str = "", version: str = "1.0") -> dict[str, object]:
    """Writes a model as one wheel, which pip installs and which then answers offline; returns what was written."""
    from firth.surgery import packaging

    return packaging.package(models.find(model), Path(out), name=name, version=version)


@checked
def embed_file(
    model: str | Path | None = None,
    *,
    file: str | Path,
    out: str | Path,
    pooling: str | None = None,
    precision: str | None = None,
    engine: str = "local",
    processes: int = 2,
) -> dict[str, object]:
    """Writes a vector for each line of a file as a .npy array; returns what was written.

    Without a `model`, the one that comes with firth for the language of the texts is used. The file "-" is standard
    input. A blank line gets a vector of zeros, which is similar to nothing. With the `engine` "ray", the vectors are
    computed by `processes` workers of a cluster.
    """
    from firth.corpus.small_files import read_lines, tell_of_table
    from firth.engines import open_engine
    from firth.inference.model import load
    from firth.tokenizers.unknown import unknown_share, warn_about_unknown

    path = Path(out)
    check_can_be_made(path)
    if path.suffix != ".npy":
        raise BadInput(f"{out} would hold a numpy array; let its name end in .npy.")
    texts = read_lines(Path(file))
    tell_of_table(Path(file))
    loaded = load(model or models.suiting(texts), precision=precision)
    loaded.embedder.warn_about_truncation(texts)
    unknown = unknown_share(loaded.tokenizer, loaded.tokenizer.ids_batch(texts[:SAMPLE_TEXTS]))
    warn_about_unknown(str(file), loaded.tokenizer, unknown)
    num_blank = sum(not text.strip() for text in texts)
    if num_blank:
        has_vectors = "has a vector" if num_blank == 1 else "have vectors"
        log.info(f"{counted(num_blank, 'blank line')} {has_vectors} of zeros.")
    with open_engine(engine, workers=processes) as opened:
        if opened is None:
            _write_vectors(path, loaded, texts, pooling)
        else:
            from firth.inference.on_engine import embed_to_file

            embed_to_file(opened, loaded, texts, path, pooling=pooling, precision=precision)
    return {
        "texts": len(texts),
        "blank": num_blank,
        "width": loaded.embedder.width(pooling),
        "unknown_share": unknown,
        "out": str(out),
    }


def _write_vectors(path: Path, model: "Model", texts: list[str], pooling: str | None) -> None:
    """Writes the vectors of texts, computed in this process, as one array."""
    from io import BytesIO

    import numpy as np

    from firth.train.shared_cores import share_cores

    with share_cores():
        vectors = model.embed(texts, pooling=pooling)
    # A model gives every blank line the same vector, which would make them duplicates of each other.
    is_blank = [not text.strip() for text in texts]
    vectors[is_blank] = 0
    buffer = BytesIO()
    np.save(buffer, vectors)
    write_bytes(path, buffer.getvalue())


def _paths(given: str | Path | Sequence[str | Path]) -> list[Path]:
    """One path or several, as a list."""
    if isinstance(given, str | Path):
        return [Path(given)]
    return [Path(path) for path in given]
