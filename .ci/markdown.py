"""What the checks of the Markdown files share: files, blocks and headings."""

import dataclasses
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUMMARY = "docs/SUMMARY.md"
LINK = re.compile(r"(!?)\[(?:[^\[\]]|\[[^\[\]]*\]|!\[[^\]]*\]\([^)]*\))*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
PICTURE_IN_LINK = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")
DEFINITION = re.compile(r"^ {0,3}\[([^\]]+)\]:\s*(\S+)", re.M)
TAG = re.compile(r"<(?:img|a)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"")
MARKED = re.compile(r"^<!-- commands -->$", re.M)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.I)


@dataclasses.dataclass
class Block:
    """A fenced block, or a comment of several lines."""

    page: str
    line: int
    info: str
    text: str
    comment: bool = False

    @property
    def words(self) -> list[str]:
        return self.info.replace(",", " ").split()


def files(*patterns: str) -> list[str]:
    """The repository's own files, by their paths from its root."""
    ask = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(ask, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    return sorted(name for name in set(names) if name and (ROOT / name).exists())


def has_commands(page: str) -> bool:
    """Whether .ci/commands runs the page."""
    return page.startswith("docs/tasks/") or bool(MARKED.search((ROOT / page).read_text(encoding="utf-8")))


def blocks(page: str) -> list[Block]:
    """Fenced blocks and comments of a page, in order."""
    found: list[Block] = []
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    at = 0
    while at < len(lines):
        fence = re.match(r"( *)(`{3,}|~{3,})(.*)", lines[at])
        if fence:
            indent, mark, info = fence.groups()
            end = at + 1
            while end < len(lines) and lines[end].strip() != mark:
                end += 1
            if end == len(lines):
                raise SystemExit(f"{page}:{at + 1}: the block has no end")
            text = "\n".join(line.removeprefix(indent) for line in lines[at + 1 : end])
            found.append(Block(page, at + 2, info.strip(), text))
            at = end
        elif lines[at].startswith("<!--"):
            end = at
            while "-->" not in lines[end]:
                end += 1
            text = "\n".join(lines[at : end + 1])[4:].partition("-->")[0]
            first, _, rest = text.partition("\n")
            found.append(Block(page, at + 2, first.strip(), rest.rstrip("\n"), comment=True))
            at = end
        at += 1
    return found


def prose(page: str) -> str:
    """The text of a page; blocks and comments are empty lines, code in lines is left out."""
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    for block in blocks(page):
        count = len(block.text.split("\n")) if block.text else 0
        for line in range(block.line - 2, min(block.line + count, len(lines))):
            lines[line] = ""
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", lambda code: "\n" * code[0].count("\n"), "\n".join(lines), flags=re.S)


def headings(page: str) -> set[str]:
    """The anchors that headings get, by the rules that code hosts and mdBook share."""
    lines = (ROOT / page).read_text(encoding="utf-8").split("\n")
    inside = set()
    for block in blocks(page):
        inside.update(range(block.line - 2, block.line + len(block.text.split("\n"))))
    anchors: set[str] = set()
    for number, line in enumerate(lines):
        heading = re.match(r"#{1,6} +(.*?)[ #]*$", line)
        if number in inside or not heading:
            continue
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        anchor, count = slug, 0
        while anchor in anchors:
            count += 1
            anchor = f"{slug}-{count}"
        anchors.add(anchor)
    return anchors


def links(text: str) -> list[tuple[int, str]]:
    """The targets of a page, each with its line."""
    found = [(match.start(), match[2]) for match in LINK.finditer(text)]
    found += [(match.start(), match[1]) for match in PICTURE_IN_LINK.finditer(text)]
    found += [(match.start(), match[2]) for match in DEFINITION.finditer(text)]
    found += [(match.start(), match[1]) for match in TAG.finditer(text)]
    return sorted({(text.count("\n", 0, at) + 1, target) for at, target in found})
