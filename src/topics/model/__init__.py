"""Values that every part speaks of: records, configs, errors, limits. Imports nothing of ours."""
