"""Model files of other programs -> a model folder of firth's.

In: a folder with a config, a tokenizer and weights in a format that `firth.load` does not open. The weights are
converted to safetensors in a temporary folder, next to links to the other files. Then the ordinary, strict loading
checks all of it.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.convert import albert_zh, elmo, pickled, tensorflow
from firth.errors import BadConfig, BadInput, FirthError
from firth.files import MANIFEST, atomic_folder, check_can_be_made, write_json
from firth.surgery import word_tables

TOKENIZER_SETTINGS = "tokenizer_config.json"
NOT_STAGED = (MANIFEST, "firth.json")
"""Files that are not linked into the temporary folder: they would not describe its content."""


@dataclass(frozen=True)
class ImportOptions:
    """What the user must say because the files do not."""

    unsafe_pickle: bool = False
    """Whether to open pickled weights."""
    cased: bool | None = None
    """Whether a bare `vocab.txt` is of cased text; None if the user did not say."""
    skip_bad: bool = False
    """Whether to skip unusable rows of a file of word vectors."""


def import_model(source: Path, out: Path, *, options: ImportOptions) -> Checkpoint:
    """Writes the model in `source` into the new folder `out`, and returns it."""
    check_can_be_made(out)
    if source.is_file():
        return word_tables.import_file(source, out, skip_bad=options.skip_bad)
    if not source.is_dir():
        raise BadInput(f"{source} does not exist.")
    if (source / "firth.json").exists():
        raise BadInput(f"{source} is already a model of firth; use it as it is.")
    loaded = _load(source, options)
    info = {**loaded.info, "imported_from": source.resolve().name}
    imported = replace(loaded, info=info)
    with atomic_folder(out) as folder:
        checkpoints.save(folder, imported)
    return imported


def _load(source: Path, options: ImportOptions) -> Checkpoint:
    """The model in a folder, whatever the format of its weights."""
    # An ELMo has neither a config.json nor a vocabulary, so it cannot be staged.
    elmo_weights = elmo.find(source)
    if elmo_weights:
        encoder, tokenizer = elmo.load(elmo_weights)
        return Checkpoint(encoder, {}, tokenizer)
    with tempfile.TemporaryDirectory() as name:
        stage = Path(name)
        _fill_stage(source, stage, options)
        try:
            return checkpoints.load(stage)
        except FirthError as error:
            # The user knows the source, not the temporary folder.
            message = str(error).replace(str(stage), str(source))
            raise type(error)(message) from None


def _fill_stage(source: Path, stage: Path, options: ImportOptions) -> None:
    """Fills `stage` with all that `checkpoint.load` needs: links to the source's files, and converted weights."""
    for path in source.iterdir():
        if path.name not in NOT_STAGED:
            (stage / path.name).symlink_to(path.resolve())
    _write_case(source, stage, options.cased)
    if any(source.glob("model.safetensors*")):
        return  # nothing to convert
    tensorflow_prefix = tensorflow.find(source)
    if tensorflow_prefix:
        tensorflow.convert(tensorflow_prefix, stage)
        return
    pickles = pickled.weight_files(source)
    if pickles:
        _convert_pickles(pickles, stage, options)


def _convert_pickles(files: list[Path], stage: Path, options: ImportOptions) -> None:
    """Converts PyTorch's `.bin` files, if the user allows it."""
    if not options.unsafe_pickle:
        raise BadConfig(
            f"{files[0]} is a pickle, a format that can contain programs: "
            "if you trust where it comes from, add `unsafe_pickle=True`."
        )
    weights = stage / "model.safetensors"
    pickled.to_safetensors(files, weights)
    if albert_zh.is_albert_zh(weights):
        albert_zh.convert(stage)


def _write_case(source: Path, stage: Path, cased: bool | None) -> None:
    """Writes whether text is lower-cased: a bare `vocab.txt` does not say it, so the user must."""
    has_vocab = (source / "vocab.txt").is_file()
    has_settings = (source / TOKENIZER_SETTINGS).exists() or (source / "tokenizer.json").exists()
    if has_vocab and not has_settings:
        if cased is None:
            raise BadConfig(
                f"{source}/vocab.txt does not say whether text is lower-cased: add `cased=True` or `cased=False`."
            )
        write_json(stage / TOKENIZER_SETTINGS, {"do_lower_case": not cased})
    elif cased is not None:
        raise BadConfig(f"{source} has a tokenizer with its own setting for case: leave out `cased=`.")
