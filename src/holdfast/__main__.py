"""`python -m holdfast` is `holdfast`."""

import os
import sys
from pathlib import Path

# With -m Python puts the working folder first on sys.path. It may hold somebody else's data, so a file
# `json.py` in it must not be imported by holdfast. `package.module:factory` adds the working folder by
# itself.
home = Path(__file__).resolve().parents[1]
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]) and home != Path.cwd().resolve():
    del sys.path[0]

from holdfast.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
