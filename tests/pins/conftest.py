"""Tools are no part of the package: the checkout has to be on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
