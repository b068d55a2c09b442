"""Build the manual as a site, strictly: `make site`. The functions `on_…` are hooks that MkDocs calls."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
SITE = CHECKOUT / "build/site"
# Addresses that a browser fetches by itself, and not because somebody follows a link.
_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|audio|video|embed)\b[^>]*\ssrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\srel=["']?(?:stylesheet|icon|preload|preconnect|modulepreload))[^>]*\shref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|(?:url\(|@import\s)["']?((?:https?:)?//[^"'\s)]+)"""
)

_OUTSIDE = re.compile(r"\]\(((?:\.\./)+(?:examples|tools)/[^)#]+)\)")


def main() -> int:
    """Build the site in an environment of its own, then check that it loads nothing from another place."""
    from environment import environment_of

    line = [environment_of("site") / "bin/python", "-I", "-m", "mkdocs", "build", "--strict", "--clean"]
    # MkDocs warns that version 2 will be another program; requirements/site.in stays below it.
    status = subprocess.run(line, cwd=CHECKOUT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=False).returncode
    if status:
        return 1
    fetched = list(from_elsewhere(SITE))
    print("\n".join(fetched) or f"{SITE}/index.html")
    return 1 if fetched else 0


def from_elsewhere(site: Path) -> Iterator[str]:
    """Yield what the pages and style sheets of a site make a browser fetch from another place."""
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            for match in _FETCHED.finditer(path.read_text()):
                yield f"{path.relative_to(site)} loads {next(filter(None, match.groups()))}"


def on_files(files: Any, config: Any) -> Any:
    """Add files from outside docs/ to the site: the changelog, and files of the checkout that a page links to."""
    from mkdocs.structure.files import File

    pages = [Path(page.abs_src_path) for page in files.documentation_pages()]
    linked = {(page.parent / match[1]).resolve() for page in pages for match in _OUTSIDE.finditer(page.read_text())}
    for path in sorted(linked):
        files.append(File.generated(config, f"source/{path.relative_to(CHECKOUT)}", abs_src_path=str(path)))
    files.append(File.generated(config, "changelog.md", abs_src_path=str(CHECKOUT / "CHANGELOG.md")))
    return files


def on_page_markdown(markdown: str, page: Any, **_unused: Any) -> str:
    """Change links to files outside docs/, so that they lead to the same files in the site."""
    if page.file.src_uri == "changelog.md":
        return markdown.replace("](docs/", "](")
    above = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"]({above}../CHANGELOG.md", f"]({above}changelog.md").replace(
        f"]({above}../", f"]({above}source/"
    )


if __name__ == "__main__":
    sys.exit(main())
