"""What the site changes in the documents: pages and pictures from outside of docs/, links to both, and tables."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:)([^)#]+)(#[^)]*)?\)")
CODE = re.compile(r"`[^`\n]+`")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the project's root, and the pictures of the results."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    for picture in (ROOT / "results").rglob("*.png"):
        files.append(File.generated(config, picture.relative_to(ROOT).as_posix(), abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links from the root of the project to the site; of what is not on the site, leave the words.

    In tables, code has no backslash before a bar: elsewhere it is needed there, and here it would be shown.
    """
    home = {page: name for name, page in PAGES.items()}
    here = ROOT / home[page.file.src_uri] if page.file.src_uri in home else ROOT / "docs" / page.file.src_uri
    depth = page.file.src_uri.count("/")

    def moved(link: re.Match[str]) -> str:
        image, words, target, section = link[1], link[2], link[3], link[4] or ""
        path = (here.parent / target).resolve()
        name = path.relative_to(ROOT).as_posix()
        place = PAGES.get(name, name.removeprefix("docs/"))
        if files.get_file_from_path(place) is None:
            return words if path.exists() else link[0]
        return f"{image}[{words}]({'../' * depth}{place}{section})"

    bare = CODE.sub(lambda code: code[0].replace("\\|", "|"), markdown)
    return LINK.sub(moved, bare)
