"""The effective configuration as YAML, without secrets."""

from __future__ import annotations

import inspect

import yaml

from .redact import is_secret_key, redact_tree
from .schema import SECTIONS, Config
from .yaml import EXPONENT, EXPONENT_STARTS, FLOAT_TAG


class _Dumper(yaml.SafeDumper):
    """Quotes text that our loader would read as a number, such as the word `1e-4`."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_implicit_resolver(FLOAT_TAG, EXPONENT, EXPONENT_STARTS)


def dump_config(config: Config) -> str:
    """Return every value, defaults included, as YAML that loads back to an equal `Config`.

    Secret fields are left out; passwords in URLs and secrets in free-form mappings are hidden.
    """
    values = config.model_dump()
    parts = []
    for section in SECTIONS:
        own = {
            name: redact_tree(values[name])
            for name in section.model_fields
            if not is_secret_key(name)
        }
        title = (inspect.getdoc(section) or "").partition("\n")[0]
        text = yaml.dump(own, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
        parts.append(f"# {title}\n{text}")
    return "\n".join(parts)
