"""Many seeds of the power-cut simulation, in several processes: `python -m tests.crash.soak --seeds 20000`.

Prints progress, every seed that fails with its options and the last file calls, and what happened how often.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from functools import partial

from tests.crash.simulation import run_seed

_BLOCK = 20


def run_block(seeds: range, stop: bool = False) -> tuple[Counter[str], list[tuple[int, str]]]:
    """The counts of these seeds, and (seed, what went wrong) of those that failed."""
    counts: Counter[str] = Counter()
    failed: list[tuple[int, str]] = []
    for seed in seeds:
        try:
            counts += run_seed(seed).counts
        except Exception:
            failed.append((seed, traceback.format_exc()))
            if stop:
                break
        counts["seed"] += 1
    return counts, failed


def hush() -> None:
    """What the engine logs is of interest for one seed, not for thousands."""
    logging.disable()


def blocks(start: int, seeds: int) -> list[range]:
    return [range(low, min(low + _BLOCK, start + seeds)) for low in range(start, start + seeds, _BLOCK)]


def soak(start: int, seeds: int, jobs: int) -> tuple[Counter[str], list[tuple[int, str]]]:
    counts: Counter[str] = Counter()
    failed: list[tuple[int, str]] = []
    began = told = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=hush) as pool:
        for more, bad in pool.imap_unordered(partial(run_block), blocks(start, seeds)):
            counts += more
            failed += bad
            for seed, trace in bad:
                print(f"\nseed {seed} failed:\n{trace}", flush=True)
            if time.monotonic() - told >= 5 or counts["seed"] == seeds:
                told = time.monotonic()
                rate = counts["seed"] / (told - began)
                print(f"{counts['seed']}/{seeds} seeds, {len(failed)} failed, {rate:.1f} seeds/s", flush=True)
    return counts, failed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20_000, help="how many (default 20000)")
    parser.add_argument("--start", type=int, default=None, help="the first seed (default: from the clock)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    given = parser.parse_args(arguments)
    start = given.start if given.start is not None else time.time_ns() // 1_000_000 % 1_000_000_000
    print(f"seeds {start}..{start + given.seeds - 1}; one again: python -m tests.crash.soak --start SEED --seeds 1")
    if given.seeds == 1:
        counts, failed = run_block(range(start, start + 1))
        print("".join(trace for _, trace in failed), end="")
    else:
        counts, failed = soak(start, given.seeds, given.jobs)
    for what, count in sorted(counts.items()):
        print(f"{count:>10}  {what}")
    if failed:
        print(f"failed: {sorted(seed for seed, _ in failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
