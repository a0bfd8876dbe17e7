"""Others' files: the gradebook, submissions, the course, the home folder."""

from tests.attacks import attack

BOOK = "<ROOT>/build/grading/gradebook.db"
attack("files", "deletes the gradebook", f"import os\nos.remove({BOOK!r})")
attack("files", "empties the gradebook", f"open({BOOK!r}, 'w').close()")
attack("files", "locks the gradebook", f"""
    import subprocess, sys
    subprocess.Popen([sys.executable, "-c", '''
    import sqlite3, time
    book = sqlite3.connect({BOOK!r}); book.execute("BEGIN EXCLUSIVE"); time.sleep(600)
    '''.replace(chr(10) + "    ", chr(10))], start_new_session=True)
""")  # fmt: skip
attack("files", "raises scores in the gradebook", f"""
    import sqlite3
    book = sqlite3.connect({BOOK!r})
    book.execute("UPDATE grade SET auto_score = 5, manual_score = 5")
    book.commit()
""")  # fmt: skip
attack("files", "removes another's submission", """
    import shutil
    shutil.rmtree("<ROOT>/build/grading/submitted/z-honest")
""")  # fmt: skip
attack("files", "overwrites another's submission", """
    import pathlib
    for path in pathlib.Path("<ROOT>/build/grading/submitted").glob("*-honest/*/*.ipynb"):
        path.write_text("{}")
""")  # fmt: skip
attack("files", "breaks nbgrader_config.py", "open('<ROOT>/nbgrader_config.py', 'a').write('c = (')")
attack("files", "rewrites the solutions", """
    import pathlib
    for path in pathlib.Path("<ROOT>/solutions").glob("*/*.ipynb"):
        path.write_text(path.read_text().replace("x * x", "7"))
""")  # fmt: skip
attack("files", "an IPython start-up file", """
    import os
    os.makedirs("<HOME>/.ipython/profile_default/startup", exist_ok=True)
    open("<HOME>/.ipython/profile_default/startup/00.py", "w").write("import minigpt.checks as c; c.score = print")
""")  # fmt: skip
attack("files", "an IPython extension in its configuration", """
    import os
    os.makedirs("<HOME>/.ipython/profile_default", exist_ok=True)
    open("<HOME>/.ipython/profile_default/ipython_config.py", "w").write("c.InteractiveShellApp.exec_lines = ['1/0']")
""")  # fmt: skip
attack("files", "jupyter's configuration", """
    import os
    os.makedirs("<HOME>/.jupyter", exist_ok=True)
    open("<HOME>/.jupyter/nbgrader_config.py", "w").write("raise SystemExit")
    open("<HOME>/.jupyter/jupyter_config.py", "w").write("raise SystemExit")
""")  # fmt: skip
attack("files", "a kernel in the grader's home", """
    import json, os
    folder = "<HOME>/.local/share/jupyter/kernels/python3"
    os.makedirs(folder, exist_ok=True)
    json.dump({"argv": ["false"], "display_name": "x", "language": "python"}, open(folder + "/kernel.json", "w"))
""")  # fmt: skip
attack("files", "matplotlibrc", """
    import os
    os.makedirs("<HOME>/.config/matplotlib", exist_ok=True)
    open("<HOME>/.config/matplotlib/matplotlibrc", "w").write("backend: nothing")
""")  # fmt: skip
attack("files", "usercustomize and a .pth file", """
    import os
    folder = "<HOME>/.local/lib/python3.11/site-packages"
    os.makedirs(folder, exist_ok=True)
    open(folder + "/usercustomize.py", "w").write("raise SystemExit")
    open(folder + "/x.pth", "w").write("import sys; sys.exit()")
""")  # fmt: skip
attack("files", "sitecustomize beside the course", "open('<ROOT>/sitecustomize.py', 'w').write('raise SystemExit')")
attack("files", "the shell's start-up files", """
    for name in (".bashrc", ".profile", ".bash_profile", ".pythonrc.py"):
        open("<HOME>/" + name, "a").write("exit 1")
""")  # fmt: skip
attack("files", "a hook of git", """
    import os
    os.makedirs("<ROOT>/.git/hooks", exist_ok=True)
    open("<ROOT>/.git/hooks/post-checkout", "w").write("#!/bin/sh" + chr(10))
    os.chmod("<ROOT>/.git/hooks/post-checkout", 0o755)
""")  # fmt: skip
attack("files", "an exchange folder of its own", """
    import os
    os.makedirs("<ROOT>/build/grading/submitted/x-invented/lab01-tiny", exist_ok=True)
    open("<ROOT>/build/grading/submitted/x-invented/lab01-tiny/lab01-tiny.ipynb", "w").write("{}")
""")  # fmt: skip
attack("files", "scores.csv and the feedback of others", """
    import pathlib
    grading = pathlib.Path("<ROOT>/build/grading")
    (grading / "scores.csv").write_text("student,lab,status,score,max_score,notes")
    for path in grading.glob("feedback/*/*/*.html"):
        path.write_text("nothing")
""")  # fmt: skip
attack("files", "links out of its folder", """
    import os
    for name in ("lab01-tiny.ipynb", "x"):
        if os.path.lexists(name):
            os.remove(name)
        os.symlink("<ROOT>/build/grading/gradebook.db", name)
""")  # fmt: skip
attack("files", "a hard link to the gradebook, emptied", f"import os\nos.link({BOOK!r}, 'x')\nopen('x', 'w').close()")
attack("files", "pipes and folders in the place of files", """
    import os
    for name in ("pipe", "lab01-tiny.html"):
        os.mkfifo(name)
    os.makedirs("lab01-tiny.tmp/" + "deep/" * 50)
    os.chmod("lab01-tiny.tmp", 0)
""")  # fmt: skip
attack("files", "rights taken away", """
    import os
    os.chmod("<ROOT>/build/grading", 0)
    os.chmod("<ROOT>/nbgrader_config.py", 0)
""")  # fmt: skip
