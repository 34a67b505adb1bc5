"""Summaries by a program that reads the conversation from stdin and prints the summary."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from memctl.errors import Unavailable, UsageError
from memctl.inference.errors import ModelError, too_large
from memctl.inference.settings import Prices, Settings, Usage, path_of
from memctl.inference.tables import CommandSummarizer
from memctl.inference.text import encodable, one_line
from memctl.inference.tokens import TokenCounter
from memctl.machine import system
from memctl.summarizer import Answer, Excerpt, Summarizer
from memctl.summarizers import prompts, replies

REPLY = 2000
"""The tokens of the context window that are reserved for the summary."""
MAX_OUTPUT = 1 << 20
MAX_STDERR = 1 << 12
"""The maximum bytes to keep of standard output (``MAX_OUTPUT``) and of standard error."""
TEMPORARY_FAILURE = 75
"""The exit code for a temporary failure (EX_TEMPFAIL of sysexits.h)."""
CANNOT_RUN = (126, 127)
"""The exit codes of a shell if the command cannot be run or is not found."""


class Command(Summarizer):
    """A summarizer that runs a program for each summary, in a process group of its own."""

    kind = "command"

    def __init__(self, settings: Settings, prompt: str | None) -> None:
        self.name = settings.name
        table = settings.read(CommandSummarizer)
        self._arguments = _arguments(table.command)
        self._transcript_only = table.input == "transcript"
        self._fields_only = table.reply == "fields"
        if self._transcript_only and prompt is not None:
            raise UsageError(
                f"summarizers.{self.name} reads the bare transcript without a prompt",
                'leave out --prompt-file, or write input = "prompt"',
            )
        self._instructions = prompt
        self._environment = system.child_environment(settings.secret_variables, table.environment)
        self._timeout = table.timeout
        self._counter = TokenCounter(path_of(table.tokenizer))
        self.window = table.context_window
        self.concurrency = table.concurrency or Summarizer.concurrency
        self.max_retries = table.max_retries
        self.prices = Prices.configured(table.input_price, table.output_price)
        self.overhead = self.count(self._input(Excerpt([], earlier=" "))[0]) + REPLY
        if self.window <= self.overhead:
            raise settings.invalid("context_window", f"more than {self.overhead}, for this prompt")

    def count(self, text: str) -> int:
        return self._counter.count(text)

    @property
    def counted_by(self) -> str:
        return self._counter.name

    async def summarize(self, excerpt: Excerpt) -> Answer:
        """Return the summary that the program prints for an excerpt, in fields or as text."""
        text, nonce = self._input(excerpt)
        try:
            code, output, stderr = await self._run(text)
        except TimeoutError as error:
            raise ModelError(
                "timeout", f"the program did not end within {self._timeout:.0f} s", retry=True
            ) from error
        self._check(code, stderr)
        printed = output.decode("utf-8", "replace")
        usage = Usage(self.count(text), self.count(printed))
        read = replies.read_summary if self._fields_only else replies.read_any
        return Answer(read(printed, nonce, usage), usage)

    def _input(self, excerpt: Excerpt) -> tuple[str, str]:
        """Return the input for the program, and the nonce of its fences."""
        if self._transcript_only:
            earlier = [excerpt.earlier] if excerpt.earlier else []
            return encodable("\n\n".join([*earlier, prompts.transcript(excerpt)])) + "\n", ""
        prompt = prompts.build_prompt(excerpt, self._instructions)
        return f"{prompt.system}\n\n{prompt.user}\n", prompt.nonce

    async def _run(self, text: str) -> tuple[int, bytes, bytes]:
        """Run the program with an input; return exit code, standard output and standard error."""
        try:
            transport, running = await asyncio.get_running_loop().subprocess_exec(
                _Running, *self._arguments, env=self._environment, start_new_session=True
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise Unavailable(
                f"the program of summarizers.{self.name} cannot be run: {reason}",
                "check its command",
            ) from error
        try:
            stdin = transport.get_pipe_transport(0)
            assert isinstance(stdin, asyncio.WriteTransport)
            stdin.write(text.encode())
            stdin.close()
            async with asyncio.timeout(self._timeout):
                await running.stopped.wait()
        finally:
            await _end(transport, running)
        if len(running.output) > MAX_OUTPUT:
            raise too_large("the program printed", MAX_OUTPUT)
        code = transport.get_returncode()
        assert code is not None
        return code, bytes(running.output), bytes(running.stderr)

    def _check(self, code: int, stderr: bytes) -> None:
        if code == 0:
            return
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        reason = one_line(lines[0]) if lines else "it printed no message"
        end = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        message = f"the program {end}: {reason}"
        if code in CANNOT_RUN:
            raise Unavailable(message, f"check the command of summarizers.{self.name}")
        raise ModelError("program-failed", message, retry=code == TEMPORARY_FAILURE)


class _Running(asyncio.SubprocessProtocol):
    """A running program: what it has printed, within the limits, and whether it has ended.

    The streams of ``asyncio`` would wait for the end of the output of a killed program, even if a
    process outside of the group keeps it open.
    """

    def __init__(self) -> None:
        self.output = bytearray()
        self.stderr = bytearray()
        self.exited = asyncio.Event()
        self.complete = False
        """True once the program has ended, and no process can print any more."""
        self.stopped = asyncio.Event()
        """Set once the run is complete, or the output too large."""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        # What exceeds a limit is read and dropped, so that no program blocks.
        if fd == 1:
            self.output += data[: MAX_OUTPUT + 1 - len(self.output)]
            if len(self.output) > MAX_OUTPUT:
                self.stopped.set()
        else:
            self.stderr += data[: MAX_STDERR - len(self.stderr)]

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, _: Exception | None) -> None:
        self.complete = True
        self.stopped.set()


async def _end(transport: asyncio.SubprocessTransport, running: _Running) -> None:
    """Kill the process group of the program unless it has ended."""
    if not running.complete:
        with suppress(ProcessLookupError):
            os.killpg(transport.get_pid(), signal.SIGKILL)
        # A second cancellation must not leave a zombie.
        await asyncio.shield(running.exited.wait())
    transport.close()


def _arguments(command: str | tuple[str, ...]) -> list[str]:
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
