"""Pre-training runs: prepared text in, a model out. `training` goes through the loop, `solving` without gradients."""
