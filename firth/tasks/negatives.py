"""Which texts of a batch are negatives of which others. In: examples. Out: a matrix of those that are not."""

import numpy as np

from firth.tasks.task import Examples, different_texts, index_of


def ignored_negatives(examples: Examples, is_alike_E: np.ndarray) -> np.ndarray:
    """E x C: which texts of a batch are no negatives of which example.

    The candidates are all second texts, then all third ones. An example ignores copies of its own texts, and texts that
    another example says are like its first text.
    """
    index = index_of(different_texts(examples))
    num_examples = len(examples)
    ids = []
    for example in examples:
        ids.append([index[text] for text in example.texts])
    ids_EK = np.array(ids)
    firsts_E = ids_EK[:, 0]
    seconds_E = ids_EK[:, 1]
    candidates_C = ids_EK[:, 1:].T.ravel()
    is_second_EC = candidates_C[None] == seconds_E[:, None]
    is_first_EC = candidates_C[None] == firsts_E[:, None]
    ignored_EC = is_second_EC | is_first_EC
    # Examples with the same first text: what one says is like it is no negative of the others.
    same_first_EE = firsts_E[None] == firsts_E[:, None]
    ignored_EC[:, :num_examples] |= same_first_EE & is_alike_E[None]
    # Its own second text is the answer.
    rows = np.arange(num_examples)
    ignored_EC[rows, rows] = False
    return np.asarray(ignored_EC)
