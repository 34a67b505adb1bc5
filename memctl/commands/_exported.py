"""What an export reports."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from memctl.commands._destination import STDOUT, Shape
from memctl.commands._reports import CopyOutcome
from memctl.location import visible
from memctl.output.numbers import count
from memctl.output.terminal import Output


class ExportOutcome(CopyOutcome):
    """What became of the memories, which file or folder has them, and which files went."""

    def __init__(self, source: str, file: str, shape: Shape, *, dry_run: bool) -> None:
        super().__init__("export", source, file, dry_run=dry_run)
        self.file = file
        self.shape = shape
        self.bytes: int | None = None
        """Of the file that was written; None of a folder, and of a dry run."""
        self.removed: list[str] = []
        """Files that were removed, or would be."""

    def _data(self) -> dict[str, Any]:
        data = super()._data()
        del data["target"]
        return data | {
            "file": self.file,
            "as": self.shape.value,
            "bytes": self.bytes,
            "removed": self.removed,
        }

    def _rows(self) -> list[dict[str, Any]]:
        data = self._data()
        flat = {name: data[name] for name in ("dry_run", "source", "file", "as", "bytes")}
        for what in ("memories", "messages"):
            flat |= {f"{what}_{name}": number for name, number in data[what].items()}
        return [flat | {"removed": len(self.removed)}]

    def _table(self) -> RenderableType | None:
        if not (self.dry_run and self.ended):
            return None  # stdout may be what is exported: what was done is a note
        from rich.text import Text  # needs Rich, which helping does not

        return Text("\n".join(self._facts("would be ")))

    def tell(self, output: Output) -> None:
        """Says on stderr what was done, where no report on stdout does."""
        if self.file != STDOUT and not self.dry_run:
            for line in self._facts(""):
                output.note(line)

    def _facts(self, would: str) -> list[str]:
        memories = self.copied.memories
        said = f"{count(memories.written, 'memory')} {would}written to {visible(self.file)}"
        if memories.unchanged:
            said += f", {memories.unchanged:,} unchanged"
        return [said, *(f"{visible(path)} {would}removed" for path in self.removed)]
