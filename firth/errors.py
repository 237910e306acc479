"""What a user can do wrong. An error's text is the one sentence they see: what is wrong, where, and the remedy."""


class FirthError(Exception):
    """Something the user can put right; the command line prints it and leaves with its exit code."""

    exit_code = 2


class BadInput(FirthError):
    """A file, text or folder that cannot be used as it is."""


class BadConfig(FirthError):
    """An option, a config key or a combination of them that makes no sense."""


class Damaged(FirthError):
    """A file of ours that is truncated, altered or missing."""


class Unsupported(FirthError):
    """A thing this model, machine or installation cannot do."""


class Interrupted(FirthError):
    """The person or the machine asked the run to stop; what is kept of it can be resumed."""

    def __init__(self, text: str, *, number: int, remedy: str = "") -> None:
        super().__init__(text)
        self.exit_code = 128 + number  # what a shell says of a command that a signal ended
        self.remedy = remedy
        """How to continue; known to whoever owns the run's folder."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} {self.remedy}" if self.remedy else text
