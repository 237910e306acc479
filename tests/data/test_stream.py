"""Views of a corpus: which documents train and which are held out."""

import numpy as np
import pytest

from firth.data.shards import Shards
from firth.data.stream import CorpusView, split
from firth.errors import BadInput
from firth.ragged import ranges


def test_a_view_gives_the_sentences_of_its_documents(shards: Shards) -> None:
    documents = np.array([2, 3, 7])
    stream = CorpusView(shards, documents)
    found = [shards.ids[a:b].tolist() for a, b in zip(stream.starts_S.tolist(), stream.ends_S.tolist(), strict=True)]
    wanted = [
        shards.ids[shards.sentences[s] : shards.sentences[s + 1]].tolist()
        for d in documents
        for s in range(shards.documents[d], shards.documents[d + 1])
    ]
    assert found == wanted
    assert stream.num_tokens == sum(map(len, wanted))
    assert stream.bounds_D1[-1] == len(wanted)
    assert [shards.sentences[shards.documents[d]] for d in documents] == stream.starts_S[stream.bounds_D1[:-1]].tolist()


def test_split_shares_out_every_document_once(shards: Shards) -> None:
    training, held_out = split(shards, held_out_rate=0.2, seed=3)
    together = np.concatenate([training.documents_D, held_out.documents_D])
    assert sorted(together.tolist()) == list(range(shards.num_documents))
    assert len(held_out.documents_D) == round(0.2 * shards.num_documents)
    again, other = split(shards, held_out_rate=0.2, seed=3)[1], split(shards, held_out_rate=0.2, seed=4)[1]
    assert np.array_equal(held_out.documents_D, again.documents_D)
    assert not np.array_equal(held_out.documents_D, other.documents_D)


def test_split_keeps_enough_on_both_sides(shards: Shards) -> None:
    assert len(split(shards, held_out_rate=1e-9, seed=1)[1].documents_D) == 2
    assert len(split(shards, held_out_rate=0.0, seed=1)[1].documents_D) == 0
    with pytest.raises(BadInput, match="too few to train on"):
        split(shards, held_out_rate=1.0, seed=1)


def test_ranges() -> None:
    assert ranges(np.array([5, 0, 9]), np.array([8, 0, 11])).tolist() == [5, 6, 7, 9, 10]
    assert ranges(np.array([], int), np.array([], int)).tolist() == []
