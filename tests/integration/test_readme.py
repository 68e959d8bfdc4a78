"""The examples of the README run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_blocks_of_the_readme_run(number: int, tmp_path: Path) -> None:
    code = f"import sys; sys.path[:0] = {sys.path!r}\n" + BLOCKS[number]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_shows_the_whole_interface() -> None:
    wanted = ("topics.open(", "log.create(", "log.append(", "log.read(", "log.delete(", "log.info(", "log.drop(")
    text = "\n".join(BLOCKS)
    assert [call for call in (*wanted, "log.topics()", "topics.Gap") if call not in text] == []


def test_the_first_example_prints_what_a_reader_expects(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKS[0]], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "1 2"
    assert re.fullmatch(r"1 \d+ eu None \{'id': 1\}", lines[1])
    assert re.fullmatch(r"2 \d+ None order-2 \{'id': 2\}", lines[2])
    assert lines[-1] == "['orders']"
