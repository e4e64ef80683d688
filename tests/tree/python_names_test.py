"""No Python of this project uses a name that nothing defines: such a line is found only when it runs, and what skips
here may run elsewhere."""

import ast
import subprocess
from pathlib import Path

from pyflakes import checker, messages

ROOT = Path(__file__).parent.parent.parent
UNDEFINED = (messages.UndefinedName, messages.UndefinedLocal, messages.UndefinedExport)


def undefined(text, name="script.py"):
    found = checker.Checker(ast.parse(text, name), name).messages
    return [f"{name}:{m.lineno}: {m.message % m.message_args}" for m in found if isinstance(m, UNDEFINED)]


def test_every_name_is_defined():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.py"], cwd=ROOT,
                            capture_output=True, check=True).stdout
    files = [ROOT / name.decode() for name in listed.split(b"\0") if name]
    assert len(files) > 50, "git lists the sources"
    found = [line for file in files if file.exists()
             for line in undefined(file.read_text(), str(file.relative_to(ROOT)))]
    assert not found, "\n".join(found)


def test_an_import_of_another_function_defines_nothing_here():
    text = "def one():\n    import os\n    return os\ndef two():\n    return os\n"
    assert undefined(text) == ["script.py:5: undefined name 'os'"]
