"""onnxruntime on the CPU or CUDA."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from layermerge.runtimes.onnx_file import Feed, OnnxRuntimeBase, ServedFile, Session
from layermerge.runtimes.onnx_owners import owner_named, owners_of
from layermerge.runtimes.recording import Operator, Recording
from layermerge.tracing.inputs import Inputs

_TIMED = "_kernel_time"


class OnnxRuntime(OnnxRuntimeBase):
    """An inference session over the exported file."""

    name = "onnxruntime"
    package = "onnxruntime"
    extra = "layermerge[export]"

    def session(self, path: Path) -> tuple[list[str], Session]:
        session = self._session(path, self._options())
        return _names(session), lambda feed: session.run(None, feed)

    def recorded(self, path: Path, inputs: Inputs) -> Recording | None:
        if self.settings.device != "cpu":
            return None  # what its profile says of a GPU is when work was queued
        folder, options = Path(tempfile.mkdtemp()), self._options()
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "profile")
        session = self._session(path, options)
        feed = ServedFile(_names(session), lambda given: session.run(None, given)).feed(inputs.tensors)
        profile = _Profile(session, feed, owners_of(path))
        # One that nobody asks for its passes, since a first pass has told enough, leaves nothing behind either.
        weakref.finalize(profile, shutil.rmtree, folder, ignore_errors=True)
        return profile

    def _options(self) -> Any:
        library: Any = self.library
        options = library.SessionOptions()
        options.intra_op_num_threads = self.settings.threads
        options.inter_op_num_threads = 1
        # Spinning threads would slow down whatever else the machine does, and so the clock itself.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        return options

    def _session(self, path: Path, options: Any) -> Any:
        library: Any = self.library
        providers = ["CPUExecutionProvider"]
        if self.settings.device.startswith("cuda"):
            providers.insert(0, "CUDAExecutionProvider")
        return library.InferenceSession(str(path), options, providers=providers)


def _names(session: Any) -> list[str]:
    return [value.name for value in session.get_inputs()]


@dataclass(frozen=True)
class _Profile(Recording):
    """onnxruntime's own profile, which it writes to a file at the end: one event for each operator of each pass."""

    session: Any
    feed: Feed
    owners: Mapping[str, str]
    calls: list[None] = field(default_factory=list)

    def __call__(self) -> None:
        self.session.run(None, self.feed)
        self.calls.append(None)

    def passes(self) -> list[Sequence[Operator]]:
        events = json.loads(Path(self.session.end_profiling()).read_text(encoding="utf-8"))
        timed = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_TIMED)]
        operators = [self._operator(event) for event in timed]
        count = len(operators) // len(self.calls)
        return [operators[at : at + count] for at in range(0, len(operators), count)]

    def _operator(self, event: Any) -> Operator:
        owner = owner_named(dict(self.owners), event["name"].removesuffix(_TIMED))
        return Operator(owner, "Conv" in event["args"]["op_name"], event["dur"] / 1000)
