"""The example of docs/label-bias.md prints what stands there."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "label-bias.md"


def test_the_numbers_of_the_page() -> None:
    text = PAGE.read_text("utf-8")
    (program,), (shown,) = (re.findall(rf"```{kind}\n(.*?)```", text, re.S) for kind in ("python", "text"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {})
    assert out.getvalue() == shown
    memm, crf = (dict(re.findall(rf"{kind}Tagger +(\w+)   (\S+)", shown)) for kind in ("MEMM", "CRF"))
    assert memm == {"rib": "r1", "rob": "r1"}
    assert crf == {"rib": "r1", "rob": "r2"}
