"""The command line as a user meets it: real processes where speed or streams matter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml
from runs import chat_rows, run_config, train_lines, write_rows
from toys import write_model_dir

from tunecli.cli.app import app, main
from tunecli.cli.samples import samples_root

ROOT = Path(__file__).resolve().parents[2]


def _write(tmp_path: Path, **values) -> Path:
    config = run_config(tmp_path, **values)
    settings = config.model_dump(mode="json", exclude_unset=True)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def _call(*arguments: str, capsys) -> tuple[int, str, str]:
    """Run the command line in this process; return exit code, standard output and error."""
    old, sys.argv = sys.argv, ["tunecli", *arguments]
    capsys.readouterr()
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = old
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def _process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tunecli", *arguments], capture_output=True, text=True, **options
    )


def test_version_and_help(capsys):
    code, out, _ = _call("--version", capsys=capsys)
    assert (code, out.split()[0]) == (0, "tunecli")
    code, out, _ = _call("--help", capsys=capsys)
    assert code == 0
    for command in ("train", "preprocess", "merge", "evaluate", "chat", "validate", "init"):
        assert command in out


def test_the_whole_path(tmp_path, capsys):
    path = str(_write(tmp_path, adapter="lora", lora_r=4, lora_alpha=8, val_set_size=2))
    code, out, err = _call("preprocess", path, "--json", capsys=capsys)
    assert code == 0
    assert json.loads(out)["train"]["kept"] == 10
    code, out, err = _call("train", path, "--json", "--max-steps", "3", capsys=capsys)
    assert code == 0, err
    assert json.loads(out)["steps"] == 3
    assert "step 3" in err
    effective = yaml.safe_load((tmp_path / "out" / "config.yaml").read_text())
    assert effective["max_steps"] == 3
    code, out, _ = _call("evaluate", path, "--quiet", capsys=capsys)
    assert code == 0
    assert "eval_loss: " in out
    code, out, _ = _call("merge", path, capsys=capsys)
    assert code == 0
    merged = out.split()[-1]
    assert (Path(merged) / "model.safetensors").exists()
    code, out, _ = _call(
        "chat", merged, "-p", "w0", "-p", "w1", "--max-new-tokens", "3", "--json", capsys=capsys
    )
    assert code == 0
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["w0", "w1"]


def test_chat_in_a_conversation(tmp_path):
    write_model_dir(tmp_path / "model")
    done = _process(
        "chat", str(tmp_path / "model"), "--max-new-tokens", "3", input="w0\n/new\n\nw1\n/quit\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("> ") == 5
    end = _process("chat", str(tmp_path / "model"), "--max-new-tokens", "2", input="w0\n")
    assert end.returncode == 0
    one = _process("chat", str(tmp_path / "model"), "-p", "w0", "--max-new-tokens", "2")
    assert one.returncode == 0


def test_overrides_are_typed_and_unknown_flags_refused(tmp_path, capsys):
    path = str(_write(tmp_path))
    other = write_rows(tmp_path / "other.jsonl", chat_rows(4))
    code, _, err = _call(
        "train", path, "--datasets.0.path", str(other), "--learning-rate=1e-4", "--bf16", "false",
        capsys=capsys,
    )  # fmt: skip
    assert code == 0, err
    lines = [json.loads(x) for x in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["learning_rate"] for line in lines] == [1e-4] * 4
    code, _, err = _call("train", path, "--lerning-rate", "1", capsys=capsys)
    assert code == 2
    assert "learning_rate" in err or "learning-rate" in err
    code, _, err = _call("train", path, "--micro-batch-size", "many", capsys=capsys)
    assert code == 2
    assert "micro_batch_size" in err
    assert "Traceback" not in err


def test_exit_codes(tmp_path, capsys):
    path = _write(tmp_path)
    settings = yaml.safe_load(path.read_text())
    bad = tmp_path / "bad.yaml"
    bad.write_text(yaml.safe_dump({**settings, "sequence_length": 5, "lora_r": -1}))
    code, out, err = _call("validate", str(path), str(bad), capsys=capsys)
    assert code == 2
    assert f"{path}: ok" in out
    assert f"{bad}: wrong" in out
    assert "sequence_len" in err
    assert "lora_r" in err
    code, out, _ = _call("validate", "--json", str(path), str(bad), capsys=capsys)
    assert [result["ok"] for result in json.loads(out)] == [True, False]
    assert code == 2
    code, _, err = _call("train", str(tmp_path / "nowhere.yaml"), capsys=capsys)
    assert code == 2
    assert "nowhere.yaml" in err
    code, _, err = _call("merge", str(path), capsys=capsys)
    assert code == 2
    assert "no adapter to merge" in err
    (tmp_path / "rows.jsonl").write_text('{"messages": [\n')
    code, _, err = _call("train", str(path), capsys=capsys)
    assert code == 1
    assert "rows.jsonl:1" in err
    assert "Traceback" not in err
    code, _, _ = _call("train", capsys=capsys)
    assert code == 2


def test_an_interrupt_is_130(tmp_path, capsys, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("tunecli.api.train", interrupt)
    code, _, err = _call("train", str(_write(tmp_path)), capsys=capsys)
    assert code == 130
    assert "Traceback" not in err


def test_schema_is_json(capsys):
    code, out, _ = _call("schema", capsys=capsys)
    assert code == 0
    assert "learning_rate" in json.loads(out)["properties"]


def test_no_secret_in_outputs_or_messages(tmp_path):
    write_model_dir(tmp_path / "model")
    path = _write(tmp_path, save_strategy="epoch")
    text = path.read_text() + "hub_token: tok_FAKE123\nmlflow_tracking_uri: https://u:pFAKE@h\n"
    path.write_text(text)
    environment = {**os.environ, "HF_TOKEN": "hf_FAKE", "WANDB_API_KEY": "keyFAKE"}
    good = _process("train", str(path), env=environment)
    assert good.returncode == 0, good.stderr
    wrong = _process("train", str(path), "--hub-tokn", "tok_FAKE", env=environment)
    assert wrong.returncode == 2
    url = "https://u:pFAKE@localhost:9/x.jsonl"
    missing = _process("train", str(path), "--datasets.0.path", url, env=environment)
    assert missing.returncode != 0
    for done in (good, wrong, missing):
        assert "FAKE" not in done.stdout + done.stderr
    for folder in ("out", "prepared"):
        for file in (tmp_path / folder).rglob("*"):
            if file.is_file():
                assert b"FAKE" not in file.read_bytes(), file


def test_samples_are_listed_and_copied(tmp_path, capsys):
    code, out, _ = _call("init", capsys=capsys)
    assert code == 0
    names = [line.split()[0] for line in out.splitlines()]
    assert "quickstart" in names
    assert names == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
    assert all(len(line.split()) > 3 for line in out.splitlines())
    code, out, _ = _call("init", "quickstart", "--to", str(tmp_path), capsys=capsys)
    assert code == 0
    assert out.strip() == str(tmp_path / "quickstart.yaml")
    assert (tmp_path / "examples" / "quickstart" / "train.jsonl").exists()
    assert (tmp_path / "examples" / "quickstart" / "model" / "config.json").exists()
    done = _process("validate", "quickstart.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    code, _, err = _call("init", "quickstart", "--to", str(tmp_path), capsys=capsys)
    assert code == 2
    assert "--force" in err
    code, _, _ = _call("init", "quickstart", "--to", str(tmp_path), "--force", capsys=capsys)
    assert code == 0
    code, _, err = _call("init", "nothing", capsys=capsys)
    assert code == 2
    assert "quickstart" in err


def test_samples_travel_in_a_wheel(tmp_path, monkeypatch):
    import tunecli.cli.samples as module

    package = tmp_path / "tunecli"
    (package / "_samples" / "configs").mkdir(parents=True)
    monkeypatch.setattr(module, "files", lambda name: package)
    assert samples_root() == package / "_samples"


def test_no_colour_when_asked(tmp_path):
    path = str(_write(tmp_path))
    done = _process("train", path, env={**os.environ, "NO_COLOR": "1", "FORCE_COLOR": ""})
    assert done.returncode == 0
    assert "\x1b[" not in done.stdout + done.stderr


def test_quiet_prints_the_result_only(tmp_path, capsys):
    path = _write(tmp_path)
    code, out, err = _call("train", str(path), "--quiet", capsys=capsys)
    assert code == 0
    assert err == ""
    assert "steps: 10" in out
    assert app.info.name == "tunecli"
    assert len(train_lines(run_config(tmp_path))) == 10
