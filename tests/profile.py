"""How much the tests try: more with ``GLIDEMQ_TEST_PROFILE=long``."""

from __future__ import annotations

import os
from typing import Final

IS_LONG: Final = os.environ.get("GLIDEMQ_TEST_PROFILE") == "long"
