"""Other people's files: reading them, and writing files they can read."""

TABLE = {
    "huggingface": "firth.convert.huggingface",
}
