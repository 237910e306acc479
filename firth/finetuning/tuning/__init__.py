"""The search for the settings of a fine-tuning run: successive halving within a number of minutes."""
