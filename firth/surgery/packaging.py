"""A model -> one wheel: a Python package that holds the model folder and answers offline.

In: a model folder. Out: `NAME-VERSION-py3-none-any.whl`. Installed, `import NAME; NAME.predict([...])` and the command
`NAME TEXT ...` answer with the same model; firth is the only package that it needs. A wheel is a zip archive with a
list of its files and their sha256 (PEP 427), so no build tool is needed.
"""

import base64
import hashlib
import re
import zipfile
from pathlib import Path

from firth import __version__
from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.errors import BadConfig, BadInput
from firth.files import MANIFEST, atomic_file, check_writable, read_json
from firth.surgery.exporting import export_folder
from firth.temporary import remove_abandoned, temporary_folder

EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the archive, so that the same model gives the same bytes."""
PROGRAM = '''"""A model made by firth: `predict` answers texts, `embed` gives their vectors."""

import sys
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "model"


@cache
def load():
    """The model, a `firth.inference.model.Model`; loaded once."""
    import firth

    return firth.load(FOLDER)


def predict(inputs):
    """What the model predicts for each input, in order."""
    return load().predict(inputs)


def embed(texts):
    """One vector for each text."""
    return load().embed(texts)


def main():
    """The command: its arguments are texts, without any the lines of standard input are."""
    texts = sys.argv[1:] or [line.rstrip("\\n") for line in sys.stdin]
    if load().checkpoint.tasks:
        for made in predict(texts):
            print(made.label)
    else:
        for vector in embed(texts):
            print(" ".join(f"{number:.6f}" for number in vector))
'''


def package(model: Path, out: Path, *, name: str = "", version: str = "1.0") -> dict[str, object]:
    """Writes the wheel into the folder `out`; returns its path and size."""
    module = module_name(name or model.resolve().name)
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        raise BadConfig(f"A version is numbers with points between them, such as 1.0; it is {version!r}.")
    path = out / f"{module}-{version}-py3-none-any.whl"
    if path.exists():
        raise BadInput(f"{path} already exists; give another version or remove it.")
    check_writable(path)
    remove_abandoned(path)
    checkpoint = checkpoints.load(model)
    out.mkdir(parents=True, exist_ok=True)
    if checkpoint.light is None:
        _write_wheel(path, model, module=module, version=version, checkpoint=checkpoint)
    else:
        # Thin matrices need the model they belong to, so they are merged with it.
        with temporary_folder(path) as folder:
            export_folder(model, folder / "merged")
            _write_wheel(path, folder / "merged", module=module, version=version, checkpoint=checkpoint)
    return {"wheel": str(path), "module": module, "megabytes": path.stat().st_size / 1e6}


def module_name(name: str) -> str:
    """A name that Python can import: small letters, digits and underscores."""
    module = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if not module or module[0].isdigit() or module == "firth":
        raise BadConfig(f"{name!r} makes no name of a package; give one that begins with a letter with `name=`.")
    return module


def _write_wheel(path: Path, model: Path, *, module: str, version: str, checkpoint: Checkpoint) -> None:
    info = f"{module}-{version}.dist-info"
    texts = {
        f"{module}/__init__.py": PROGRAM,
        f"{module}/__main__.py": f"from {module} import main\n\nmain()\n",
        f"{info}/METADATA": _metadata(module, version, checkpoint),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: firth\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{module.replace('_', '-')} = {module}:main\n",
    }
    records: list[str] = []
    with atomic_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            _add(archive, name, text.encode(), records)
        for source in _model_files(model):
            _add(archive, f"{module}/model/{source.relative_to(model).as_posix()}", source.read_bytes(), records)
        record_name = f"{info}/RECORD"
        rows = "".join(f"{row}\n" for row in [*records, f"{record_name},,"])
        archive.writestr(zipfile.ZipInfo(record_name, EARLIEST), rows)


def _model_files(model: Path) -> list[Path]:
    """The files of the model, and none of the run that made it."""
    if (model / MANIFEST).exists():
        names = [*read_json(model / MANIFEST)["files"], MANIFEST]
        return [model / name for name in names]
    return sorted(path for path in model.rglob("*") if path.is_file())


def _add(archive: zipfile.ZipFile, name: str, data: bytes, records: list[str]) -> None:
    encoded = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    # A wheel's record leaves out the padding.
    digest = encoded.rstrip(b"=").decode()
    records.append(f"{name},sha256={digest},{len(data)}")
    entry = zipfile.ZipInfo(name, EARLIEST)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, data)


def _metadata(module: str, version: str, checkpoint: Checkpoint) -> str:
    tasks = ", ".join(checkpoint.tasks) or "vectors of texts"
    return (
        f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: {version}\n"
        f"Summary: A model made by firth ({tasks})\nRequires-Python: >=3.11\nRequires-Dist: firth>={__version__}\n"
        f"Description-Content-Type: text/markdown\n\n{checkpoint.text}"
    )
