"""`python -m gputop_llm` is the same as the `gputop-llm` command."""

import sys

from gputop_llm.cli import main

if __name__ == "__main__":
    sys.exit(main())
