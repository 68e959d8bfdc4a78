"""A Chromium for the tests of the page: the one of this machine, or one that can be had without asking anybody.

`python -m tests.browser.chromium` tries to get one where none is and says in one line what came of it. It never fails:
without a browser these tests are skipped, with that line as the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW = "no browser: the tests of the page are skipped; put chromium on PATH (Debian: apt-get install chromium)"


def find() -> str | None:
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    return None


def can_install() -> bool:
    """Only where it is ours to do: as root of a Debian, or in a run that nobody watches."""
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def install() -> None:
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
        try:
            done = subprocess.run(
                ["apt-get", *command],
                env=quiet,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=240,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return
        if done.returncode:
            return


def main() -> int:
    if find() is None and can_install():
        print("getting a browser for the tests of the page", flush=True)
        install()
    if find() is None:
        print(HOW, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
