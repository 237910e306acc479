"""A run's logs."""

from pathlib import Path

import pytest

import firth
from firth.errors import FirthError
from firth.train.journal import Journal, read_rows


def test_rows_are_appended_and_read_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.metrics(5, "train", {"masked_lm": 1 / 3, "rate": 1e-5})
    journal.metrics(10, "held-out", {"masked_lm": 2.0})
    journal.timing(5, {"seconds": 0.5})
    assert read_rows(tmp_path / "metrics.jsonl") == [
        {"step": 5, "split": "train", "masked_lm": 0.3333333, "rate": 1e-5},
        {"step": 10, "split": "held-out", "masked_lm": 2.0},
    ]
    assert read_rows(tmp_path / "timing.jsonl") == [{"step": 5, "seconds": 0.5}]
    assert read_rows(tmp_path / "nothing.jsonl") == []


def test_a_line_that_is_not_complete_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.metrics(1, "train", {"loss": 2.0})
    journal.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "spl')
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1]


def test_a_resumed_run_cuts_back_what_came_after_its_state(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.metrics(1, "train", {"loss": 1.0})
    lengths, kept = journal.lengths(), (tmp_path / "metrics.jsonl").read_bytes()
    journal.metrics(2, "train", {"loss": 2.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "spl')  # killed in the middle of a row
    resumed = Journal(tmp_path, lengths=lengths)
    assert (tmp_path / "metrics.jsonl").read_bytes() == kept
    resumed.metrics(2, "train", {"loss": 2.5})
    assert [row["step"] for row in read_rows(tmp_path / "metrics.jsonl")] == [1, 2]


def test_a_new_run_starts_with_empty_logs(tmp_path: Path) -> None:
    Journal(tmp_path).metrics(1, "train", {"loss": 1.0})
    Journal(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_the_journal_of_a_failed_run_is_closed(
    data: Path, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    monkeypatch.setattr(Journal, "close", lambda self: closed.append(self.folder))
    with pytest.raises(FirthError, match=r"diverged .*; begin again with a lower train.optim.rate and another `out=`"):
        firth.pretrain(data, out=tmp_path / "run", steps=20, changes=[*tiny, "train.optim.rate=1e30"], device="cpu")
    assert closed == [tmp_path / "run"]


def test_closing_a_journal_without_rows_writes_nothing(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "timing.jsonl"]
