"""Changing models without training: import other people's files, extend a vocabulary, read and write word vectors."""
