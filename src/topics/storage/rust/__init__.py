"""Taking over a directory of the Rust program: read it, decide, make a store of ours beside it, then switch."""
