"""Changing models without training: import, extend a vocabulary, read and write word vectors, export."""
