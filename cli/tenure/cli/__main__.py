"""``python -m tenure.cli``: the command, for an interpreter without the script on its path."""

from tenure.cli.main import main

main()
