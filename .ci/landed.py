"""Tests that run only where what they test was changed since a commit that passed.

Such a commit is the one that $NARROWS_BASE names, else the tip of the default branch of `origin`, or where this
branch left it, unless that is the very commit that is tested now. Where there is none, as in a clone of one commit or
of a branch that has landed, the tests run.
"""

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
# What of any crate changes no test of another.
WITHOUT = [":(exclude)*.md", *(f":(exclude,glob)crates/*/{folder}/**" for folder in ("bench", "examples", "tests"))]
SHOWN = 5


def git(*words: str) -> list[str] | None:
    """The lines that git prints, or none if it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else None


def commit(name: str) -> str | None:
    found = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    return found[0] if found else None


def packages(manifest: str) -> list[dict]:
    words = [CARGO, "metadata", "--format-version=1", "--no-deps", "--manifest-path", manifest]
    said = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    return json.loads(said)["packages"]


def bases() -> list[tuple[str, str]]:
    """Commits that passed, each with its name."""
    if name := os.environ.get("NARROWS_BASE"):
        found = commit(name)
        return [(found, name)] if found else []
    found = []
    for name in ("origin/HEAD", "origin/main"):
        if tip := commit(name):
            left = git("merge-base", "HEAD", tip)
            found = [(tip, name)] + ([(left[0], f"where this branch left {name}")] if left else [])
            break
    # A commit does not vouch for itself, but for what was changed since.
    is_clean = git("status", "--porcelain") == []
    return [(base, name) for base, name in found if not (is_clean and base == commit("HEAD"))]


def changed(base: str, paths: list[str]) -> list[str] | None:
    differ = git("diff", "--name-only", base, "--", *paths)
    new = git("ls-files", "--others", "--exclude-standard", "--", *paths)
    return None if differ is None or new is None else sorted({*differ, *new})


def reason(paths: list[str]) -> tuple[bool, str]:
    """Whether the tests of these files and folders run, and why."""
    why = "no commit is known that passed"
    if name := os.environ.get("NARROWS_BASE"):
        why = f"NARROWS_BASE={name} is no commit here"
    for base, name in bases():
        files = changed(base, paths)
        if files == []:
            return False, f"what it depends on is as in {base[:12]} ({name})"
        if files:
            more = f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
            why = f"changed since {base[:12]} ({name}): {', '.join(files[:SHOWN])}{more}"
    return True, why


def runs(name: str, tested) -> bool:
    """Whether the tests of this name run; says why. `tested` gives the files and folders that they test."""
    try:
        does, why = reason(tested())
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        does, why = True, str(error)
    print(f"== {name}: {'tested' if does else 'not tested'}: {why}", flush=True)
    return does
