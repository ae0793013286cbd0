"""What the plug-in touches of vLLM is in one table, which a release's sources are held against."""

from __future__ import annotations

from pathlib import Path

import kvtrace_capture
from support.vllm_names import IMPORTED, OF_OTHERS, OWNERS, SECTIONS
from support.vllm_touched import imported_names, settings_asked, touched_names

PLUG_IN = sorted(Path(kvtrace_capture.__path__[0]).glob("*.py"))
OF_TABLE = {name for owner in OWNERS.values() for name in owner.attributes}


def asked_by_variable() -> dict[str, tuple[str, ...]]:
    return {key: names for path in PLUG_IN for key, names in settings_asked(path).items()}


def test_everything_that_the_plug_in_imports_of_vllm_is_in_the_table() -> None:
    assert {name for path in PLUG_IN for name in imported_names(path)} == set(IMPORTED)


def test_everything_that_the_plug_in_takes_of_vllms_objects_is_in_the_table() -> None:
    unknown = {path.name: touched_names(path) - OF_TABLE - OF_OTHERS for path in PLUG_IN}
    assert {name: found for name, found in unknown.items() if found} == {}


def test_the_table_has_nothing_that_the_plug_in_no_longer_touches() -> None:
    touched = {name for path in PLUG_IN for name in touched_names(path)}
    by_variable = {name for key, names in asked_by_variable().items() for name in (key, *names)}
    assert OF_TABLE - touched - by_variable - ASKED_WITHOUT_A_TRACE == set()
    assert OF_OTHERS - touched == set()


ASKED_WITHOUT_A_TRACE = {
    *("is_cpu", "is_cuda", "is_rocm", "is_tpu", "is_xpu"),  # put together from a platform's name
    *("decode_context_parallel_size", "prefill_context_parallel_size"),
    *("_registry", "register_connector"),  # of a module that is imported by its name
}


def test_settings_are_taken_from_sections_that_the_table_knows() -> None:
    sections = {key: names for key, names in asked_by_variable().items() if key.endswith("_config")}
    assert set(sections) == set(SECTIONS)
    for section, names in sections.items():
        assert set(names) <= set(OWNERS[SECTIONS[section]].attributes), section


def test_a_new_name_of_a_vllm_object_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "new.py"
    source.write_text(
        "from vllm.config import VllmConfig\n"
        "def read(vllm_config: Any, ours: int):\n"
        "    for layer in vllm_config.layers.values():\n"
        "        impl, ours.mine = layer.impl, 1\n"
        "        if (found := getattr(impl, 'scale', None)) is not None:\n"
        "            return [one.deep for one in found]\n"
    )
    assert imported_names(source) == {"vllm.config:VllmConfig"}
    assert touched_names(source) == {"layers", "values", "impl", "scale", "deep"}
