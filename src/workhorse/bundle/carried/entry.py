# -*- coding: utf-8 -*-
"""`python3 install.py` and `python3 verify.py` of a bundle: this file under two names.

Plain enough for any Python to read, so that one that is too old can be told so.
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - it is the system's Python that reads this
    sys.stderr.write(
        "workhorse: Python 3.11 or newer is needed; this is %d.%d. "  # noqa: UP031
        "(需要 Python 3.11 或更新版本)\n"
        "  -> Use a newer one if it is here: ls /usr/bin/python3*\n" % sys.version_info[:2]
    )
    sys.exit(3)
sys.dont_write_bytecode = True  # what is not in the manifest does not belong here
# Last, so that nothing that lies beside this file is taken for a part of Python.
sys.path = [*sys.path[1:], os.path.dirname(os.path.abspath(__file__))]

from carried.main import run_install, run_verify  # type: ignore[import-not-found] # noqa: E402

run = run_verify if os.path.basename(__file__) == "verify.py" else run_install
sys.exit(run(sys.argv[1:]))
