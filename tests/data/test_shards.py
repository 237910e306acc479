"""Shards give back what was written, in whatever portions it came, and notice any damage."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from firth.data.shards import Shards, id_dtype, write_shards
from firth.errors import BadInput, Damaged
from firth.files import write_manifest
from firth.tokenizers.wordpiece import WordPiece

TOKENIZER = WordPiece.train(["ab ba aab"], WordPiece.Config(vocab_size=9, min_count=1))
IDS = np.arange(41) % 9
STARTS = IDS % 3 != 1
LENGTHS = np.array([3, 1, 9, 8, 20])
ENDS = np.array([2, 2, 3, 5])  # the second document has no sentences


def write(folder: Path, portions: list[int]) -> Path:
    """Writes the sentences in portions; a document ends with the portion that holds its last sentence."""
    with write_shards(folder, TOKENIZER) as writer:
        for first, last in zip([0, *portions], [*portions, len(LENGTHS)], strict=True):
            tokens = slice(LENGTHS[:first].sum(), LENGTHS[:last].sum())
            ends = ENDS[(first < ENDS) & (last >= ENDS)] - first
            writer.append(IDS[tokens], STARTS[tokens], lengths=LENGTHS[first:last], ends=ends)
    return folder


@pytest.mark.parametrize("portions", [[], [1], [1, 2, 3, 4], [2, 2, 3]])
def test_what_goes_in_comes_out(tmp_path, portions):
    shards = Shards.open(write(tmp_path / "out", portions))
    assert shards.ids.tolist() == IDS.tolist()
    assert shards.sentences.tolist() == [0, 3, 4, 13, 21, 41]
    assert shards.documents.tolist() == [0, 2, 3, 5]
    assert shards.counts.tolist() == np.bincount(IDS).tolist()
    assert (shards.num_tokens, shards.num_sentences, shards.num_documents) == (41, 5, 3)
    assert shards.word_starts(np.arange(41)).tolist() == STARTS.tolist()
    assert shards.word_starts(np.array([[39, 0], [1, 1]])).tolist() == [[True, True], [False, False]]
    assert shards.info["tokenizer_fingerprint"] == WordPiece.load(shards.tokenizer_folder).fingerprint


def test_an_end_that_comes_after_its_sentences(tmp_path):
    with write_shards(tmp_path / "out", TOKENIZER) as writer:
        none = np.zeros(0, np.int64)
        assert writer.append(IDS[:4], STARTS[:4], lengths=np.array([3, 1]), ends=none).tolist() == []
        assert writer.append(IDS[:0], STARTS[:0], lengths=none, ends=np.array([0, 0])).tolist() == [4]
        assert writer.append(IDS[:5], STARTS[:5], lengths=np.array([5]), ends=np.array([0, 1])).tolist() == [5]
    assert Shards.open(tmp_path / "out").documents.tolist() == [0, 2, 3]


def test_ids_take_two_bytes_where_they_fit(tmp_path):
    assert id_dtype(65_536).itemsize == 2
    assert id_dtype(65_537).itemsize == 4
    assert Shards.open(write(tmp_path / "out", [])).ids.dtype == np.uint16


def test_arrays_are_mapped_read_only_and_travel_by_name(tmp_path):
    shards = Shards.open(write(tmp_path / "out", []))
    with pytest.raises(ValueError, match="read-only"):
        shards.ids[0] = 1
    packed = pickle.dumps(shards)
    assert len(packed) < 500
    assert pickle.loads(packed).ids.tolist() == IDS.tolist()


def test_nothing_appears_if_writing_fails_and_nothing_is_overwritten(tmp_path):
    with pytest.raises(RuntimeError), write_shards(tmp_path / "out", TOKENIZER):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    folder = write(tmp_path / "out", [])
    with pytest.raises(BadInput, match="out already exists"):
        write(folder, [])
    with write_shards(folder, TOKENIZER, replace=True) as writer:
        writer.append(IDS[:1], STARTS[:1], lengths=np.array([1]), ends=np.array([1]))
    assert Shards.open(folder).num_tokens == 1


@pytest.mark.parametrize("name", ["ids.bin", "words.bin", "documents.bin", "shards.json", "tokenizer/vocab.txt"])
def test_damage_is_found_and_named(tmp_path, name):
    folder = write(tmp_path / "out", [])
    path = folder / name
    data = path.read_bytes()
    for damaged in (data[:-1], data + b"\0", data[:-1] + bytes([data[-1] ^ 1])):
        path.write_bytes(damaged)
        with pytest.raises(Damaged, match=name):
            Shards.open(folder)
    path.unlink()
    with pytest.raises(Damaged, match=f"{name} is missing"):
        Shards.open(folder)


def test_a_missing_file_is_found_without_the_manifests_help(tmp_path):
    folder = write(tmp_path / "out", [])
    (folder / "counts.bin").unlink()
    write_manifest(folder)
    with pytest.raises(Damaged, match=r"counts\.bin is missing"):
        Shards.open(folder)


def test_an_altered_manifest_is_named(tmp_path):
    folder = write(tmp_path / "out", [])
    for text in ("{", "[]", '{"files": 1}'):
        (folder / "manifest.json").write_text(text)
        with pytest.raises(Damaged, match=r"manifest\.json"):
            Shards.open(folder)


def test_other_formats_and_other_folders_are_refused(tmp_path):
    folder = write(tmp_path / "out", [])
    info = json.loads((folder / "shards.json").read_text())
    (folder / "shards.json").write_text(json.dumps({**info, "format": 2}))
    write_manifest(folder)
    with pytest.raises(Damaged, match="has format 2, this version reads 1"):
        Shards.open(folder)
    with pytest.raises(BadInput, match="is not a folder of prepared text"):
        Shards.open(tmp_path)  # a folder of something else
    (folder / "manifest.json").unlink()
    with pytest.raises(Damaged, match=r"has no manifest\.json"):
        Shards.open(folder)
    with pytest.raises(BadInput, match="nowhere is not a folder"):
        Shards.open(tmp_path / "nowhere")
