"""TensorBoard: numbers of findings as scalars, findings and the report as texts."""

from __future__ import annotations

from typing import Any, ClassVar

from traincheck.sinks.base import Message, Sink, imported

_TEXT = "text"  # the plugin that shows Markdown


class TensorBoard(Sink):
    """Event files.

    Args:
        directory: where to write them.

    Raises:
        MissingDependencyError: tensorboard is not installed.
    """

    target: ClassVar[str] = "directory"

    def __init__(self, directory: str = "runs/traincheck") -> None:
        event, summary, tensor, types, writer = (
            imported(f"tensorboard.{name}", "TensorBoard")
            for name in (
                "compat.proto.event_pb2",
                "compat.proto.summary_pb2",
                "compat.proto.tensor_pb2",
                "compat.proto.types_pb2",
                "summary.writer.event_file_writer",
            )
        )
        self._event, self._summary = event.Event, summary.Summary
        self._metadata, self._tensor = summary.SummaryMetadata, tensor.TensorProto
        self._string = types.DT_STRING
        self._directory = directory
        self._writer = writer.EventFileWriter(directory)

    def finding(self, message: Message) -> None:
        """Write the finding as text, and the number of findings so far."""
        found = message["finding"]
        step = found["first_step"] or 0
        self._numbers(message["counts"], step)
        self._text(f"traincheck/{found['code']}", message["text"].replace("\n", "\n\n"), step)

    def report(self, message: Message) -> None:
        """Write the numbers of the report, and all of it as text."""
        step = message["summary"]["steps"]
        self._numbers({**message["counts"], **message["summary"]}, step)
        self._numbers({"exit_status": message["exit_status"]}, step)
        self._text("traincheck/report", message["markdown"], step)

    def close(self) -> str:
        """Write what is left."""
        self._writer.close()
        return f"tensorboard --logdir {self._directory}"

    def _numbers(self, numbers: Any, step: int) -> None:
        summary = self._summary()
        for key, value in numbers.items():
            summary.value.add(tag=f"traincheck/{key}", simple_value=float(value))
        self._writer.add_event(self._event(step=step, summary=summary))

    def _text(self, tag: str, text: str, step: int) -> None:
        metadata = self._metadata(
            plugin_data=self._metadata.PluginData(plugin_name=_TEXT), data_class=2
        )
        tensor = self._tensor(dtype=self._string, string_val=[text.encode()])
        tensor.tensor_shape.dim.add(size=1)
        summary = self._summary()
        summary.value.add(tag=tag, metadata=metadata, tensor=tensor)
        self._writer.add_event(self._event(step=step, summary=summary))
