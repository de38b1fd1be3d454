#!/bin/bash
# The script of a recipe: uses what the other parts of the recipe have installed.
set -eu
tree --version >"$OUTLAST_IMAGE/tree-version"
"$OUTLAST_IMAGE/user-venv/bin/python" -c 'import six; print(six.__version__)' >"$OUTLAST_IMAGE/six-version"
