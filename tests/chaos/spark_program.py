"""The program of the ``spark.submit`` steps of a round."""

from __future__ import annotations

import sys

from tests.chaos.spark_steps import main

main(sys.argv[1:])
