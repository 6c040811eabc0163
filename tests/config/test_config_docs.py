from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tunecli import config as public
from tunecli.config import Config, json_schema, reference_page
from tunecli.config.fields import nested_sections

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_in_docs_is_up_to_date() -> None:
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert page == reference_page(), "run scripts/gen_docs.py"


def test_the_script_writes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "scripts" / "gen_docs.py"
    script.parent.mkdir()
    script.write_text((ROOT / "scripts" / "gen_docs.py").read_text())
    runpy.run_path(str(script), run_name="__main__")
    assert (tmp_path / "docs" / "config.md").read_text(encoding="utf-8") == reference_page()


def test_every_key_is_on_the_page_and_described() -> None:
    page = reference_page()
    for section in (Config, *(section for _, section in nested_sections())):
        for name, info in section.model_fields.items():
            assert info.description, name
            assert f"| `{name}` |" in page
    assert "| `learning_rate` | a number above 0 | required |" in page
    assert "`adam_eps`" in page


def test_json_schema() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"]
    assert schema["description"]
    assert set(schema["required"]) == {"base_model", "datasets", "learning_rate"}
    assert next(iter(schema["properties"])) == "base_model"
    for part in (schema, *schema["$defs"].values()):
        # A message may have any property.
        free = part.get("title") == "MessageMappings"
        assert part["additionalProperties"] == ({"type": "string"} if free else False)
        assert all("description" in item for item in part["properties"].values())


def test_public_names_exist() -> None:
    assert all(hasattr(public, name) for name in public.__all__)


def test_importing_is_light() -> None:
    heavy = ("torch", "transformers", "accelerate", "datasets", "peft", "numpy")
    code = f"import sys, tunecli.config; sys.exit(bool(set(sys.modules) & set({heavy!r})))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
