"""What a user can do wrong. The text of an error is one sentence: what is wrong, where, and the remedy.

A text names the arguments of Python functions in backticks: `out=`, `resume=True`, `seeds=5`. The command line prints
its options in their place (`commands/flags.py`).
"""


class FirthError(Exception):
    """Something that the user can put right. The command line prints it and ends with its exit code."""

    exit_code = 2


class BadInput(FirthError):
    """A file, text or folder that cannot be used as it is."""


class BadConfig(FirthError):
    """An option, a config key or a combination of them that makes no sense."""


class Damaged(FirthError):
    """A file of ours that is truncated, altered or missing."""


class Unsupported(FirthError):
    """Something that this model, machine or installation cannot do."""


def install(extra: str) -> str:
    """How to install the packages of an extra: firth is in no registry, so pip needs the folder of its source."""
    return f"`pip install '.[{extra}]'` in the folder of firth's source"


def absent(package: str | None, *, extra: str, user: str) -> Unsupported:
    """The error for a package that is not installed; `user` is what needs it."""
    return Unsupported(f"{user} needs {package}; run {install(extra)}.")


class Resumable(FirthError):
    """The run ended early; what it has saved can be resumed."""

    def __init__(self, text: str, *, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy
        """How to continue; the run's folder knows it and adds it."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} {self.remedy}" if self.remedy else text


class Interrupted(Resumable):
    """A signal stopped the run."""

    def __init__(self, text: str, *, number: int, remedy: str = "") -> None:
        super().__init__(text, remedy=remedy)
        self.exit_code = 128 + number  # as shells do for a command that a signal ended


class LostRank(Resumable):
    """One of the processes that train together died or could not be reached."""

    exit_code = 1
