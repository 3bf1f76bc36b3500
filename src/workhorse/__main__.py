"""`python -m workhorse` is the `workhorse` command."""

import sys

from workhorse.cli import main

if __name__ == "__main__":
    sys.exit(main())
