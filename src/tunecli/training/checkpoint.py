"""Checkpoints: written whole or not at all, read without running code, pruned with care.

A checkpoint is a folder `checkpoint-N`:

    model/, optimizer/   tensors, by torch.distributed.checkpoint: each process writes what it
                         holds, and any other layout can read it
    rng-R.safetensors    random state of the processes of tensor-parallel group R
    state.json           step, epoch, counters, best score, what the run depends on
    config.yaml          the effective configuration
    tokenizer and model config files, so that the folder explains itself
    manifest.json        names and sizes of all files; written last
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ..errors import CheckpointError
from ..files import temporary_name, whole_directory, write_json
from .state import TrainState

if TYPE_CHECKING:
    from ..reporter import Reporter

FORMAT = 1
"""Raised when older readers could misread a checkpoint."""

MANIFEST = "manifest.json"
_SAFE_MODULES = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
)
_SAFE_NAMES = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "Path"),
}


class _MetadataUnpickler(pickle.Unpickler):
    """Reads the index that torch.distributed.checkpoint pickles, and nothing else.

    A pickle may name any callable, so every name is checked against a short list.
    """

    def find_class(self, module: str, name: str) -> Any:
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if dtype or (module, name) in _SAFE_NAMES or module in _SAFE_MODULES:
            return super().find_class(module, name)
        raise CheckpointError(f"the checkpoint's index names {module}.{name}: not a checkpoint")


class _SafeReader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        data = (Path(self.path) / ".metadata").read_bytes()
        metadata: Metadata = _MetadataUnpickler(io.BytesIO(data)).load()
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    path: Path
    state: TrainState
    depends_on: dict[str, Any]


def trained_tensors(model: nn.Module, adapter: bool) -> dict[str, torch.Tensor]:
    """Return what a checkpoint holds of the model, tied weights once, by name.

    For an adapter only what is trained: the frozen base is where it came from.
    """
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad or not adapter
    }


def _optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        f"{name}.{key}": value
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, torch.Tensor)
    }


def _materialise(optimizer: torch.optim.Optimizer) -> None:
    """Create the optimizer's state tensors, which it makes in its first step, without moving."""
    if optimizer.state:
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def _rng_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _rng_file(directory: Path, rank: int, peers: int) -> Path:
    # By group, not by process: on a mesh with more tensor parallelism, processes that must draw
    # the same would otherwise go on from the states of processes that drew differently.
    return directory / f"rng-{rank // peers}.safetensors"


def save_checkpoint(
    output_dir: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    state: TrainState,
    depends_on: dict[str, Any],
    *,
    adapter: bool,
    extras: Callable[[Path], None],
    rank: int = 0,
    peers: int = 1,
) -> Path:
    """Write `checkpoint-N` into `output_dir` and return its path.

    Args:
        output_dir: Directory of the run.
        model: Model with the weights to save.
        optimizer: `None` leaves its state out: training cannot resume from such a checkpoint.
        state: Progress; `state.step` is N.
        depends_on: Values that a resumed run must share (data, seed, batch).
        adapter: Save trained parameters only.
        extras: Writes further files (tokenizer, configuration) into the folder it is given;
            called on every process.
        rank: Number of this process.
        peers: Neighbouring processes that draw the same random numbers (tensor parallelism).

    Raises:
        CheckpointError: The system refused a write; earlier checkpoints are as they were.
    """
    path = output_dir / f"checkpoint-{state.step}"
    try:
        with _shared_directory(path, rank) as directory:
            _write_tensors(directory / "model", trained_tensors(model, adapter))
            if optimizer is not None:
                _write_tensors(directory / "optimizer", _optimizer_tensors(model, optimizer))
            if rank % peers == 0:
                save_file(_rng_state(), str(_rng_file(directory, rank, peers)))
            extras(directory)
            if rank == 0:
                write_json(
                    directory / "state.json", {"state": state.to_json(), "depends_on": depends_on}
                )
            _wait()
            if rank == 0:
                manifest = _manifest(directory, state, optimizer is not None)
                write_json(directory / MANIFEST, manifest)
    except CheckpointError:
        raise
    except (Exception, CheckpointException) as error:
        # torch.distributed.checkpoint wraps what the system said; the root cause is what helps.
        if (cause := _system_error(error)) is None:
            raise
        raise CheckpointError(f"{path} could not be written: {cause}") from error
    return path


def _wait() -> None:
    if not _alone():
        torch.distributed.barrier()


@contextmanager
def _shared_directory(path: Path, rank: int) -> Iterator[Path]:
    """`whole_directory`, made and renamed by the first process, filled by all."""
    if rank == 0:
        with whole_directory(path) as directory:
            _wait()
            yield directory
    else:
        _wait()
        yield temporary_name(path)
    # Nobody goes on before the checkpoint has its name.
    _wait()


def _system_error(error: BaseException) -> OSError | RuntimeError | None:
    seen: list[BaseException] = [error]
    for current in seen:
        if isinstance(current, OSError):
            return current
        failures = getattr(current, "failures", {})
        nested = [value[0] if isinstance(value, tuple) else value for value in failures.values()]
        candidates = [current.__cause__, current.__context__, *nested]
        seen.extend(c for c in candidates if isinstance(c, BaseException) and c not in seen)
    # torch's serializer and safetensors (Rust) report a full disk in types of their own.
    for current in seen:
        text = str(current)
        if any(word in text for word in ("No space", "os error", "File too large", "write")):
            return RuntimeError(text)
    return None


def _alone() -> bool:
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


@contextmanager
def _without_reminder() -> Iterator[None]:
    """One process is what we mean; torch warns that we might have meant more."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _write_tensors(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    writer = FileSystemWriter(directory, single_file_per_rank=True, sync_files=True)
    with _without_reminder():
        save(dict(tensors), storage_writer=writer, no_dist=_alone())


def _read_tensors(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    try:
        with _without_reminder():
            load(dict(tensors), storage_reader=_SafeReader(directory), no_dist=_alone())
    except CheckpointException as error:
        # It carries a whole traceback as its text: the last line says what is wrong.
        cause = str(error).strip().splitlines()[-1]
        raise CheckpointError(f"{directory} does not fit this model: {cause}") from error


def _manifest(directory: Path, state: TrainState, resumable: bool) -> dict[str, Any]:
    files = {
        str(file.relative_to(directory)): file.stat().st_size
        for file in sorted(directory.rglob("*"))
        if file.is_file()
    }
    return {"format": FORMAT, "step": state.step, "resumable": resumable, "files": files}


def read_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint after checking that it is complete.

    Raises:
        CheckpointError: It is missing, incomplete, damaged or of another format.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {manifest['format']}, not {FORMAT}")
        for name, size in manifest["files"].items():
            actual = (path / name).stat().st_size
            if actual != size:
                raise CheckpointError(f"{path / name} has {actual} bytes instead of {size}")
        saved = json.loads((path / "state.json").read_text(encoding="utf-8"))
        return Checkpoint(path, TrainState.from_json(saved["state"]), saved["depends_on"])
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is no complete checkpoint: {error.filename}") from error
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def list_checkpoints(output_dir: Path) -> list[Path]:
    """Return the checkpoint folders of a run, oldest step first, complete or not."""
    found = [
        (int(path.name.removeprefix("checkpoint-")), path)
        for path in output_dir.glob("checkpoint-*")
        if path.is_dir() and path.name.removeprefix("checkpoint-").isdigit()
    ]
    return [path for _, path in sorted(found)]


def find_checkpoint(output_dir: Path, reporter: Reporter) -> Checkpoint | None:
    """Return the newest complete checkpoint; say which newer ones were skipped, and why."""
    for path in reversed(list_checkpoints(output_dir)):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            reporter.warn(f"skipped: {error}")
    return None


def load_weights(path: Path, model: nn.Module, *, adapter: bool) -> None:
    """Copy the weights of a checkpoint into `model`, in place.

    Raises:
        CheckpointError: Names or shapes differ, or files are damaged.
    """
    _read_tensors(path / "model", trained_tensors(model, adapter))


def restore(
    checkpoint: Checkpoint,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    adapter: bool,
    rank: int = 0,
    peers: int = 1,
) -> TrainState:
    """Put weights, optimizer and random state back as they were; return the progress.

    `rank` and `peers` are those of `save_checkpoint`, of the mesh as it is now.

    Raises:
        CheckpointError: It was saved without optimizer state, or does not fit.
    """
    if not (checkpoint.path / "optimizer").is_dir():
        raise CheckpointError(
            f"{checkpoint.path} was saved with save_only_model: true; training cannot resume "
            "from it. Use it as base_model (or lora_model_dir) of a new run"
        )
    load_weights(checkpoint.path, model, adapter=adapter)
    _materialise(optimizer)
    _read_tensors(checkpoint.path / "optimizer", _optimizer_tensors(model, optimizer))
    file = _rng_file(checkpoint.path, rank, peers)
    if file.exists():
        # A larger mesh has processes that did not exist then: they keep their fresh seed.
        random = load_file(str(file))
        torch.set_rng_state(random["cpu"])
        if torch.cuda.is_available() and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"])
    return checkpoint.state


def prune(output_dir: Path, limit: int | None, best_step: int | None) -> None:
    """Remove the oldest checkpoints beyond `limit`, but never the best nor the newest one.

    Called after a new one is complete.
    """
    if limit is None:
        return
    paths = list_checkpoints(output_dir)
    best = output_dir / f"checkpoint-{best_step}"
    keep = set(paths[-limit:]) | {best}
    for path in paths:
        if path not in keep:
            shutil.rmtree(path)
