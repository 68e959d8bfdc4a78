from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from topics.host.turns import take_turn


def test_second_holder_waits_for_its_turn_and_gives_up_in_the_end(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = take_turn(path, 0)
    with pytest.raises(BlockingIOError, match="held by somebody else"):
        take_turn(path, 0.03)
    first.release()
    take_turn(path, 0).release()


def test_turn_of_a_process_that_died_is_over(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    script = f"import os; from topics.host.turns import take_turn; take_turn({path!r}, 0); os._exit(7)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 7
    take_turn(path, 0).release()


def test_everybody_whom_the_umask_lets_may_take_part(tmp_path: Path) -> None:
    old = os.umask(0o002)
    try:
        take_turn(str(tmp_path / "lock"), 0).release()
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o664
