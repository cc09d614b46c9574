"""Which data Spark has read and written, as the text of its plans tells it. Pure.

A plan, as the SQL page of Spark's UI shows it, names the folders of each scan and of each write. Of a scan of
several folders it names the first; the nodes of the graph on that page name them, as far as
``spark.sql.maxMetadataStringLength`` goes. What is read and written otherwise (JDBC, RDDs) is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from glidemq_orchestrate.wire.codec import Json

MAX: Final = 100
"""So many data sets of each side are told."""
_SCAN: Final = re.compile(r"^Location: \w+(?: ?\(\d+ paths\))? ?\[(.+)\]$", re.MULTILINE)
_NODE: Final = re.compile(r", Location: \w+\(\d+ paths\)\[(.+?)(\]|\.\.\.), PartitionFilters: ")
_WRITE: Final = re.compile(
    r"^\(\d+\) Execute InsertIntoHadoopFsRelationCommand\n(?:.+\n)*?Arguments: (.+?), (?:true|false), ",
    re.MULTILINE,
)
_NEXT: Final = re.compile(r", (?=\.\.\. \d+ entries$|[a-z][\w+.-]*:/)")
_MORE: Final = re.compile(r"\.\.\. \d+ entries")
_ATTEMPT: Final = re.compile(r"/attempts/\d{1,16}-[0-9a-f]{12}(?:/.*)?$")
_SECRET: Final = re.compile(r"(?<=://)[^/@]*:[^/@]*@")  # a key and its secret in a URI
_PART: Final = re.compile(r"/part-\d+-[^/]*$")


def is_short(plan: str) -> bool:
    """Whether a plan leaves out folders of a scan."""
    return any(_MORE.search(found) for found in _SCAN.findall(plan))


def lineage_of(plans: Iterable[str]) -> dict[str, Json]:
    """The inputs and outputs of plans, each once, as they are told in ``lineage``.

    Args:
        plans: Their texts, and those of nodes of their graphs.

    What was published is told by its location, not by the folder of the attempt.
    """
    inputs, outputs = dict[str, None](), dict[str, None]()
    for plan in plans:
        for paths in (*_of_nodes(plan), *map(_NEXT.split, _SCAN.findall(plan))):
            inputs.update((_dataset(path), None) for path in paths if not _MORE.fullmatch(path))
        outputs.update((_dataset(path), None) for path in _WRITE.findall(plan))
    sides = {"inputs": list(inputs)[:MAX], "outputs": list(outputs)[:MAX]}
    return {side: [*paths] for side, paths in sides.items() if paths}


def _of_nodes(plan: str) -> Iterator[list[str]]:
    """The paths of the scans in the text of a node; Spark cuts a long list somewhere."""
    for found, end in _NODE.findall(plan):
        paths = _NEXT.split(found)
        yield paths if end == "]" else paths[:-1]


def _dataset(path: str) -> str:
    path = _SECRET.sub("", re.sub(r"^file:/+", "/", path))
    return _ATTEMPT.sub("", _PART.sub("", path)).rstrip("/") or "/"
