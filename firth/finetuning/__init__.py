"""Fine-tuning runs: a backbone and labelled rows in, a fine-tuned, measured and documented model out."""
