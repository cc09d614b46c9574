"""Flow files that are odd, hostile or broken: refused in one line with file and place, in little time."""

from __future__ import annotations

import json
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from glidemq_orchestrate import FlowSpec
from glidemq_orchestrate.errors import ConfigurationError, EncodeError, GlideMQError, InvalidFlow
from glidemq_orchestrate.flows.checked import check_flow
from glidemq_orchestrate.flows.forms import yaml_text

HEAD = "name: x\n"
NODE = "nodes: [{name: a, queue: q, job: j, data: %s}]\n"

ALIAS_BOMB = (
    HEAD
    + "labels: {}\nnodes:\n- name: a\n  queue: q\n  job: j\n  data:\n    a: &a [1,1,1,1,1,1,1,1,1]\n"
    + "".join(
        f"    {this}: &{this} [{','.join(['*' + last] * 9)}]\n"
        for last, this in zip("abcdefgh", "bcdefghi", strict=True)
    )
)
MERGE_BOMB = (
    HEAD
    + "nodes:\n- name: a\n  queue: q\n  job: j\n  data:\n    a: &a {k: 1}\n"
    + "".join(
        f"    {this}: &{this} {{<<: [{','.join(['*' + last] * 9)}]}}\n"
        for last, this in zip("abcdefghij", "bcdefghijk", strict=True)
    )
)

REPEATED_KEYS: list[tuple[str, int, str]] = [
    ("name: x\nname: y\nnodes: []\n", 2, "name"),
    ("name: x\nnodes:\n- name: a\n  queue: q\nnodes:\n- name: b\n", 5, "nodes"),
    (HEAD + "nodes: [{name: a, queue: q, queue: r, job: j}]\n", 2, "queue"),
    ('{"name": "x",\n "nodes": [{"name": "a"}],\n "nodes": []}', 3, "nodes"),
    ('{"name": "x", "nodes": [\n{"data": {"a{\\"": 1, "b": "}\\\\",\n "a{\\"": 2}}]}', 3, 'a{"'),
    ('{"name": "x", "nodes": [{"data": {"\\u0061": 1, "a": 2}}]}', 1, "a"),
]


def submitted(path: Path) -> None:
    check_flow(FlowSpec.from_file(path))


def written(directory: Path, content: str | bytes, name: str = "flow.yaml") -> Path:
    path = directory / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("bomb", [ALIAS_BOMB, MERGE_BOMB], ids=["aliases", "merges"])
@pytest.mark.timeout(20)
def test_a_bomb_is_refused_immediately(tmp_path: Path, bomb: str) -> None:
    path = written(tmp_path, bomb)
    assert path.stat().st_size < 700
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(InvalidFlow, match=r"flow\.yaml, line 1[0-9]: .*aliases up to here expand to"):
            submitted(path)
        assert time.process_time() - began < 2
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_aliases_and_merges_that_people_write_are_followed(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        HEAD
        + "nodes:\n- &base {name: a, queue: q, job: j, data: &d {k: [1, 2]}, options: &o {attempts: 3}}\n"
        + "- {<<: *base, name: b, after: [a]}\n- {name: c, queue: q, job: j, data: *d, options: *o}\n",
    )
    spec = FlowSpec.from_file(path)
    assert [node.name for node in spec.nodes] == ["a", "b", "c"]
    assert [node.data for node in spec.nodes] == [{"k": [1, 2]}] * 3
    assert [node.options.attempts for node in spec.nodes] == [3, 3, 3]


def test_a_key_that_comes_twice_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for content, line, key in REPEATED_KEYS:
        with subtests.test(content=content):
            suffixes = ["yaml", "json"] if content[0] == "{" else ["yaml"]
            for suffix in suffixes:
                path = written(tmp_path, content, f"flow.{suffix}")
                with pytest.raises(InvalidFlow) as refused:
                    submitted(path)
                assert f"flow.{suffix}, line {line}: " in str(refused.value)
                assert f"duplicate key {key!r}" in str(refused.value)


def test_json_is_read_by_a_json_parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: Any) -> None:
        raise AssertionError("the YAML parser was asked")

    monkeypatch.setattr(yaml.CSafeLoader, "__init__", parse)
    wire = {"name": "x", "nodes": [{"name": "a", "queue": "q", "job": "j", "data": {"a\tb": "\u2028"}}]}
    for name in ("flow.json", "flow.yaml", "flow"):
        assert FlowSpec.from_file(written(tmp_path, json.dumps(wire, indent="\t"), name)).to_dict() == wire
    assert FlowSpec.from_file(written(tmp_path, b"\xef\xbb\xbf" + json.dumps(wire).encode())).name == "x"


def test_yaml_that_begins_like_json_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, "{name: x, nodes: [{name: a, queue: q, job: j}]}")
    assert FlowSpec.from_file(path).name == "x"


ODD: dict[str, str | bytes] = {
    "empty": b"",
    "blank": b" \n\n",
    "binary": bytes(range(256)),
    "zeros": b"\0" * 100,
    "utf-16": (HEAD + NODE % "1").encode("utf-16"),
    "latin": (HEAD + "labels: {a: \xe9}\n" + NODE % "1").encode("latin-1"),
    "control": HEAD + "labels: {a: '\x1b[31m'}\n",
    "list": "[1, 2]",
    "text": "just text",
    "open": "{",
    "comma": '{"name": "x",}',
    "tabs": "name:\n\t- x",
    "deep json": '{"name": ' + "[" * 100_000,
    "deep": HEAD + NODE % ("[" * 5000 + "]" * 5000),
    "deep closed": '{"name": "x", "nodes": [{"name": "a", "queue": "q", "job": "j", "data": '
    + "[" * 90_000
    + "]" * 90_000
    + "}]}",
    "dashes": HEAD + "- " * 50_000,
    "nan": '{"name": "x", "nodes": [{"name": "a", "queue": "q", "job": "j", "data": [NaN]}]}',
    "yaml nan": HEAD + NODE % ".nan",
    "huge": '{"name": "x", "nodes": [{"name": "a", "queue": "q", "job": "j", "data": 1e999}]}',
    "digits": '{"name": ' + "9" * 5000 + "}",
    "yaml digits": HEAD + NODE % ("9" * 5000),
    "sexagesimal": HEAD + NODE % ("1" + ":10" * 200_000),
    "cycle": HEAD + "nodes: &n [*n]\n",
    "cycle in data": HEAD + NODE % "&a {k: [*a]}",
    "merged cycle": HEAD + NODE % "&a {<<: *a}",
    "no anchor": HEAD + NODE % "*a",
    "two documents": HEAD + "---\n" + HEAD,
    "python": HEAD + NODE % "!!python/object/apply:os.system [true]",
    "long tag": "!" * 100_000,
    "tag": HEAD + NODE % "!mine 1",
    "date": HEAD + NODE % "2026-99-99",
    "good date": HEAD + NODE % "2026-01-01",
    "bad int": HEAD + NODE % "!!int ''",
    "bad bool": HEAD + NODE % "!!bool maybe",
    "bad float": HEAD + NODE % "!!float x",
    "bad time": HEAD + NODE % "!!timestamp x",
    "binary tag": HEAD + NODE % "!!binary '==='",
    "set": HEAD + NODE % "!!set {a, b}",
    "key": HEAD + NODE % "{1: 2}",
    "list as key": HEAD + NODE % "{[1]: 2}",
    "number as top key": HEAD + "1: 2\n",
    "text as map": HEAD + NODE % "!!map x",
    "text as list": HEAD + "nodes: !!seq x\n",
    "merge of a text": HEAD + NODE % "{<<: x}",
    "half a character": r'{"name": "x\ud800", "nodes": [{"name": "a", "queue": "q", "job": "j"}]}',
    "half in a node": r'{"name": "x", "nodes": [{"name": "a\ud800", "queue": "q", "job": "j"}]}',
    "half in data": r'{"name": "x", "nodes": [{"name": "a", "queue": "q", "job": "j", "data": "\ud800"}]}',
    "half in a key": r'{"name": "x", "nodes": [{"name": "a", "queue": "q", "job": "j"}], "\ud800": 1}',
    "half in a job": r'{"name": "x", "nodes": [{"name": "a", "queue": "q", "job": "\ud800"}]}',
    "half in a label": r'{"name": "x", "labels": {"a": "\ud800"}, "nodes": [{"name": "a", "queue": "q", "job": "j"}]}',  # noqa: E501
    "long key": json.dumps({"x" * 100_000: 1}),
    "many faults": json.dumps({"name": "x", "nodes": [{"nam": 1}] * 10_000}),
    "duration": HEAD + "deadline: 1e300\n" + NODE % "1",
    "negative": HEAD + "deadline: -P1D\n" + NODE % "1",
    "nan duration": HEAD + "deadline: .nan\n" + NODE % "1",
    "infinite priority": HEAD + "priority: .inf\n" + NODE % "1",
}


@pytest.mark.long
@pytest.mark.timeout(60)
def test_an_odd_file_is_refused_in_one_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind, content in ODD.items():
        for suffix in ("yaml", "json"):
            with subtests.test(kind=kind, suffix=suffix):
                path = written(tmp_path, content, f"flow.{suffix}")
                began = time.process_time()
                with pytest.raises(GlideMQError) as refused:
                    submitted(path)
                assert time.process_time() - began < 5
                message = str(refused.value)
                assert isinstance(refused.value, ValueError), message
                assert len(message) < 3000, message[:200]
                assert "\n" not in message
                message.encode()


def test_a_path_that_is_not_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, HEAD)
    for name in ("", ".", "missing.yaml", "a\0b", "x" * 5000, "flow.yaml/x"):
        with subtests.test(name=name), pytest.raises(ConfigurationError, match="cannot read flow file"):
            FlowSpec.from_file(name)


def test_a_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glidemq_orchestrate.flows.forms.reader.MAX_JSON_BYTES", 2**20)
    with pytest.raises(InvalidFlow, match=r"/dev/zero is larger than 1 MiB"):
        FlowSpec.from_file("/dev/zero")


def test_a_broken_field_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidFlow, match=r"flow\.yaml: not a valid flow: line 2, node number 1: name: "):
        submitted(written(tmp_path, HEAD + "nodes: [{job: a, queue: q}]\n"))


MARKS = [*"{}[]:,&*!<>|-?#'\"\n \t%@`\\=a~", "\u2028", "\ufeff", "\x85", "\\ud800"]
WORDS = [
    "&a ", "*a ", "<<: ", "- ", "name: x\n", "nodes:\n", "!!int ", "!!map ", "!!seq ", "!!set ", "!!omap ",
    "---\n", "1:1", ".inf", "0x", '"name"', "9" * 50, "2026-01-01", "queue: q", "data: ",
]  # fmt: skip
PIECES = st.sampled_from(MARKS + WORDS)


@given(st.lists(PIECES, max_size=40).map("".join) | st.binary(max_size=60))
@example("=")
@example("- =\n")
@example("!!omap [[1]]")
def test_whatever_is_in_a_file_it_is_a_flow_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: str | bytes
) -> None:
    directory = tmp_path_factory.getbasetemp()
    for suffix in ("yaml", "json"):
        path = written(directory, content, f"fuzz.{suffix}")
        with suppress(InvalidFlow, ConfigurationError, EncodeError):
            submitted(path)


def test_yaml_of_too_many_values_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_text, "MAX_VALUES", 1000)
    path = tmp_path / "flow.yaml"
    path.write_text(HEAD + NODE % f"[{','.join('1' * 900)}]")
    FlowSpec.from_file(path)
    path.write_text(HEAD + NODE % f"[{','.join('1' * 1000)}]")
    with pytest.raises(
        InvalidFlow, match=r"flow\.yaml, line 2: .*more than 1,000 values. Fix: write it as JSON"
    ):
        FlowSpec.from_file(path)
