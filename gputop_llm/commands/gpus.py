"""`gputop-llm gpus`: what NVIDIA GPUs can do at most, from the program's own table."""

from __future__ import annotations

import json
from argparse import Namespace

from gputop_llm.commands import output
from gputop_llm.errors import ExitCode, NothingFound
from gputop_llm.gpus import all_specs, matching
from gputop_llm.report.gpus_text import as_dict, details, table


def run(arguments: Namespace) -> int:
    """Prints the table, or all figures of the GPUs of one name; returns the exit code.

    Raises:
        NothingFound: no GPU of the table is called so.
    """
    name = " ".join(arguments.name)
    specs = matching(name) if name else all_specs()
    if not specs:
        raise NothingFound(f"no GPU of the table is called '{name}'", todo="`gputop-llm gpus` lists them")
    if arguments.json:
        text = json.dumps([as_dict(spec) for spec in specs], indent=2)
    else:
        text = "\n\n".join(details(spec) for spec in specs) if name else table(specs)
    output.write_text(f"{text}\n")
    return ExitCode.OK
