#!/usr/bin/env bash
# Prints a Python 3.11 or newer that can make virtual environments: $1 if given, else the newest found. Of a Python in
# a virtual environment (an activated .venv), the one behind it: set-up may replace that environment.
fits='import sys; sys.exit(sys.version_info < (3, 11) or sys.version_info[:3] == (3, 14, 1))' # as pyproject.toml has it
makes_venv='import ensurepip, venv'
asked=${1:-python3}
[ -n "$1" ] || set -- python3.14 python3.13 python3.12 python3.11 python3 python
for python in "$@"; do
  "$python" -c "$fits" 2>/dev/null || continue
  "$python" -c "$makes_venv" 2>/dev/null && exec "$python" -c 'import sys; print(sys._base_executable)'
  without_venv=$python
done
if [ -n "$without_venv" ]; then
  echo "$without_venv cannot make a virtual environment: install its venv package (on Debian: python3-venv)." >&2
else
  version=$("$asked" --version 2>/dev/null) || version="not here"
  echo "Python 3.11 or newer (not 3.14.1) is needed; $asked is $version. Name another: make PYTHON=/path/to/python3.12" >&2
fi
exit 1
