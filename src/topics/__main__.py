"""`python -m topics` is the `topics` command, where the Python matters more than the PATH."""

from __future__ import annotations

from topics.cli.main import main

if __name__ == "__main__":
    main()
