"""Every link between the pages of the project leads to a file and a heading that exist."""

import re
from pathlib import Path

import pytest
from doc_pages import DOCS

ROOT = DOCS.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*/*.md")), *sorted(ROOT.glob("examples/*/*.md"))]


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_each_page_in_one_language_is_there_in_the_other() -> None:
    english, chinese = (
        sorted(path.name for path in (DOCS / language).iterdir()) for language in ("en", "zh")
    )
    assert english == chinese


@pytest.mark.parametrize(("readme", "language"), [("README.md", "en"), ("README_zh.md", "zh")])
def test_the_readme_names_every_page(readme: str, language: str) -> None:
    pages = {f"docs/{language}/{path.name}" for path in (DOCS / language).iterdir()}
    assert pages <= {link.partition("#")[0] for link in links(ROOT / readme)}
