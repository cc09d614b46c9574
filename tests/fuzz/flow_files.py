"""Flow files: JSON and YAML that is nearly a flow, torn, hostile, or in another encoding."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import yaml
from hypothesis import strategies as st

from glidemq_orchestrate import FlowSpec, check_flow
from glidemq_orchestrate.errors import CodecError, ConfigurationError, CycleError, InvalidFlow
from tests.fuzz import odd
from tests.fuzz.damage import damaged
from tests.fuzz.entry import Entry, Target, outcome
from tests.fuzz.secret import ALL, NEVER, PAYLOAD
from tests.fuzz.violation import Violation

NAMES: Final = st.sampled_from(["a", "b", "c", "d"])
DATA: Final = st.sampled_from([PAYLOAD, {"token": PAYLOAD}, [PAYLOAD, 1], {"a": {"b": [PAYLOAD]}}])
OPTIONS: Final = st.fixed_dictionaries(
    {},
    optional={
        "attempts": st.integers(1, 9),
        "backoff": st.sampled_from([{"kind": "fixed", "delay": "PT1S"}, {"delay": 5, "jitter": 0.5}]),
        "timeout": st.sampled_from([30, "PT5M", 1.5]),
        "priority": st.integers(0, 2048),
        "ttl": st.just(60),
        "ordering": st.sampled_from([{"key": "k"}, {"key": "k", "rate_limit": {"max": 1, "per": 1}}]),
        "cost": st.just(2.5),
        "lease": st.just("PT1M"),
        "remove_on_complete": st.sampled_from([True, 5, {"count": 3}, {"age": "P1D"}]),
        "fallbacks": st.just([{"model": "m", "metadata": {"key": PAYLOAD}}]),
    },
)
_ON_SKIP: Final[dict[str, st.SearchStrategy[Any]]] = {"name": NAMES, "on_failure": st.just("skip")}
AFTER: Final[st.SearchStrategy[Any]] = st.lists(NAMES | st.fixed_dictionaries(_ON_SKIP), max_size=3)
NODES: Final = st.fixed_dictionaries(
    {"name": NAMES, "queue": st.just("etl"), "job": st.just("work")},
    optional={
        "data": DATA,
        "after": AFTER,
        "options": OPTIONS,
        "rule": st.sampled_from(["all_done", "one_failed"]),
        "on_failure": st.just("ignore"),
        "queue_timeout": st.just(60),
    },
)
_NEEDED: Final[dict[str, st.SearchStrategy[Any]]] = {
    "name": st.just("nightly"),
    "nodes": st.lists(NODES, min_size=1, max_size=4, unique_by=lambda n: str(n["name"])),
}
FLOWS: Final = st.fixed_dictionaries(
    _NEEDED,
    optional={
        "labels": st.just({"dag": "nightly"}),
        "retention": st.just("P7D"),
        "deadline": st.just(3600),
        "fail_fast": st.booleans(),
        "priority": st.just(5),
        "$schema": st.just("x"),
    },
)
# Without the secret: what is torn may look like a name, and errors show names.
PIECES: Final = st.sampled_from(
    [
        b"\x00",
        b"\xff",
        b"\xed\xa0\xbd",
        b"\xc3",
        b"\t",
        b"\r",
        b"&a ",
        b"*a",
        b"*b",
        b"<<: *a\n",
        b"!!python/name:os",
        b"!!python/object/apply:os.system ['true']",
        b"!x ",
        b"!!binary ",
        b"!!set {a, a}",
        b"!!timestamp x",
        b"!!int x",
        b"!!float .nan",
        b"!!omap [a]",
        b"- ",
        b": ",
        b"? ",
        b"|\n",
        b">\n",
        b"%YAML 9.9\n",
        b"---\n",
        b"...\n",
        b"#",
        b"{" * 2000,
        b"[" * 5000,
        b"- " * 3000,
        b"'",
        b'"',
        b"\\",
        b"\\ud83d",
        b"\\u0000",
        b",",
        b"}",
        b"]",
        b"=",
        b"1e999",
        b"-.inf",
        b"NaN",
        b"Infinity",
        b"9" * 5000,
        b"0x" + b"f" * 900,
        b"1:2:3",
        b"2026-99-99",
        b"null",
        b"~",
        b"\xe2\x80\xa8",
        b"\xc2\x85",
        b"\xef\xbb\xbf",
        b"\n",
        b" ",
        b'"name": "x",',
        b"name: x\n",
        b"nodes: []\n",
        b"yes",
    ]
) | st.binary(max_size=6)
ENCODINGS: Final = st.sampled_from(
    ["utf-16", "utf-16-be", "utf-32", "latin-1", "utf-7", "cp037", "utf-8-sig"]
)


class FlowText(NamedTuple):
    """The content of a flow file; ``secrets`` is what no error may show."""

    suffix: str
    content: bytes
    secrets: tuple[str, ...]


@st.composite
def wires(draw: st.DrawFn) -> tuple[Any, tuple[str, ...]]:
    """The value of a file that is nearly a flow, with the secret only where data is."""
    flow = draw(FLOWS)
    if draw(st.booleans()):
        return flow, ALL
    if draw(st.integers(0, 19)) == 0:
        return draw(odd.JSON), ALL
    return draw(damaged(flow, odd.JSON)), ALL


def as_text(wire: Any, *, is_json: bool) -> bytes:
    """The value as a file has it."""
    if is_json:
        try:
            return json.dumps(wire).encode()
        except (ValueError, TypeError, RecursionError):
            return b"{}"
    try:
        return str(yaml.safe_dump(wire, sort_keys=False)).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, ValueError, RecursionError):
        return b"{}"


@st.composite
def torn(draw: st.DrawFn, content: bytes) -> bytes:
    """The text with parts removed, repeated or replaced."""
    for _ in range(draw(st.integers(1, 3))):
        first, last = sorted(draw(st.tuples(*[st.integers(0, len(content))] * 2)))
        how = draw(st.sampled_from(["insert", "insert", "replace", "remove", "cut", "repeat", "encode"]))
        match how:
            case "insert":
                content = content[:first] + draw(PIECES) + content[first:]
            case "replace":
                content = content[:first] + draw(PIECES) + content[min(first + 1, last) :]
            case "remove":
                content = content[:first] + content[last:]
            case "cut":
                content = content[:last]
            case "repeat":
                content = content[:last] + content[first:]
            case "encode":
                text = content.decode("utf-8", "replace")
                content = text.encode(draw(ENCODINGS), "replace")
    return content


@st.composite
def monsters(draw: st.DrawFn) -> bytes:
    """Small files that mean something large, and large ones."""
    size = draw(st.sampled_from([3, 50, 101, 3_000, 30_000]))
    few = min(size, 50)
    return draw(
        st.sampled_from(
            [
                b"name: x\nnodes: " + b"[" * size,
                b'{"name": "x", "nodes": ' + b"[" * size + b"]" * size + b"}",
                b'{"a":' * size + b"1" + b"}" * size,
                b"name: x\nnodes: [{name: a, queue: q, job: j, data: " + b"[" * few + b"]" * few + b"}]",
                b"a0: &a0 [1, 1]\n"
                + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, few)),
                b"a: &a {k: 1}\n" + b"b: {<<: [" + b"*a," * size + b"]}\n",
                b"a: &a [*a]\n",
                b'{"name": "' + b"x" * size + b'", "nodes": []}',
                b'{"name": "x", "nodes": [%s]}'
                % b",".join(b'{"name":"n%d","queue":"q","job":"j"}' % n for n in range(min(size, 3_000))),
                b'{"name": "x", "nodes": [{"name":"n","queue":"q","job":"j","data":"%s"}]}'
                % (b"x" * size * 50),
                b'{"name": "x", "nodes": [{"name":"n","queue":"q","job":"j","data":%s}]}' % (b"9" * size),
                b"? " * size,
                b'{"name": "x", "labels": {%s}, "nodes": []}'
                % b",".join(b'"%d": ""' % n for n in range(size)),
                codecs.BOM_UTF16 + b"\x00" * size,
                b'"' + b"\\" * size,
            ]
        )
    )


@st.composite
def files(draw: st.DrawFn) -> FlowText:
    """A flow file of any of these kinds."""
    suffix = draw(st.sampled_from([".json", ".yaml", ".yml", ".txt", ""]))
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return FlowText(suffix, draw(monsters()), NEVER)
    if kind == 1:
        return FlowText(suffix, draw(st.binary(max_size=60)), NEVER)
    wire, secrets = draw(wires())
    content = as_text(wire, is_json=draw(st.booleans()))
    if kind < 10:
        return FlowText(suffix, draw(torn(content)), NEVER)
    return FlowText(suffix, content, secrets)


def read(directory: Path, file: FlowText) -> None:
    """Read a file, check the flow, and write it in every form."""
    path = directory / f"flow{file.suffix}"
    path.write_bytes(file.content)
    spec, _ = outcome(lambda: FlowSpec.from_file(path), (InvalidFlow, ConfigurationError), file.secrets)
    if spec is None:
        return
    refused = InvalidFlow, ConfigurationError, CodecError
    checked, error = outcome(lambda: check_flow(spec), refused, file.secrets)
    if isinstance(error, CycleError) and not error.cycle:
        raise Violation("a cycle without nodes", "cycle")
    if checked is not None:
        if outcome(lambda: FlowSpec.from_dict(spec.to_dict()))[0] != spec:
            raise Violation("from_dict(to_dict()) is another flow", "round trip")
        spec.to_mermaid()
        spec.to_dot()


@contextmanager
def opened() -> Iterator[Target]:
    """Needs a directory."""
    with TemporaryDirectory() as name:
        yield Target(files(), lambda file: read(Path(name), file))


ENTRY: Final = Entry("flow-files", "FlowSpec.from_file and check_flow: JSON and YAML", 20, opened)
