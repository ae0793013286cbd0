"""What `make same-as` calls the same, and what it does not."""

from __future__ import annotations

import base64
import io
import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import same_as
from same_as import pairs, plant
from same_as.allowed import Allowed, AllowedError, read_allowed
from same_as.commands import Case, Command
from same_as.compare import Compared, compare
from same_as.outputs import Output
from same_as.page import page_parts
from same_as.parts import printed_parts, table_values, tensor_values
from same_as.side import Side

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class File:
    """A file of allowed differences in the making."""

    path: Path
    entries: list[str] = field(default_factory=list)

    def allow(self, kind: str = "intended", **fields: Any) -> list[Allowed]:
        given = {"why": "w", "output": "*"} | fields
        self.entries.append(f"[[{kind}]]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in given.items()))
        self.path.write_text("".join(self.entries))
        return read_allowed(self.path)


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "differences.toml")


def values(before: Any, after: Any, allowed: list[Allowed] = [], output: str = "a/b") -> Compared:  # noqa: B006
    return compare(output, {"stdout": before}, {"stdout": after}, allowed)


def test_equal_values_and_texts_are_equal() -> None:
    assert values({"a": [1, None, 0.1]}, {"a": [1, None, 0.1]}) == Compared("a/b", "equal")
    assert values("one\ntwo\n", "one\ntwo\n") == Compared("a/b", "equal")


def test_the_last_digit_of_a_float_is_a_difference_and_is_shown() -> None:
    found = values({"rows": [{"clip_error_frac": 0.1}]}, {"rows": [{"clip_error_frac": 0.1 + 2**-56}]})
    assert found.verdict == "DIFFERENT"
    assert found.shown == (
        "stdout:",
        "- rows[0].clip_error_frac = 0.1",
        "+ rows[0].clip_error_frac = 0.10000000000000002",
    )


def test_one_word_of_a_text_is_a_difference_and_is_shown() -> None:
    found = values("first\nK clips in 3 heads\n", "first\nV clips in 3 heads\n")
    assert (found.verdict, found.shown[2:]) == ("DIFFERENT", ("-K clips in 3 heads", "+V clips in 3 heads"))


@pytest.mark.parametrize(("before", "after"), [(1, 1.0), (0, False), (None, 0), ([], {}), ("1", 1)])
def test_a_value_of_another_type_is_a_difference(before: Any, after: Any) -> None:
    assert values({"a": before}, {"a": after}).verdict == "DIFFERENT"


def test_a_longer_wording_may_wrap_the_rest_of_its_text_elsewhere_but_not_change_it(file: File) -> None:
    longer = file.allow(
        before="the layers, task accuracy", after="the layers, task accuracy and cost", rewraps=True
    )
    before = "errors in the\nlayers, task accuracy.\nMore.\n"
    assert (
        values(before, "errors in the layers,\ntask accuracy and cost.\nMore.\n", longer).verdict
        == "intended"
    )
    assert (
        values(before, "errors in the layers,\ntask accuracy and cost.\nLess.\n", longer).verdict
        == "DIFFERENT"
    )
    assert values("other\nwords\n", "other words\n", longer).verdict == "DIFFERENT"


def test_a_missing_line_end_is_a_difference() -> None:
    assert values("one\n", "one").verdict == "DIFFERENT"


def test_an_exit_code_is_compared_and_so_is_an_output_of_one_side_alone() -> None:
    printed = {"exit": {"code": 0}, "stdout": ""}
    assert compare("a/b", printed, printed | {"exit": {"code": 1}}, []).shown[1:] == (
        "- code = 0",
        "+ code = 1",
    )
    assert compare("a/b", printed, {}, []).verdict == "DIFFERENT"


def test_a_volatile_place_is_passed_over_wherever_it_stands(file: File) -> None:
    allowed = file.allow("volatile", path="**created_at")
    before = {"created_at": 1, "sources": [{"created_at": 2, "n": 3}]}
    after = {"created_at": 9, "sources": [{"created_at": 8, "n": 3}]}
    assert values(before, after, allowed) == Compared("a/b", "equal")
    after["sources"][0]["n"] = 4
    assert values(before, after, allowed).verdict == "DIFFERENT"


def test_a_volatile_text_is_replaced_on_both_sides(file: File) -> None:
    allowed = file.allow("volatile", before=r"made \d+:\d+", after="made")
    assert values("made 07:39 here", "made 08:01 here", allowed).verdict == "equal"
    assert values("made 07:39 here", "made 08:01 there", allowed).verdict == "DIFFERENT"


def test_an_intended_difference_is_counted_only_where_it_is_listed(file: File) -> None:
    allowed = file.allow(output="*/report-json", path="findings[*].layers")
    before = {"findings": [{"layers": "1,2", "id": "x"}, {"layers": "3", "id": "y"}]}
    after = {"findings": [{"layers": [1, 2], "id": "x"}, {"layers": [3], "id": "y"}]}
    assert values(before, after, allowed, "sample/report-json") == Compared(
        "sample/report-json", "intended", 2
    )
    assert values(before, after, allowed, "sample/report").verdict == "DIFFERENT"
    after["findings"][1]["id"] = "z"
    assert values(before, after, allowed, "sample/report-json").shown == (
        "stdout:",
        '- findings[1].id = "y"',
        '+ findings[1].id = "z"',
    )


def test_an_entry_for_what_is_added_allows_no_change(file: File) -> None:
    allowed = file.allow(path="a", change="added")
    assert values({}, {"a": 1}, allowed).verdict == "intended"
    assert values({"a": 0}, {"a": 1}, allowed).verdict == "DIFFERENT"


def test_a_value_may_become_what_its_entry_says_and_nothing_else(file: File) -> None:
    allowed = file.allow(path="engine", before="vllm-(.*)", after=r"\1 of vllm")
    assert values({"engine": "vllm-cuda"}, {"engine": "cuda of vllm"}, allowed).verdict == "intended"
    assert values({"engine": "vllm-cuda"}, {"engine": "cpu of vllm"}, allowed).verdict == "DIFFERENT"


def test_a_tolerance_allows_last_digits_and_no_more(file: File) -> None:
    allowed = file.allow(path="*.frac", tolerance=1e-12)
    assert values({"a": {"frac": 1.0}}, {"a": {"frac": 1.0 + 1e-13}}, allowed).verdict == "intended"
    assert values({"a": {"frac": 1.0}}, {"a": {"frac": 1.0 + 1e-11}}, allowed).verdict == "DIFFERENT"
    assert values({"a": {"frac": "1.0"}}, {"a": {"frac": "1.00000000001"}}, allowed).verdict == "DIFFERENT"
    assert values({"a": {"frac": "1.0"}}, {"a": {"frac": "1.0000000000001"}}, allowed).verdict == "intended"
    assert values({"a": {"frac": 0.0}}, {"a": {"frac": None}}, allowed).verdict == "DIFFERENT"


def test_a_reworded_line_is_intended_and_the_next_one_is_not(file: File) -> None:
    allowed = file.allow(before=r"^(\d+) rows told of$", after=r"\1 notes")
    assert values("2 rows told of\nend\n", "2 notes\nend\n", allowed) == Compared("a/b", "intended", 1)
    found = values("2 rows told of\nend\n", "2 notes\nover\n", allowed)
    assert (found.verdict, found.shown[2:]) == ("DIFFERENT", ("-end", "+over"))


def test_an_entry_counts_what_it_allowed_so_that_a_stale_one_is_seen(file: File) -> None:
    file.allow(path="a")
    used, stale = file.allow(path="b")
    values({"a": 1}, {"a": 2}, [used, stale])
    assert (used.count, stale.count) == (1, 0)


@pytest.mark.parametrize(
    "fields",
    [
        {"why": "", "path": "a"},
        {"before": "only before"},
        {"path": "a", "change": "moved"},
        {"path": "a", "because": "unknown key"},
    ],
)
def test_an_entry_that_cannot_be_meant_is_an_error(file: File, fields: dict[str, str]) -> None:
    with pytest.raises(AllowedError):
        file.allow(**fields)


def parquet(table: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(table), out)
    return out.getvalue()


def test_a_new_column_of_a_table_is_a_difference_with_the_columns_name() -> None:
    before = {"n": np.array([1, 2], np.int64), "x": np.array([np.nan, 1.0])}
    same = {"table": table_values(parquet(before))}
    assert compare("t", same, {"table": table_values(parquet(before))}, []).verdict == "equal"
    other = {"table": table_values(parquet(before | {"layer": ["a", "b"]}))}
    assert compare("t", same, other, []).shown[1].startswith("+ layer = ")
    narrower = {"table": table_values(parquet(before | {"n": np.array([1, 2], np.int32)}))}
    assert compare("t", same, narrower, []).shown[1:] == ('- n.type = "int64"', '+ n.type = "int32"')


def test_csv_is_compared_by_column_even_where_no_row_is() -> None:
    command = Command("q", "query", "csv")
    side = Side("base", Path("/a"), Path("/b"))
    before, after = (printed_parts(command, 0, one, b"", side) for one in (b"a,b\n1,2\n", b"a,b,c\n1,2,3\n"))
    assert compare("q", before, after, []).shown[1:] == ('+ columns.c = ""', '+ rows[0].c = "3"')
    empty, narrower = (printed_parts(command, 0, content, b"", side) for content in (b"a,b\n", b"a\n"))
    assert compare("q", empty, narrower, []).shown[1:] == ('- columns.b = ""',)


def test_a_tensor_file_is_compared_tensor_by_tensor() -> None:
    header = json.dumps({"k_scale": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    content = len(header).to_bytes(8, "little") + header + np.float32(1).tobytes()
    assert tensor_values(content)["k_scale"] == {"dtype": "F32", "shape": [1], "bytes": "0000803f"}


def test_a_page_is_its_data_its_text_and_its_queries_and_not_its_scripts() -> None:
    packed = base64.b64encode(zlib.compress(np.array([0.5, np.nan]).tobytes())).decode()
    data = json.dumps({"arrays": {"kind": "f8", "shape": [2], "data": packed}})
    page = (
        "<html><head><style>p {}</style></head><body><p>K  clips</p><pre><code>SELECT 1</code></pre>"
        f'<script type="application/json">{data}</script><script>draw()</script></body></html>'
    )
    assert page_parts(page) == {
        "visible": "K clips\n",
        "sql": "SELECT 1\n",
        "data": [{"arrays": {"kind": "f8", "shape": [2], "data": [0.5, None]}}],
    }


def test_outputs_are_paired_by_name_within_a_case_and_one_sides_own_stay_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        "base": {"one": ["a", "b", "c"], "two": ["d"]},
        "tree": {"one": ["a", "new", "c"], "two": ["d", "e"]},
    }

    def outputs(side: Side, case: Case, inputs: Path, *, keep: bool) -> Iterator[Output]:
        for name in given[side.name][case.name]:
            yield Output(name, side, Command(name, ""), 0, (b"", b""))

    monkeypatch.setattr(pairs, "case_outputs", outputs)
    sides = (Side("base", tmp_path, tmp_path), Side("tree", tmp_path, tmp_path))
    found = pairs.paired_outputs(sides, [Case("one", ()), Case("two", ())], tmp_path, keep=False)
    names = [(before and before.name, after and after.name) for before, after in found]
    assert names == [("a", "a"), ("b", None), ("c", "c"), (None, "new"), ("d", "d"), (None, "e")]


def test_paths_of_the_two_sides_are_no_difference(tmp_path: Path) -> None:
    base = Side("base", tmp_path / "source", tmp_path / "base")
    tree = Side("tree", tmp_path / "repository", tmp_path / "tree")
    command = Command("x", "report x")

    def printed(side: Side, text: str) -> Output:
        return Output("x", side, command, 2, (b"", f"{side.work}/x.kvtrace: {text}".encode()))

    assert printed(base, "no such trace").same_bytes(printed(tree, "no such trace"))
    assert not printed(base, "no such trace").same_bytes(printed(tree, "not a trace"))
    assert compare("x", printed(base, "a").parts(), printed(tree, "b").parts(), []).shown[2:] == (
        "-<work>/x.kvtrace: a",
        "+<work>/x.kvtrace: b",
    )


def test_faults_are_planted_with_what_tests_incidents_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = plant.all_incidents()[:1]
    monkeypatch.setattr(plant, "all_incidents", lambda: first)
    plant.main(str(tmp_path))
    described = json.loads(capsys.readouterr().out)
    assert described["artifacts"] == ["shipped"]
    folder = tmp_path / described["name"]
    assert sorted(path.name for path in folder.iterdir()) == ["incident.kvtrace", "shipped"]


def test_the_file_that_is_read_passes_over_times_and_checksums_of_a_run_and_nothing_else() -> None:
    allowed = read_allowed(Path(same_as.__file__).with_name("differences.toml"))
    before = {"created_at": 1.0, "crc32c": "a", "tables": {"cells.parquet": "b"}, "method": "profile"}
    after = {"created_at": 2.0, "crc32c": "c", "tables": {"cells.parquet": "d"}, "method": "direct"}
    found = compare("sample/replay/run/run.json", {"json": before}, {"json": after}, allowed)
    assert found.shown[1:] == ('- method = "profile"', '+ method = "direct"')
