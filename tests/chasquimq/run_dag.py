"""Runs the DAG ``small`` of a folder, and prints the states of its tasks as JSON. As a program: FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.providers.airflow.task_groups.run_group import parsed

if __name__ == "__main__":
    run = parsed(Path(sys.argv[1])).test()
    tasks = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    sys.stdout.write(json.dumps(tasks) + "\n")
