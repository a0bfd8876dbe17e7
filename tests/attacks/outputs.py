"""Outputs: what is huge, and what acts where it is shown."""

from nbformat.v4 import new_markdown_cell

from tests.attacks import attack

attack("outputs", "a script in the feedback", """
    from IPython.display import HTML, Javascript, display
    display(HTML("<script>alert('attack-script')</script><img src=x onerror=alert('attack-script')>"))
    display(Javascript("alert('attack-script')"))
    print("</pre><script>alert('attack-script')</script>")
""")  # fmt: skip
attack("outputs", "a script in a word of an error", """
    def square(x):
        raise ValueError("</pre><script>alert('attack-script')</script>")
""")  # fmt: skip
attack("outputs", "escapes for the terminal", """
    print("\\x1b[2J\\x1b]0;title\\x07\\x1b[31mred\\x1b[8m hidden", "\\r" * 50, "\\x08" * 50)
    def square(x):
        raise ValueError("\\x1b[2J\\x1b]0;attack\\x07")
""")  # fmt: skip
attack("outputs", "100 MB of output", "for _ in range(100):\n    print('x' * 2**20)")
attack("outputs", "an answer of 400 MB", "def square(x):\n    return [7] * 50_000_000")
attack("outputs", "a number of a million digits", "def square(x):\n    return 10 ** 1_000_000")
attack("outputs", "text that is no text", "def square(x):\n    return '\\ud800' * 3")
attack(
    "outputs", "a name that is a formula", "print('=HYPERLINK(1)')\ndef square(x):\n    raise ValueError('=1+1,\\n\"x')"
)


def script_in_markdown(notebook):
    notebook.cells.append(new_markdown_cell("<script>alert('attack-script')</script>\n\n[x](javascript:alert(1))"))


attack("outputs", "a script in its own text", change=script_in_markdown)
