"""nbgrader's feedback page, as the report's pages are: it fetches nothing, and its formulas are drawn.

Each check in the list on top has its name, a long message breaks instead of being cut, and nbgrader's marks go. Hidden
tests and mark schemes stay, the latter folded: the page is for after the deadline.
"""

from __future__ import annotations

import copy
import re

from tools.notebook_html import OfflineExporter, join_streams, offline, unmarked

STYLE = """
div.cell, div.inner_cell, div.nbgrader_cell, div.output_subarea, div.text_cell_render { min-width: 0; max-width: 100%; }
div.output_area pre, div.input_area pre { white-space: pre-wrap; overflow-wrap: anywhere; }
div.prompt { min-width: 12ex; }
a.anchor-link { display: none; }
div.nbgrader_cell .panel-heading { height: auto; min-height: 37px; }
"""
SCHEME = re.compile(r"### BEGIN MARK SCHEME\n(.*?)\n### END MARK SCHEME", re.S)


def readable(source: str) -> str:
    """A cell's text without nbgrader's marks, its mark scheme folded under a heading for students."""
    return unmarked(SCHEME.sub(r"<details>\n<summary>How it is graded</summary>\n\n\1\n\n</details>", source))


class FeedbackExporter(OfflineExporter):
    """Named in nbgrader_config.py, so that nbgrader's own pages make the same as `make grade`."""

    def from_notebook_node(self, nb, resources=None, **options):
        nb = copy.deepcopy(nb)
        for cell in nb.cells:
            join_streams(cell)
            cell.source = readable(cell.source)
        page, resources = super().from_notebook_node(nb, resources, **options)
        soup = offline(page)
        for link in soup.select("#toc a"):
            name = str(link["href"]).removeprefix("#")
            link.string = f"Comment on {name.removeprefix('comment-')}" if name.startswith("comment-") else name
        for link in soup.find_all("a", href=lambda href: href and not str(href).startswith(("#", "http"))):
            link.unwrap()  # a file of the course, which does not lie beside this page
        style = soup.new_tag("style")
        style.string = STYLE
        soup("head")[0].append(style)
        return str(soup), resources
