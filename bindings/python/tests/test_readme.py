"""The examples of README.md that stand alone do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
SECTIONS = ["Piece by piece", "asyncio", "HTTP"]


@pytest.mark.parametrize("section", SECTIONS)
def test_examples(section: str) -> None:
    text = README.read_text(encoding="utf-8")
    body = re.split(r"^## ", text.split(f"\n## {section}\n", 1)[1], flags=re.MULTILINE)[0]
    blocks = re.findall(r"```python\n(.*?)```", body, flags=re.DOTALL)
    assert blocks, section
    for block in blocks:
        subprocess.run([sys.executable, "-W", "error", "-c", block], check=True, timeout=60)
