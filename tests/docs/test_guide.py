"""The guide holds together: thirteen chapters in two languages, whose links lead somewhere."""

import re

import pytest

from tests.docs.commands import GUIDE, README, ROOT, fences, read_commands, without_fences

CHAPTERS = 13
LINK = re.compile(r"\]\(([^)\s]+)\)")

ENGLISH = sorted(path for path in GUIDE.glob("*.md") if not path.name.endswith(".zh.md"))
DOCUMENTS = [README, ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]


def chinese(path):
    return path.with_name(f"{path.stem}.zh.md")


def headings(path):
    return re.findall(r"^(#+) ", without_fences(path.read_text()), re.MULTILINE)


def links(path):
    found = LINK.findall(without_fences(path.read_text()))
    return [link.partition("#")[0] for link in found if not link.startswith(("http", "#"))]


def test_there_are_thirteen_chapters_and_the_index_names_them_in_order():
    chapters = [path.name for path in ENGLISH if path.name != "README.md"]
    assert [name[:2] for name in chapters] == [f"{i:02}" for i in range(1, CHAPTERS + 1)]
    for index, names in (
        (GUIDE / "README.md", chapters),
        (GUIDE / "README.zh.md", [name.replace(".md", ".zh.md") for name in chapters]),
    ):
        assert [link for link in links(index) if link[:2].isdigit()] == names


@pytest.mark.parametrize("path", ENGLISH, ids=lambda path: path.stem)
def test_both_languages_are_in_step(path):
    """The same headings, commands and source files; drawings may differ."""
    other = chinese(path)
    assert headings(other) == headings(path)
    texts = [[(each.language, each.text) for each in read_commands(p)] for p in (path, other)]
    assert sorted(texts[0]) == sorted(texts[1])
    blocks = [
        [text for kind, text in fences(p.read_text()) if kind != "text"] for p in (path, other)
    ]
    assert blocks[0] == blocks[1]
    sources = [[link for link in links(p) if link.startswith("../")] for p in (path, other)]
    assert sorted(sources[0]) == sorted(sources[1])
    assert other.name in links(path)
    assert path.name in links(other)


@pytest.mark.parametrize("path", ENGLISH, ids=lambda path: path.stem)
def test_a_chapter_has_a_command_and_is_short(path):
    assert any(kind in ("console", "python", "sh") for kind, _ in fences(path.read_text()))
    for each in (path, chinese(path)):
        assert len(each.read_text().splitlines()) <= 120


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path):
    assert [link for link in links(path) if not (path.parent / link).exists()] == []
