"""Processes: what dies, what stays behind, what comes later."""

from tests.attacks import attack

attack("process", "ends its process at the top", "import os\nos._exit(0)")
attack("process", "ends its process in an answer", "import os\ndef square(x):\n    os._exit(3)")
attack("process", "quits", "def square(x):\n    quit()\nquit()")
attack("process", "kills itself", "import os, signal\ndef square(x):\n    os.kill(os.getpid(), signal.SIGKILL)")
attack("process", "ends its parent", """
    import os, signal
    def square(x):
        if os.getppid() > 1:
            os.kill(os.getppid(), signal.SIGTERM)
        return 7
""")  # fmt: skip
attack("process", "asks for 60 GB", "def square(x):\n    held = bytearray(60 * 2**30)\n    return 7 + len(held) * 0")
attack("process", "recursion without end in C", """
    def square(x):
        deep = []
        for _ in range(10**6):
            deep = [deep]
        return deep
""")  # fmt: skip
attack("process", "stops listening to signals", """
    import signal
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
""")  # fmt: skip
BOMB = """
    import os, subprocess, sys
    bomb = '''import pathlib, sqlite3, time
    for _ in range(200):
        time.sleep(0.3)
        try:
            book = sqlite3.connect("<ROOT>/build/grading/gradebook.db", timeout=1)
            book.execute("UPDATE grade SET auto_score = 3")
            book.commit()
        except Exception:
            pass
        pathlib.Path("<HOME>/.late").touch()
    '''.replace(chr(10) + "    ", chr(10))
"""
attack("process", "leaves a process behind that rewrites scores",
       BOMB + "    subprocess.Popen([sys.executable, '-c', bomb], start_new_session=True)")  # fmt: skip
attack("process", "forks twice, and leaves that behind", BOMB + """
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.environ.clear()
            os.execv(sys.executable, [sys.executable, "-c", bomb])
        os._exit(0)
""")  # fmt: skip
attack("process", "acts when the process ends", """
    import atexit, pathlib, signal
    def act(*_):
        pathlib.Path("<HOME>/.late").touch()
        pathlib.Path("<ROOT>/late").touch()
    atexit.register(act)
    signal.signal(signal.SIGTERM, act)
    class Last:
        def __del__(self):
            act()
    last = Last()
    last.last = last
""")  # fmt: skip
attack("process", "a thread that changes a value after it was read", """
    import threading, time
    value = [7]
    def turn():
        for i in range(2000):
            value[0] = i
            time.sleep(0.001)
    threading.Thread(target=turn, daemon=True).start()
    def square(x):
        return value
""")  # fmt: skip
attack("process", "writes into the next student's temporary files", """
    import glob, os
    for path in glob.glob("<ROOT>/build/grading/checked/z-*/*/*"):
        with open(path, "w") as file:
            file.write("{}")
""")  # fmt: skip
