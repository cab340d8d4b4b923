"""Writes what is generated in the documents: the README's catalogue and picture, docs/registers.md.

Run it as ``.venv/bin/python scripts/docs.py`` after a change of layers, registers or planner.
``tests/test_readme.py`` tells when that was forgotten.
"""

from pathlib import Path

from gradweave.host.catalogue import replace_catalogue
from gradweave.host.commands import Compiling
from gradweave.host.register_docs import general_page
from gradweave.host.report import pipeline_picture
from gradweave.host.subjects import load_subject

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Write all of them."""
    plan = Compiling(32, "delayed", "sim", None, 0).design(load_subject("digits")).plan
    pipeline_picture(plan, ROOT / "docs" / "pipeline.png")
    (ROOT / "docs" / "registers.md").write_text(general_page(plan))
    readme = ROOT / "README.md"
    readme.write_text(replace_catalogue(readme.read_text()))


if __name__ == "__main__":
    main()
