from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.shop.__main__ import errors_in


def test_errors_of_what_is_started_go_to_a_file_and_ours_do_not(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    with errors_in(log):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read(); sys.stderr.write('lament')"],
                                 stdin=subprocess.PIPE)  # fmt: skip
    os.write(2, b"ours")
    child.communicate()
    assert (log.read_text(), capfd.readouterr().err) == ("lament", "ours")
