"""Layers in different formats: fp8/0,1,29:auto/4-7:k=fp8,v=nvfp4."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kvtrace.errors import InputError
from kvtrace.formats.format import CacheFormat, Fact
from kvtrace.formats.mixed import parse_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

MAX_LAYER: Final = 9_999
_LAYERS: Final = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?", re.ASCII)
_EXPECTED: Final = "expected FORMAT/LAYERS:FORMAT, such as fp8/0,1,29:auto/4-7:nvfp4"
NOT_SERVED: Final = Fact(
    "formats-by-layer", "no released vLLM serves quantized layers in several formats (vllm#56116 is to)"
)
MAP_UNREAD: Final = Fact(
    "map-unread",
    "vLLM 0.32 reads no map of layers and keeps the whole cache in the model's dtype, unless "
    "--kv-cache-dtype says otherwise",
)


@dataclass(frozen=True, slots=True)
class LayeredFormat:
    """A cache whose layers differ. Made by `by_layer`."""

    rest: CacheFormat
    """Of every layer that is not listed, with the layers that it keeps native by itself."""
    listed: tuple[tuple[int, CacheFormat], ...]
    """Layer and its format, ascending."""
    is_written: bool = field(default=False, compare=False)
    """Whether it was read from a checkpoint's map of layers."""

    @property
    def name(self) -> str:
        """Return it as `parse_format` reads it, layers of one format together."""
        layers: dict[str, list[int]] = {}
        for layer, form in self.listed:
            layers.setdefault(form.name, []).append(layer)
        return "/".join([self.rest.name, *(f"{ranges(of)}:{name}" for name, of in layers.items())])

    @property
    def forms(self) -> tuple[CacheFormat, ...]:
        """Return the formats that it is made of, that of the rest first."""
        return tuple(dict.fromkeys((self.rest, *(form for _, form in self.listed))))

    @property
    def product(self) -> str:
        """Return the engines that have its formats."""
        return ", ".join(dict.fromkeys(form.product for form in self.forms))

    @property
    def uses_scales(self) -> bool:
        """Return whether the checkpoint's k_scale and v_scale change what any layer stores."""
        return any(form.uses_scales for form in self.forms)

    @property
    def is_native(self) -> bool:
        """Return whether nothing is quantized."""
        return all(form.is_native for form in self.forms)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Return what an operator must know of any of its formats, and of their being together."""
        found = [fact for form in self.forms for fact in form.facts]
        if len([form for form in self.forms if not form.is_native]) > 1:
            found.append(NOT_SERVED)
        if self.is_written:
            found.append(MAP_UNREAD)
        return tuple(dict.fromkeys(found))

    def in_layer(self, layer: int) -> CacheFormat:
        """Return a layer's format."""
        return dict(self.listed).get(layer, self.rest)

    def each(self, change: Callable[[CacheFormat], CacheFormat]) -> LayeredFormat:
        """Return the same with every format changed."""
        listed = tuple((layer, change(form)) for layer, form in self.listed)
        return replace(self, rest=change(self.rest), listed=listed)

    def native_layers(
        self, num_layers: int, *, is_hybrid: bool = False, skip: Collection[int] = ()
    ) -> tuple[int, ...]:
        """Return the layers that stay in the model's dtype, as `CacheFormat.native_layers` does.

        What is listed is as listed; among the others the rest's format keeps its own.
        """
        listed = dict(self.listed)
        kept = range(num_layers) if self.rest.is_native else ()
        kept_by_rest = {*kept, *self.rest.native_layers(num_layers, is_hybrid=is_hybrid)} - listed.keys()
        native = {layer for layer, form in self.listed if form.is_native and layer < num_layers}
        return tuple(sorted(kept_by_rest | native | set(skip)))


AnyFormat = CacheFormat | LayeredFormat


def by_layer(rest: CacheFormat, listed: Mapping[int, CacheFormat]) -> AnyFormat:
    """Return the cache of these layers; the one format where they do not differ from the rest's.

    A layer listed in a format that keeps boundary layers native has that format wherever it lies.
    """
    own = tuple(
        (layer, form) for layer, form in sorted(listed.items()) if form != rest or rest.keeps_boundary_layers
    )
    return LayeredFormat(rest, own) if own else rest


def parse_format(text: str) -> AnyFormat:
    """Return a format by its name, a pair k=NAME,v=NAME, or FORMAT/LAYERS:FORMAT/… by layer.

    Raises InputError: a name is unknown, a pair is not complete, or layers are listed twice or not at all.

    >>> parse_format("fp8/0,1,29:auto").native_layers(30)
    (0, 1, 29)
    >>> parse_format("fp8/4-7:k=fp8,v=nvfp4/1:auto/0:auto").name
    'fp8_e4m3/0-1:auto/4-7:k=fp8_e4m3,v=nvfp4'
    """
    first, *groups = text.split("/")
    rest, listed = parse_pair(first), {}
    for group in groups:
        layers, is_separated, name = group.partition(":")
        if not is_separated:
            raise InputError(f"cache dtype {text[:60]!r}: {group[:40]!r} names no format; {_EXPECTED}")
        form = parse_pair(name)
        for layer in _numbers(layers, text):
            if layer in listed:
                raise InputError(f"cache dtype {text[:60]!r}: layer {layer} is listed twice; {_EXPECTED}")
            listed[layer] = form
    return by_layer(rest, listed)


def is_format(text: str) -> bool:
    """Return whether `parse_format` takes a text.

    >>> is_format("fp8/3:auto"), is_format("./checkpoint")
    (True, False)
    """
    try:
        parse_format(text)
    except InputError:
        return False
    return True


def vllm_flags(
    form: AnyFormat,
    layers: Iterable[int],
    num_layers: int,
    *,
    is_hybrid: bool,
    skip: Collection[int] = (),
) -> str | None:
    """Return the flags with which vLLM serves a cache; None: no released vLLM does. As `served_as` takes it.

    >>> vllm_flags(parse_format("auto/1-2:fp8"), range(4), 4, is_hybrid=False)
    '--kv-cache-dtype fp8_e4m3 --kv-cache-dtype-skip-layers 0 3'
    """
    found = served_as(form, layers, num_layers, is_hybrid=is_hybrid, skip=skip)
    if found is None:
        return None
    name, skipped = found
    skips = f" --kv-cache-dtype-skip-layers {' '.join(map(str, skipped))}" if skipped else ""
    return f"--kv-cache-dtype {name}{skips}"


def served_as(
    form: AnyFormat,
    layers: Iterable[int],
    num_layers: int,
    *,
    is_hybrid: bool,
    skip: Collection[int] = (),
) -> tuple[str, tuple[int, ...]] | None:
    """Return the one cache dtype and the skipped layers by which vLLM serves a cache; None: there is none.

    layers: those with a cache of their own. The others: as `CacheFormat.native_layers` takes them.
    """
    native = set(form.native_layers(num_layers, is_hybrid=is_hybrid, skip=skip))
    own = set(layers)
    quantized = {form.in_layer(layer) for layer in own - native}
    if len(quantized) > 1 or any(not one.runs_on or one.product != "vllm" for one in quantized):
        return None
    if not quantized:
        return "auto", ()
    (only,) = quantized
    by_itself = set(only.native_layers(num_layers, is_hybrid=is_hybrid))
    if not by_itself & own <= native:
        return None
    return only.name.removesuffix("+q8"), tuple(sorted(native & own - by_itself))


def ranges(layers: Iterable[int]) -> str:
    """Return layers as they are listed.

    >>> ranges([0, 1, 2, 5])
    '0-2,5'
    """
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _numbers(layers: str, text: str) -> Iterator[int]:
    for part in layers.split(","):
        found = _LAYERS.fullmatch(part)
        if found is None or int(found[1]) > int(found[2] or found[1]):
            raise InputError(f"cache dtype {text[:60]!r}: {part[:20]!r} is not a layer; {_EXPECTED}")
        yield from range(int(found[1]), int(found[2] or found[1]) + 1)
