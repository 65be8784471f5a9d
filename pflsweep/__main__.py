"""Run `python -m pflsweep`: the command, of this Python."""

import sys

from pflsweep.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
