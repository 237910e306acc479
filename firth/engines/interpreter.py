"""Other interpreters that this one starts: how they find the package."""

import os
from pathlib import Path


def package_path() -> str:
    """A PYTHONPATH on which this very package is found, before what the user's own has.

    It has no empty entry: Python takes that for the current folder, whose files could replace the standard library's.
    """
    folders = [str(Path(__file__).parents[2])]
    inherited = os.environ.get("PYTHONPATH", "")
    folders += [folder for folder in inherited.split(os.pathsep) if folder]
    return os.pathsep.join(folders)
