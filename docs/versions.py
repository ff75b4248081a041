"""Put a built site beside those of other versions: ``python docs/versions.py SITE PAGES --ref REF --site ADDRESS``.

PAGES is a checkout of the branch that is served. Each version has a folder there, ``dev`` is the main branch, and the
top has a redirect to the newest release and ``switcher.json``, which the theme's list of versions reads.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path

REDIRECT = (
    '<!doctype html><meta http-equiv="refresh" content="0; url={0}/index.html">'
    '<a href="{0}/index.html">{0}</a>\n'
)


def folder_of(ref: str) -> str:
    """Return the folder of a branch or tag: 0.1 for every 0.1.x.

    >>> folder_of("refs/heads/main"), folder_of("refs/tags/v0.1.2"), folder_of("refs/tags/v1.0.0rc1")
    ('dev', '0.1', '1.0')
    """
    found = re.fullmatch(r"refs/tags/v(\d+\.\d+)\..*", ref)
    return found[1] if found else "dev"


def releases(pages: Path) -> list[str]:
    """Return the folders of releases, newest first."""
    found = [
        path.name
        for path in pages.iterdir()
        if re.fullmatch(r"\d+\.\d+", path.name)
    ]
    return sorted(
        found,
        key=lambda name: [int(part) for part in name.split(".")],
        reverse=True,
    )


def switcher(names: list[str], site: str) -> list[dict[str, object]]:
    """Return the entries of the list of versions; the first release is the preferred one."""
    entries: list[dict[str, object]] = [
        {"name": name, "version": name, "url": f"{site}/{name}/"}
        for name in names
    ]
    entries[0]["preferred"] = True
    return entries


def place(built: Path, pages: Path, ref: str, site: str) -> None:
    """Copy the site into its folder, and write the redirect and the list of versions again."""
    target = pages / folder_of(ref)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(built, target)
    names = [*releases(pages), *(["dev"] if (pages / "dev").exists() else [])]
    (pages / "switcher.json").write_text(
        json.dumps(switcher(names, site), indent=1) + "\n", encoding="utf-8"
    )
    (pages / "index.html").write_text(
        REDIRECT.format(names[0]), encoding="utf-8"
    )
    (pages / ".nojekyll").touch()


def main() -> None:
    """Read the arguments; ``--folder`` only prints the folder of a branch or tag."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("built", type=Path, nargs="?")
    parser.add_argument("pages", type=Path, nargs="?")
    parser.add_argument("--ref", required=True)
    parser.add_argument("--site", default="")
    parser.add_argument("--folder", action="store_true")
    given = parser.parse_args()
    if given.folder:
        print(folder_of(given.ref))
    else:
        place(given.built, given.pages, given.ref, given.site.rstrip("/"))


if __name__ == "__main__":
    main()
