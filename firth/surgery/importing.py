"""Other people's model files -> a model folder of ours.

In: a folder with a config, a tokenizer and weights in a format that `firth.load` does not open by itself. The weights
are staged as safetensors beside the folder's other files; then the ordinary, strict loading accounts for all of it.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.convert import albert_zh, elmo, pickled, tensorflow
from firth.errors import BadConfig, BadInput, FirthError
from firth.files import MANIFEST, atomic_folder, write_json
from firth.surgery import word_tables

SETTINGS = "tokenizer_config.json"
NOT_STAGED = (MANIFEST, "firth.json")


@dataclass(frozen=True)
class Said:
    """What the user says of the files because the files do not."""

    unsafe_pickle: bool = False
    cased: bool | None = None
    skip_bad: bool = False


def import_model(source: Path, out: Path, *, said: Said) -> Checkpoint:
    """Writes `source`'s model into the new folder `out`; gives it back."""
    if out.exists():
        raise BadInput(f"{out} already exists; choose another --out or remove it.")
    if source.is_file():
        return word_tables.import_file(source, out, skip_bad=said.skip_bad)
    if not source.is_dir():
        raise BadInput(f"{source} does not exist.")
    if (source / "firth.json").exists():
        raise BadInput(f"{source} is a model of firth already; use it as it is.")
    loaded = _loaded(source, said)
    made = replace(loaded, info={**loaded.info, "imported_from": source.resolve().name})
    with atomic_folder(out) as folder:
        checkpoints.save(folder, made)
    return made


def _loaded(source: Path, said: Said) -> Checkpoint:
    if weights := elmo.find(source):
        encoder, tokenizer = elmo.load(weights)
        return Checkpoint(encoder, {}, tokenizer)
    with tempfile.TemporaryDirectory() as name:
        stage = Path(name)
        _stage(source, stage, said)
        try:
            return checkpoints.load(stage)
        except FirthError as error:
            raise type(error)(str(error).replace(str(stage), str(source))) from None


def _stage(source: Path, stage: Path, said: Said) -> None:
    """Fills `stage` with all that `checkpoint.load` needs: links to the source's files, and converted weights."""
    for path in source.iterdir():
        if path.name not in NOT_STAGED:
            (stage / path.name).symlink_to(path.resolve())
    _settle_case(source, stage, said.cased)
    if any(source.glob("model.safetensors*")):
        return
    if prefix := tensorflow.find(source):
        tensorflow.convert(prefix, stage)
    elif files := pickled.weight_files(source):
        if not said.unsafe_pickle:
            raise BadConfig(
                f"{files[0]} is a pickle, a format that can carry programs: "
                "if you trust where it comes from, add --unsafe-pickle."
            )
        pickled.to_safetensors(files, stage / "model.safetensors")
        if albert_zh.is_albert_zh(stage / "model.safetensors"):
            albert_zh.convert(stage)


def _settle_case(source: Path, stage: Path, cased: bool | None) -> None:
    """A bare `vocab.txt` does not say whether its text is lower-cased; the user must."""
    bare = (source / "vocab.txt").is_file() and not any((source / n).exists() for n in (SETTINGS, "tokenizer.json"))
    if bare and cased is None:
        raise BadConfig(f"{source}/vocab.txt does not say whether text is lower-cased: add --cased or --uncased.")
    if bare:
        write_json(stage / SETTINGS, {"do_lower_case": not cased})
    elif cased is not None:
        raise BadConfig(f"{source} has a tokenizer that says itself whether it is cased: leave out --cased, --uncased.")
