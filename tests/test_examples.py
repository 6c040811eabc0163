"""The examples run, and the quickstart's files are what its scripts write."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "examples" / "quickstart"


def _module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_the_python_api_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("configs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = _module(ROOT / "examples" / "python_api" / "end_to_end.py")
    assert isinstance(script.main(2, str(tmp_path / "out")), str)
    assert (tmp_path / "out" / "lora" / "merged" / "config.json").exists()


def test_quickstart_data_is_what_its_script_writes(tmp_path):
    copy = tmp_path / "quickstart"
    shutil.copytree(QUICKSTART, copy, ignore=shutil.ignore_patterns("*.jsonl", "__pycache__"))
    subprocess.run([sys.executable, str(copy / "build_data.py")], check=True)
    for name in ("train.jsonl", "validation.jsonl"):
        assert (copy / name).read_bytes() == (QUICKSTART / name).read_bytes()


def test_no_validation_question_is_trained():
    def questions(name):
        for line in (QUICKSTART / name).read_text(encoding="utf-8").splitlines():
            for message in json.loads(line)["messages"]:
                if message["role"] == "user":
                    yield message["content"]

    trained = set(questions("train.jsonl"))
    assert {"What is the capital of France?", "What is the chemical symbol of gold?"} <= trained
    assert not trained & set(questions("validation.jsonl"))


def test_the_quickstart_tokenizer_renders_and_round_trips():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(QUICKSTART / "model")
    messages = [{"role": "user", "content": "São Tomé?"}, {"role": "assistant", "content": "Ω"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert "São Tomé?" in text
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
