"""nbgrader's settings, read by `nbgrader ...` in this folder, by JupyterLab's nbgrader pages, and by tools/.

solutions/ is nbgrader's source, labs/ its release; whatever grading makes lies under build/grading.
"""

import sys
from pathlib import Path

from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade

course = Path(__file__).resolve().parent
grading = Path("build") / "grading"

c = get_config()  # noqa: F821  (nbgrader puts it there)
c.CourseDirectory.root = str(course)  # the default is wherever the command was typed
c.CourseDirectory.course_id = "memory-ledger"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "labs"
c.CourseDirectory.submitted_directory = str(grading / "submitted")
c.CourseDirectory.autograded_directory = str(grading / "autograded")
c.CourseDirectory.feedback_directory = str(grading / "feedback")
c.CourseDirectory.db_url = f"sqlite:///{course / grading / 'gradebook.db'}"
c.CourseDirectory.ignore = [".ipynb_checkpoints", "__pycache__", "*.pyc", "*.safetensors", "build", "*.bank.py"]

c.ExecutePreprocessor.timeout = 600  # seconds a cell; nbgrader's 30 is too short for training
sys.path.append(str(course))  # where tools/ is, for JupyterLab's nbgrader pages
c.GenerateFeedback.exporter_class = "tools.grading.feedback.FeedbackExporter"
c.HTMLExporter.preprocessors = ["tools.grading.clean.Harmless"]  # formgrader shows what students wrote
c.HTMLExporter.filters = {"markdown2html": "tools.grading.clean.markdown"}
c.OverwriteCells.add_missing_cells = True  # a deleted check comes back and is graded


class VerdictAlone(NbGraderPreprocessor):
    """Leaves the verdict alone in a check cell: an error, or else the smallest number that stands there as its result.

    By itself nbgrader takes a warning or a progress bar for a failure, and the first value that an answer displays for
    its points, even where an error follows. What was written to stderr stays on the feedback page, as plain output.
    """

    def preprocess_cell(self, cell, resources, index):
        if cell.cell_type == "code" and is_grade(cell):
            failed = any(output.output_type == "error" for output in cell.outputs)
            results = [output for output in cell.outputs if output.output_type == "execute_result"]
            numbers = [output for output in results if _points(output) is not None]
            cell.outputs = [output for output in cell.outputs if output.output_type != "execute_result"]
            if numbers and not failed:
                cell.outputs.append(min(numbers, key=_points))
            for output in cell.outputs:
                if output.output_type == "stream":
                    output.name = "stdout"
        return cell, resources


def _points(output):
    """The number that a cell gives as its result, or None."""
    try:
        points = float(output.data.get("text/plain", ""))
    except ValueError:
        return None
    return points if 0 <= points < float("inf") else None


c.Autograde.autograde_preprocessors.insert(1, VerdictAlone)  # right after Execute

(course / grading).mkdir(parents=True, exist_ok=True)  # sqlite makes a file, never a folder
