"""Fine-tuning with few labels: contrastive pairs, prompts, self-training, and the choice among them."""
