"""nbgrader's settings, read by `nbgrader ...` in this folder, by JupyterLab's nbgrader pages, and by tools/.

solutions/ is nbgrader's source, labs/ its release; whatever grading makes lies under build/grading.
"""

from pathlib import Path

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
c.OverwriteCells.add_missing_cells = True  # a deleted check comes back and is graded
# Anything on stderr costs a check all its points, so what torch prints about the machine is dropped.
c.IgnorePattern.enabled = True
c.IgnorePattern.pattern = r"NNPACK|Could not initialize|HF_TOKEN"

(course / grading).mkdir(parents=True, exist_ok=True)  # sqlite makes a file, never a folder
