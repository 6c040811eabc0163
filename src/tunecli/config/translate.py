"""Apply the tables of `axolotl` to the values of a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import Problem
from .axolotl import ENTRY_KEYS, FOREIGN_TYPES, FSDP_KEYS, KEYS, PAIR_TYPE, TYPES, Rule
from .fields import value_in_words
from .yaml import KeyPath

ENTRY_LISTS = ("datasets", "test_datasets")
KERNEL_PLUGINS = ("LigerPlugin", "CutCrossEntropyPlugin", "KernelsPlugin")


class Translation:
    """Turns Axolotl's keys in `tree` (in place) into those of the schema.

    Attributes:
        problems: Keys that are not supported, without file and line.
        notes: What was read as something else or has no effect: path and text.
        written_as: Paths of the schema that the file writes in another way.
    """

    def __init__(self, tree: dict[str, Any]) -> None:
        self.problems: list[Problem] = []
        self.notes: list[tuple[KeyPath, str]] = []
        self.written_as: dict[KeyPath, KeyPath] = {}
        paired = bool(tree.get("rl"))
        self._plugins(tree)
        self._keys(tree, (), KEYS)
        for name in ENTRY_LISTS:
            entries = tree.get(name)
            for index, entry in enumerate(entries if isinstance(entries, list) else []):
                if isinstance(entry, dict):
                    self._keys(entry, (name, index), ENTRY_KEYS)
                    self._type(entry, (name, index), paired)
        if isinstance(sharding := tree.get("fsdp_config"), dict):
            self._keys(sharding, ("fsdp_config",), FSDP_KEYS)
            self._value(sharding, ("fsdp_config", "transformer_layer_cls_to_wrap"), _as_list)
        self._value(tree, ("attn_implementation",), _attention)

    def original(self, path: KeyPath) -> KeyPath:
        """Return a path as the file writes it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.written_as:
                return self.written_as[path[:length]] + path[length:]
        return path

    def _keys(self, tree: dict[str, Any], where: KeyPath, table: Mapping[str, Rule]) -> None:
        for name in [name for name in tree if name in table]:
            rule, value, path = table[name], tree.pop(name), (*where, name)
            if any(value == unused for unused in rule.unused):
                continue
            if rule.kind == "unsupported":
                self.problems.append(Problem(path, "is not supported", rule.text))
            elif rule.kind == "ignored":
                self.notes.append((path, f"has no effect: {rule.text}"))
            elif rule.target is not None:
                self._rename(tree, path, rule.target, rule.convert(value), rule.text)

    def _rename(
        self, tree: dict[str, Any], path: KeyPath, target: str, value: Any, text: str
    ) -> None:
        if tree.get(target) is not None:
            also = self.original((*path[:-1], target))[-1]
            message = f"sets {target}, which {also} sets, too" if also != target else (
                f"is Axolotl's name for {target}, which is set, too"
            )  # fmt: skip
            self.problems.append(Problem(path, message, "keep one of the two"))
            return
        tree[target] = value
        self.written_as[(*path[:-1], target)] = path
        shown = "" if isinstance(value, dict | list) else f": {value_in_words(value, path)}"
        self.notes.append((path, f"read as {target}{shown}{text and f' ({text})'}"))

    def _plugins(self, tree: dict[str, Any]) -> None:
        plugins = tree.get("plugins")
        names = plugins if isinstance(plugins, list) else [plugins]
        for index, name in enumerate(names):
            if name and not str(name).endswith(KERNEL_PLUGINS):
                path: KeyPath = ("plugins", index) if names is plugins else ("plugins",)
                shown = value_in_words(name, path)
                self.problems.append(
                    Problem(path, f"the plugin {shown} is not supported", "remove it")
                )
                tree.pop("plugins", None)

    def _type(self, entry: dict[str, Any], where: KeyPath, paired: bool) -> None:
        kind, path = entry.get("type"), (*where, "type")
        if not isinstance(kind, str):
            return
        shown = value_in_words(kind)
        pair_keys = [k for k in ("field_chosen", "field_rejected") if entry.get(k) is not None]
        if kind == PAIR_TYPE and (paired or pair_keys):
            entry["type"] = "preference:chat_template"
            entry.setdefault("field_prompt", entry.get("field_messages") or "messages")
            self.notes.append((path, f"{shown} is read as {value_in_words(entry['type'])}"))
        elif kind in TYPES:
            entry["type"] = TYPES[kind]
        elif advice := FOREIGN_TYPES.get(kind) or FOREIGN_TYPES.get(re.split("[.:]", kind)[0]):
            del entry["type"]
            self.problems.append(Problem(path, f"{shown} is not supported", advice))

    def _value(self, tree: dict[str, Any], path: KeyPath, convert: Callable[[Any], Any]) -> None:
        name = str(path[-1])
        if name not in tree or (value := convert(tree[name])) == tree[name]:
            return
        if isinstance(value, str):
            shown = value_in_words(tree[name], path)
            self.notes.append((path, f"{shown} is not there; read as {value_in_words(value)}"))
        tree[name] = value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _attention(value: Any) -> Any:
    return "sdpa" if value == "xformers" else value
