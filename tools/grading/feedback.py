"""The page that a student gets: each exercise by its name, its points, and what the check said; then the notebook.

It can be handed out at once: hidden tests and mark schemes are left out, unless they are asked for; a message stands in
the place of a traceback, which would quote the test. It fetches nothing, its formulas are drawn, and nothing in it
runs (clean.py). Comments that were written in formgrader stand below their answers.
"""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path

from nbformat import NotebookNode
from nbgrader.apps import NbGraderAPI
from nbgrader.utils import is_grade, is_solution, is_task
from traitlets import Bool, List, Unicode

from tools.grade_one import last_error, settings
from tools.grading import clean
from tools.grading.gradebook import verdict, waiting
from tools.notebook_html import OfflineExporter, join_streams, offline, unmarked, without

STYLE = """
div.cell, div.inner_cell, div.nbgrader_cell, div.output_subarea, div.text_cell_render { min-width: 0; max-width: 100%; }
div.output_area pre, div.input_area pre { white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; }
div.prompt { min-width: 12ex; }
a.anchor-link { display: none; }
div.nbgrader_cell .panel-heading { height: auto; min-height: 37px; }
#toc table { width: 100%; }
#toc :is(td, th) { padding: .3rem .6rem; vertical-align: top; border-top: 1px solid #dde2e7; text-align: left; }
#toc td:nth-child(2) { white-space: nowrap; }
#toc td:last-child { white-space: pre-wrap; overflow-wrap: anywhere; }
"""
SCHEME = re.compile(r"### BEGIN MARK SCHEME\n(.*?)\n### END MARK SCHEME", re.S)


def write(root: Path, student: str, lab: str, hidden: bool = False) -> str | None:
    """Write the page of a submission that was graded. Returns what went wrong in a sentence, or None."""
    config = settings(root)
    config.FeedbackExporter.hidden, config.FeedbackExporter.waiting = hidden, waiting(root, student, lab)
    answer = NbGraderAPI(config=config).generate_feedback(lab, student, force=True)
    print(answer.get("log", ""), answer.get("error", ""), file=sys.stderr)
    return None if answer["success"] else f"graded, but without feedback: {last_error(answer.get('log', ''))}"


def readable(source: str, hidden: bool) -> str:
    """A cell's text without nbgrader's marks. A mark scheme that stays is folded under a heading for students."""
    if not hidden:
        return unmarked(without(without(source, "HIDDEN TESTS"), "MARK SCHEME"))
    return unmarked(SCHEME.sub(r"<details>\n<summary>How it is graded</summary>\n\n\1\n\n</details>", source))


def said_alone(cell: NotebookNode) -> None:
    """Of a check's errors the sentence alone: a traceback quotes the check, hidden tests and all."""
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            output.traceback = [line for line in (verdict({"outputs": [output]})[1] or output.ename).splitlines()]


class FeedbackExporter(OfflineExporter):
    """Named in nbgrader_config.py, so that nbgrader's own pages make the same as `make grade`."""

    hidden = Bool(False, help="whether hidden tests and mark schemes stay").tag(config=True)
    waiting = List(Unicode(), help="exercises that a person is still to grade").tag(config=True)

    def default_filters(self):
        yield from super().default_filters()
        yield "markdown2html", clean.markdown

    def _preprocess(self, nb, resources):
        """After nbgrader has put in scores and comments, and before the template prints anything."""
        nb, resources = super()._preprocess(nb, resources)
        self.rows, part = [], ""
        for cell in nb.cells:
            join_streams(cell)
            if cell.cell_type == "markdown" and ("nbgrader" not in cell.metadata or is_task(cell)):
                headings = re.findall(r"^#{1,3} (.+)$", readable(cell.source, hidden=False), re.M)
                part = headings[-1] if headings else part
            graded = is_grade(cell) or is_task(cell)
            if graded and not is_solution(cell):
                said_alone(cell)
            if graded:
                self.rows.append((cell.metadata.nbgrader, part, verdict(cell)[1]))
            cell.source = readable(cell.source, self.hidden)
            clean.harmless(cell)
        return nb, resources

    def from_notebook_node(self, nb, resources=None, **options):
        nb = copy.copy(nb)
        nb.metadata = NotebookNode()  # of which a title or a language would come into the page
        page, resources = super().from_notebook_node(nb, resources, **options)
        soup = offline(page)
        policy = soup.new_tag("meta", attrs={"http-equiv": "Content-Security-Policy", "content": clean.POLICY})
        soup("head")[0].insert(0, policy)
        for place in soup.select("#toc"):
            place.clear()
            place.append(self._table(soup))
        for link in soup.find_all("a", href=lambda href: href and not str(href).startswith(("#", "http", "mailto:"))):
            link.unwrap()  # a file of the course, which does not lie beside this page
        style = soup.new_tag("style")
        style.string = STYLE
        soup("head")[0].append(style)
        return str(soup), resources

    def _table(self, soup):
        """A row for each exercise: its name, with a link to it, its points, what was said of it."""
        table = soup.new_tag("table")
        for names in [("Exercise", "Points", "What the check said")]:
            table.append(row := soup.new_tag("tr"))
            for name in names:
                row.append(cell := soup.new_tag("th"))
                cell.string = name
        for graded, part, said in self.rows:
            table.append(row := soup.new_tag("tr"))
            for _ in range(3):
                row.append(soup.new_tag("td"))
            name, points, words = row("td")
            name.append(link := soup.new_tag("a", href=f"#{graded.grade_id}"))
            link.string = graded.grade_id
            if part:
                name.append(f" ({part})")
            waits = graded.grade_id in self.waiting
            score = "\u2013" if waits or graded.get("score") is None else f"{graded.score:g}"
            points.string = f"{score} of {graded.points:g}"
            words.string = said or ("not graded yet: a person reads it" if waits else "")
            if comment := graded.get("comment"):
                words.append(f"\n{comment}" if said else str(comment))
        return table
