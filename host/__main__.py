"""``python -m gradweave.host`` is the command line."""

from .cli import main

main()
