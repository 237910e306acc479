"""The numbers and examples of `firth demo`: a small BERT on the embedded corpus within some minutes on two cores."""

MINUTES = 4.0
SIZE = "tiny"
VOCAB_SIZE = 6000
CHANGES = (
    "batches.tokens=4096",
    "batches.held_out_rate=0.03",
    "train.evaluate_every=200",
    "train.checkpoint_every=200",
)
FILLS = (
    "If the argument is omitted, the function returns [MASK].",
    "Raise an exception if the file does not [MASK].",
    "Return a list of all the [MASK] in the directory.",
    "The river carried the [MASK] down to the sea.",
    "今天的天气很[MASK]。",
)
SENTENCES = (
    "Return the number of items in the list.",
    "Give back how many elements the sequence holds.",
    "Open a connection to the server.",
    "Connect to a remote host over the network.",
    "The rain fell softly on the garden.",
    "春天的雨落在花园里。",
)
ATTENTION = "If the file does not exist, an exception is raised by the function."
