"""The numbers and examples of `firth demo`: a small BERT on the embedded text, and its worth, in five minutes."""

MINUTES = 3.0
SIZE = "tiny"
VOCAB_SIZE = 6000
CHANGES = (
    # Many small steps, no dropout and short sequences: what learns soonest on one megabyte of text.
    "batches.tokens=1024",
    "batches.max_length=64",
    "batches.held_out_rate=0.03",
    "encoder.bert.num_heads=4",
    "encoder.bert.dropout=0.0",
    "encoder.bert.init_std=0.05",
    "objectives.masked_lm.rate=0.2",
    "train.optim.rate=1e-3",
    "train.optim.beta2=0.98",
    "train.log_every=50",
    "train.evaluate_every=500",
    "train.checkpoint_every=1000",
)
TASKS = {"classify": "classify", "tag": "entities"}
"""What it is fine-tuned for, and the embedded set of each."""
SEEDS = 3
# Few rows: small batches for more steps, the last weights, and few rows spent on picking.
FEW_ROWS = ("batch_size=8", "pick=last", "held_out_rate=0.05")
FINE_TUNING = {
    "classify": (*FEW_ROWS, "epochs=20", "tasks.classify.pooling=mean"),
    "tag": (*FEW_ROWS, "epochs=40"),
}
"""Changes of each task, the same for both starts."""
FILLS = (
    "If the argument is omitted, the function [MASK] None.",
    "Return a [MASK] of all the files in the directory.",
    "Raise an exception if the file does not [MASK].",
    "The default value is [MASK].",
    "这是一个[MASK]好的下午。",
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
