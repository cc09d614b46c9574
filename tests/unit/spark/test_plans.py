"""What plans of Spark name as read and written; their texts are those of Spark 4."""

from __future__ import annotations

import pytest

from glidemq_orchestrate.spark.sessions.progress import is_shortened, lineage_of

WRITE = """\
(10) Execute InsertIntoHadoopFsRelationCommand
Input [3]: [id#11L, k#12, _c0#15]
Arguments: {path}, false, [k#12], JSON, [path=/tmp/out dir], Overwrite, [id, k, _c0]

(11) WriteFiles
Arguments: [k#1L ASC NULLS FIRST], false, 0
"""
SCAN = """\
(1) Scan parquet spark_catalog.default.t
Output [2]: [id#3L, k#4]
Batched: true
Location: InMemoryFileIndex [{paths}]
ReadSchema: struct<id:bigint>
"""

SCANS: list[tuple[str, list[str]]] = [
    ("file:/data/raw", ["/data/raw"]),
    ("file:/data/a, b, s3a://lake/b", ["/data/a, b", "s3a://lake/b"]),
    ("hdfs://n:8020/m0, ... 11 entries", ["hdfs://n:8020/m0"]),
    ("file:/data/c/part-00000-e85071e6-c000.csv", ["/data/c"]),
    ("file:/lake/t/attempts/1795608250123-4f0c1a2b3c4d/day=1", ["/lake/t"]),
    ("s3a://key:hunter2@lake/raw", ["s3a://lake/raw"]),
    ("abfss://raw@lake.example.net/x", ["abfss://raw@lake.example.net/x"]),
    ("file:/", ["/"]),
]

GRAPH_NODES: list[tuple[str, list[str] | None]] = [
    ("]", ["/m 0", "/m1", "/m2"]),
    ("...", ["/m 0", "/m1"]),
    (", ... 5 entries]", None),
]


def test_a_scan_names_its_folders(subtests: pytest.Subtests) -> None:
    for paths, told in SCANS:
        with subtests.test(paths=paths):
            assert lineage_of([SCAN.format(paths=paths)]) == {"inputs": told}


NODE = """\
FileScan parquet [id#3L] Batched: true, DataFilters: [(id#3L > 1)], Format: Parquet, Location: \
InMemoryFileIndex(4 paths)[{paths}{end}, PartitionFilters: [], PushedFilters: [IsNotNull(id)], End: x"""


def test_a_node_of_the_graph_names_all_folders_of_a_scan(subtests: pytest.Subtests) -> None:
    """Where Spark cuts the list, the last of them is not whole."""
    for end, told in GRAPH_NODES:
        with subtests.test(end=end):
            plan = SCAN.format(paths="file:/m 0, ... 3 entries")
            assert is_shortened(plan)
            assert not is_shortened(SCAN.format(paths="file:/m 0"))
            node = NODE.format(paths="file:/m 0, file:/m1, file:/m2", end=end)
            assert lineage_of([plan, node]) == {"inputs": told or ["/m 0", "/m1", "/m2"]}


def test_a_write_names_its_folder_and_each_is_told_once() -> None:
    plan = WRITE.format(path="file:/tmp/out dir") + "\n" + SCAN.format(paths="file:/data/raw")
    assert lineage_of([plan, plan]) == {"inputs": ["/data/raw"], "outputs": ["/tmp/out dir"]}
    assert lineage_of([WRITE.format(path="s3a://lake/t/attempts/1-4f0c1a2b3c4d")]) == {
        "outputs": ["s3a://lake/t"]
    }


def test_a_plan_that_names_none_tells_nothing() -> None:
    assert lineage_of(["", "(1) Range\nArguments: Range (0, 10, step=1, splits=Some(1))\n"]) == {}
    many = [SCAN.format(paths=f"file:/data/{number}") for number in range(500)]
    assert len(lineage_of(many)["inputs"]) == 100  # type: ignore[arg-type]
