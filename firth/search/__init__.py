"""Search by meaning: an index of passages on disk, and the passages nearest to a question."""
