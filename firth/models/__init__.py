"""The models that come with firth: each is a folder here and is known by its name, such as `en-small`.

In: a name or a path, or the texts that a model is needed for. Out: the path of a model folder. A name begins with the
language of the text that the model was trained on. Without torch. If the environment variable FIRTH_MODELS is set, the
models are the folders in the folder that it names.
"""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from firth.errors import BadInput

log = logging.getLogger(__name__)

VARIABLE = "FIRTH_MODELS"
"""The environment variable that names another folder of models."""
LANGUAGES = {"en": "English", "zh": "Chinese"}
"""The languages that names begin with."""
SAMPLE_CHARACTERS = 100_000
"""Characters of a text that are read to find its language."""
ENGLISH_SHARE = 0.95
"""If so much of a vocabulary is not Chinese, a model reads no Chinese."""
CHINESE_SHARE = 0.75
"""If so much of a vocabulary is Chinese, a model is one for Chinese; most of them have some English words."""
TEXT_LANGUAGE = "text_language"
"""The note in `firth.json` about the language of the rows that a model was fine-tuned on."""


def names() -> list[str]:
    """The names of the models, in alphabetical order."""
    home = _home()
    if not home.is_dir():
        return []
    return sorted(folder.name for folder in home.iterdir() if (folder / "config.json").is_file())


def find(model: str | Path) -> Path:
    """The folder of a model that is named by its path or by a name. A path that exists comes before a name."""
    path = Path(model)
    if path.is_dir():
        return path
    known = names()
    if str(model) in known:
        return _home() / str(model)
    if path.is_file():
        raise BadInput(
            f"{model} is a file, not a folder with a model; labelled rows go to `train=` or `data=`, texts to `file=` "
            "or `text=`, and a model file of another program is opened by `firth import`."
        )
    nearest = get_close_matches(str(model), known, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else "; train one with `firth pretrain` or name its folder."
    others = f", nor one of the models that come with firth ({', '.join(known)})" if known else ""
    raise BadInput(f"{model} is not a folder with a model{others}{hint}")


def with_names(text: str) -> str:
    """A message with the names of the models that come with firth in place of their folders, which no user gave."""
    home = str(_home())
    known = "|".join(map(re.escape, names()))
    if not known or home not in text:
        return text
    # A file of a model keeps its path, and so does a folder of the same name below another one.
    return re.sub(rf"(?<![\w/.-]){re.escape(home)}/({known})(?![\w/-]|\.\w)", r"\1", text)


def is_model(name: str | Path) -> bool:
    """Whether this is the folder or the name of a model."""
    try:
        is_folder = (Path(name) / "config.json").is_file()
    except OSError:
        # A text is too long for the name of a file.
        is_folder = False
    return is_folder or str(name) in names()


def suiting(texts: str | Iterable[str], *, remedy: str = "name a model folder") -> Path:
    """The model for the language of the texts, if none was named; a message says which one it is.

    `remedy` ends the error for an installation that has no such model.
    """
    language = language_of(texts)
    known = names()
    found = [name for name in known if name.partition("-")[0] == language]
    if not found:
        which = f"no model for {LANGUAGES[language]} text, only {', '.join(known)}" if known else "no models"
        raise BadInput(f"No model was named, and this installation has {which}; {remedy}.")
    log.info(f"No model was named: using {found[0]}, the model for {LANGUAGES[language]} text.")
    return _home() / found[0]


def language_of(texts: str | Iterable[str]) -> str:
    """`zh` if at least half of the words are Chinese characters, each of which counts as a word; otherwise `en`."""
    num_chinese = 0
    num_words = 0
    num_characters = 0
    for text in [texts] if isinstance(texts, str) else texts:
        chinese, words = _counts(text[: SAMPLE_CHARACTERS - num_characters])
        num_chinese += chinese
        num_words += words
        num_characters += len(text)
        if num_characters >= SAMPLE_CHARACTERS:
            break
    return "zh" if num_chinese and num_chinese >= num_words else "en"


def languages_of_model(notes: Mapping[str, object], tokens: Iterable[str]) -> list[str]:
    """The languages that a model can read, by what its `firth.json` says, or else by its tokens."""
    noted = notes.get(TEXT_LANGUAGE) or notes.get("language") or notes.get("fine_tuned_from") or ""
    language = str(noted).partition("-")[0]
    if language in LANGUAGES:
        return [language]
    num_chinese = 0
    num_words = 0
    for token in tokens:
        chinese, words = _counts(token)
        num_chinese += chinese > 0
        num_words += words > 0
    total = num_chinese + num_words
    if num_words >= ENGLISH_SHARE * total:
        return ["en"]
    if num_chinese >= CHINESE_SHARE * total:
        return ["zh"]
    return ["en", "zh"]


def _counts(text: str) -> tuple[int, int]:
    """How many Chinese characters and how many words of other letters a text has."""
    chinese, word = _patterns()
    if text.isascii():
        return 0, len(word.findall(text))
    return len(chinese.findall(text)), len(word.findall(text))


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    from firth.tokenizers.segmentation import CHINESE  # numpy

    chinese = re.compile(f"[{CHINESE}]")
    word = re.compile(rf"(?:(?![{CHINESE}])[^\W\d_])+")
    return chinese, word


def _home() -> Path:
    """The folder of all models."""
    return Path(os.environ.get(VARIABLE) or Path(__file__).parent)
