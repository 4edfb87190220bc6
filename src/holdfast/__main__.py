"""`python -m holdfast` is `holdfast`."""

import os
import sys
from pathlib import Path

# For -m Python puts the working folder first on sys.path. It may be a folder of somebody's data, so a file `json.py` in it must not be
# what holdfast imports. `package.module:factory` finds the working folder by itself.
home = Path(__file__).resolve().parents[1]
if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]) and home != Path.cwd().resolve():
    del sys.path[0]

from holdfast.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
