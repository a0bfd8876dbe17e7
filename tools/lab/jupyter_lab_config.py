"""JupyterLab as students get it from `make lab`: work/ alone, opened at the map, without news and nbgrader's panes.

The folder of this file has the rest: overrides.json (settings), page_config.json (what is switched off). Nothing is
installed, and nothing written into the home folder but what JupyterLab itself keeps there. Whoever grades starts
`make formgrader` instead.
"""

import platform
from pathlib import Path

course = Path(__file__).resolve().parent.parent.parent

c = get_config()  # noqa: F821  (JupyterLab puts it there)
c.ServerApp.root_dir = str(course / "work")
c.LabApp.default_url = "/lab/tree/index.ipynb"
c.LabApp.app_settings_dir = str(Path(__file__).resolve().parent)
c.LabApp.workspaces_dir = str(course / "work" / ".jupyter" / "workspaces")  # another project's tabs do not open here
for page in ("formgrader", "validate_assignment", "assignment_list", "course_list"):
    c.ServerApp.jpserver_extensions.update({f"nbgrader.server_extensions.{page}": False})

c.Application.log_level = "WARN"  # the address, and no more
# A browser of Windows cannot read the file in WSL through which Jupyter opens it.
c.ServerApp.use_redirect_file = "microsoft" not in platform.release().lower()
