"""The functions of the package, and chat."""

import subprocess
import sys
from pathlib import Path

import pytest
from runs import chat_rows, run_config
from toys import toy_tokenizer, write_model_dir

import tunecli
from tunecli import ChatSession, evaluate, preprocess, train
from tunecli.errors import ConfigError, ModelError

LORA = {"adapter": "lora", "lora_r": 4, "lora_alpha": 8, "learning_rate": 0.1}


def test_the_names_of_the_package():
    for name in tunecli.__all__:
        assert getattr(tunecli, name) is not None
    with pytest.raises(AttributeError, match="nothing_there"):
        tunecli.nothing_there  # noqa: B018
    # The function, although the package has parts that it is made of.
    assert callable(tunecli.train)


def test_the_config_floor_is_free_of_heavy_packages():
    code = (
        "import sys, tunecli, tunecli.config, tunecli.cli.app;"
        "heavy = {'torch', 'transformers', 'accelerate', 'datasets', 'peft'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_preprocess_then_train_from_the_cache(tmp_path, capsys):
    config = run_config(tmp_path)
    report = preprocess(config, tunecli.Reporter())
    assert report.train.kept == 10
    capsys.readouterr()
    train(config, tunecli.Reporter())
    assert "tokenizing" not in capsys.readouterr().err


@pytest.mark.parametrize("values", [{}, LORA], ids=["full", "lora"])
def test_evaluate_gives_the_loss_of_the_run(tmp_path, values):
    config = run_config(tmp_path, val_set_size=3, save_steps=7, save_strategy="steps", **values)
    result = train(config)
    again = evaluate(config)
    assert again.eval_loss == pytest.approx(result.eval_loss, abs=1e-6)
    assert again.perplexity > 1
    checkpoint = evaluate(config, model_dir=Path(config.output_dir) / "checkpoint-7")
    assert checkpoint.eval_loss == pytest.approx(result.eval_loss, abs=1e-6)


def test_evaluate_needs_rows_and_a_model(tmp_path):
    with pytest.raises(ConfigError, match="no evaluation rows"):
        evaluate(run_config(tmp_path))
    with pytest.raises(ModelError, match="train first"):
        evaluate(run_config(tmp_path, val_set_size=2))


@pytest.mark.parametrize("values", [{}, LORA], ids=["full", "lora"])
def test_chat_answers_from_a_finished_run(tmp_path, values):
    config = run_config(tmp_path, chat_rows(4), tokens=["new"] if not values else None, **values)
    train(config)
    session = ChatSession.load(config.output_dir, max_new_tokens=5)
    first = session.ask("w0 w1")
    assert isinstance(first, str)
    assert [message["role"] for message in session.messages] == ["user", "assistant"]
    session.reset()
    assert session.messages == []
    assert session.ask("w0 w1") == first
    sampling = ChatSession.load(config.output_dir, max_new_tokens=5, temperature=1.0, system="w3")
    assert "".join(sampling.stream("w1")) is not None
    assert sampling.messages[0] == {"role": "system", "content": "w3"}


def test_chat_refuses_what_is_no_chat_model(tmp_path):
    with pytest.raises(ModelError, match="cannot be loaded for chat"):
        ChatSession.load(tmp_path)
    write_model_dir(tmp_path / "model", tokenizer=toy_tokenizer(template=None))
    with pytest.raises(ModelError, match="no chat template"):
        ChatSession.load(tmp_path / "model")


def test_a_failure_while_generating_reaches_the_caller(tmp_path):
    write_model_dir(tmp_path / "model")
    session = ChatSession.load(tmp_path / "model")

    def fail(**arguments):
        raise RuntimeError("no memory")

    session.model.generate = fail
    with pytest.raises(RuntimeError, match="no memory"):
        session.ask("w0")
