"""``python -m fuzz``; see ``deep``."""

import sys

from fuzz.deep import main

if __name__ == "__main__":
    sys.exit(main())
