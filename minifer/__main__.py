"""`python -m minifer` is the command `minifer`."""

import sys

from minifer.apps.cli import main

if __name__ == "__main__":
    sys.exit(main())
