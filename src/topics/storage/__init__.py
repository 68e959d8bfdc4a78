"""The engine: a data directory, its topics, and how their bytes reach the disk and come back."""
