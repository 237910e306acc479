"""Text -> documents: reading files, cleaning, dropping duplicates, splitting into sentences; without torch."""
