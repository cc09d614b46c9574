"""``python -m glidemq_orchestrate``."""

from glidemq_orchestrate.cli import main

main()
