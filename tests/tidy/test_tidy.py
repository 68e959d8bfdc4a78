"""What the linters cannot see: the house rules of the repository, each as one test."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "topics"

# These packages get the machine through constructors; `host` is the only one that touches it.
PURE = ("model", "rules", "format", "storage", "broker")
TIME_AND_CHANCE = {"datetime", "random", "secrets", "time", "uuid"}
FILES_AND_PROCESSES = {"fcntl", "mmap", "os", "pathlib", "shutil", "signal", "subprocess", "tempfile"}
NETWORK = {"asyncio", "select", "selectors", "socket"}
MACHINE_MODULES = TIME_AND_CHANCE | FILES_AND_PROCESSES | NETWORK
FILE_CALLS = {("io", "open"), ("os", "open"), ("os", "fdopen"), ("codecs", "open")}
LINES_MAX = 500
TEXT_SUFFIXES = {
    "",
    ".cfg",
    ".h",
    ".ini",
    ".json",
    ".md",
    ".py",
    ".pxi",
    ".pyi",
    ".pyx",
    ".sh",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
}

# One letter of each word stands in brackets, so that this file does not hold what it looks for.
UNFINISHED = re.compile(r"\b([T]ODO|[F]IXME|[X]XX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/([w]ork|[r]oot|[f]arm|[h]ome/[a-z]+)/")
REGISTRY = re.compile(r"--(extra-)?index-[u]rl|--find-[l]inks|\b([p]ypi\.org|[p]ythonhosted\.org|[n]pmjs\.org)")
HISTORY = re.compile(
    r"\b(this [s]ession|[t]icket|[p]hase \d|[i]ssue #?\d|as [r]equested|was [r]enamed)\b", re.IGNORECASE
)


def committed_files() -> list[Path]:
    """The files git holds or would hold: tracked ones, and new ones that no ignore rule hides."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return sorted(path for name in listing.split("\0") if name and (path := ROOT / name).is_file())


def is_text(path: Path) -> bool:
    """The stores of earlier versions are bytes, whatever their names."""
    stored = path.is_relative_to(ROOT / "tests" / "golden") and path.parent != ROOT / "tests" / "golden"
    return path.suffix in TEXT_SUFFIXES and not stored


FILES = committed_files()
TEXTS = {path: path.read_text(encoding="utf-8") for path in FILES if is_text(path)}
SOURCES = {path: text for path, text in TEXTS.items() if path.suffix == ".py"}
TREES = {path: ast.parse(text) for path, text in SOURCES.items()}
PAGES = {path: text for path, text in TEXTS.items() if path.suffix == ".md"}
LOCKS = {path: text for path, text in TEXTS.items() if path.parent == ROOT / "requirements"}


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def places_of(pattern: re.Pattern[str], texts: dict[Path, str]) -> list[str]:
    return [
        f"{place(path, number)}: {line.strip()[:100]}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def package_of(path: Path) -> str | None:
    """`storage` for src/topics/storage/wal.py, an empty string for src/topics/x.py, None outside the package."""
    if not path.is_relative_to(PACKAGE):
        return None
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else ""


def imported_modules(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.partition(".")[0], node.lineno


def opens_a_file(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="open")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
            return (module, name) in FILE_CALLS
    return False


def defines_open(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "open" for node in tree.body)


def spoken_text(path: Path, text: str) -> Iterator[tuple[str, int]]:
    """What is said to the reader: comments and docstrings of code, every line of a page."""
    if path.suffix == ".md":
        yield from ((line, number) for number, line in enumerate(text.splitlines(), 1))
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string, token.start[0]
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            said = ast.get_docstring(node)
            if said:
                yield said, getattr(node, "lineno", 1)


def test_only_host_opens_files() -> None:
    found = [
        place(path, getattr(node, "lineno", 0))
        for path, tree in TREES.items()
        if package_of(path) not in (None, "host") and not defines_open(tree)
        for node in ast.walk(tree)
        if opens_a_file(node)
    ]
    assert not found, f"files are opened through host.fs, with an Fs from the constructor: {found}"


def test_pure_packages_import_nothing_of_the_machine() -> None:
    found = [
        f"{place(path, line)} imports {module}"
        for path, tree in TREES.items()
        if package_of(path) in PURE
        for module, line in imported_modules(tree)
        if module in MACHINE_MODULES
    ]
    assert not found, f"clock, files and chance come through constructors: {found}"


def test_production_code_does_not_import_the_fakes() -> None:
    found = [
        place(path, node.lineno)
        for path, tree in TREES.items()
        if package_of(path) not in (None, "testing")
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("topics.testing"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("topics.testing") for alias in node.names))
    ]
    assert not found, f"topics.testing is for tests: {found}"


def test_source_files_are_read_in_one_sitting() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path, text in SOURCES.items()
        if package_of(path) is not None and (count := text.count("\n")) > LINES_MAX
    }
    assert not long, f"more than {LINES_MAX} lines: find the noun hiding in each and give it a file: {long}"


def test_nothing_is_left_unfinished() -> None:
    assert not places_of(UNFINISHED, TEXTS)


def test_no_file_names_a_path_of_one_machine() -> None:
    assert not places_of(MACHINE_PATH, TEXTS)


def test_no_file_names_a_package_registry() -> None:
    assert not places_of(REGISTRY, TEXTS)


def test_every_locked_package_is_pinned_and_hashed() -> None:
    assert LOCKS, "requirements/ holds the lock files"
    for path, text in LOCKS.items():
        assert "://" not in text, f"{path.name} holds an address"
        for entry in re.split(r"\n(?=\S)", text.strip()):
            assert re.match(r"[A-Za-z0-9._-]+==\S+", entry), f"{path.name}: not pinned: {entry[:80]}"
            assert "--hash=sha256:" in entry, f"{path.name}: no hash: {entry[:80]}"


def test_dev_lock_agrees_with_base_lock() -> None:
    pins = {path.stem: set(re.findall(r"^([A-Za-z0-9._-]+==\S+)", text, re.MULTILINE)) for path, text in LOCKS.items()}
    assert pins["base"] <= pins["dev"]


def test_comments_and_pages_tell_no_history() -> None:
    found = [
        f"{place(path, line)}: {HISTORY.search(said)}"
        for path, text in {**SOURCES, **PAGES}.items()
        for said, line in spoken_text(path, text)
        if HISTORY.search(said)
    ]
    assert not found, f"history belongs to git and the change log: {found}"


def heading_anchor(heading: str) -> str:
    """The anchor a heading gets where the pages are shown: lower case, no punctuation, dashes for spaces."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors_of(page: Path) -> set[str]:
    body = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    return {heading_anchor(heading) for heading in re.findall(r"^#+ (.*)$", body, re.MULTILINE)}


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_resolves(page: Path) -> None:
    body = re.sub(r"^```.*?^```|`[^`\n]*`", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", body):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        goal = (page.parent / name).resolve() if name else page
        assert goal.exists(), f"{page.relative_to(ROOT)} links to {target}"
        if anchor:
            assert anchor in anchors_of(goal), f"{page.relative_to(ROOT)} links to {target}"


def test_every_page_under_docs_is_linked_from_another() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page, text in PAGES.items()
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
        if not re.match(r"[a-z]+:", target)
    }
    orphans = [
        str(page.relative_to(ROOT)) for page in PAGES if page.is_relative_to(ROOT / "docs") and page not in linked
    ]
    assert not orphans, f"no page links to {orphans}"


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", TEXTS[ROOT / "Makefile"], re.MULTILINE))
    named = {
        (target, str(page.relative_to(ROOT)))
        for page, text in PAGES.items()
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)
    }
    assert not {pair for pair in named if pair[0] not in targets}


def test_ci_runs_the_check_and_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, ".ci/run is executable"
    commands = script.read_text(encoding="utf-8").splitlines()
    assert "make check" in commands
    assert "make test" in commands


def named_tests(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node


def test_every_test_is_named_by_a_sentence() -> None:
    found = [
        f"{place(path, function.lineno)} {function.name}"
        for path, tree in TREES.items()
        if path.is_relative_to(ROOT / "tests") and path.name.startswith("test_")
        for function in named_tests(tree)
        if len([word for word in function.name.split("_")[1:] if word]) < 3
    ]
    assert not found, f"a test's name says what holds, in three words or more: {found}"


def dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
    return ""


def gives_a_reason(call: ast.Call, name: str) -> bool:
    reasons = [word.value for word in call.keywords if word.arg == "reason"]
    if name == "pytest.skip":
        reasons += call.args[:1]
    # A reason that is computed is believed; a literal one must say something.
    return any(not isinstance(reason, ast.Constant) or bool(str(reason.value).strip()) for reason in reasons)


def test_no_test_is_skipped_without_a_reason() -> None:
    names = {"pytest.skip", "pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail"}
    found = []
    for path, tree in TREES.items():
        called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and (name := dotted(node)) in names:
                call = called.get(id(node))
                if call is None or not gives_a_reason(call, name):
                    found.append(place(path, node.lineno))
    assert not found, f"a skip says why: {found}"
