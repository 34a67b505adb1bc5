"""Summaries by a program: the conversation on its standard input, the summary on its output."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

from memctl import system
from memctl.errors import Unavailable, UsageError
from memctl.summarizer import (
    Answer,
    Excerpt,
    Settings,
    Summarizer,
    SummaryError,
    Usage,
)
from memctl.summarizers import prompts, reply
from memctl.summarizers.options import Options
from memctl.summarizers.prompts import Prompt
from memctl.summarizers.texts import encodable, one_line
from memctl.summarizers.tokenizer import Counter

WINDOW = 32_000
TIMEOUT = 300.0
REPLY = 2000
"""Tokens kept free for the summary."""
LONGEST_OUTPUT = 1 << 20
LONGEST_COMPLAINT = 1 << 12
"""Bytes of standard output and of standard error that are looked at."""
TRY_AGAIN = 75
"""The exit code of a program that failed for a while (EX_TEMPFAIL of sysexits.h)."""
CANNOT_RUN = (126, 127)
"""The exit codes of a shell that cannot run the command, or does not find it."""


class Command(Summarizer):
    """Runs a program for each summary, in a process group of its own."""

    kind = "command"

    def __init__(self, settings: Settings, prompt: str | None) -> None:
        options = Options(settings)
        self.name = settings.name
        self._arguments = _arguments(options)
        self._bare = options.choice("input", "prompt", ("prompt", "transcript")) == "transcript"
        self._fields_only = options.choice("reply", "any", ("any", "fields")) == "fields"
        if self._bare and prompt is not None:
            raise UsageError(
                f"summarizers.{self.name} gets the bare transcript, no prompt",
                'leave out --prompt-file, or write input = "prompt"',
            )
        self._instructions = prompt
        self._timeout = options.seconds("timeout", TIMEOUT)
        self._counter = Counter(options.path("tokenizer"))
        self.window = options.whole("context_window", WINDOW)
        self.concurrency = options.whole("concurrency", Summarizer.concurrency)
        self.prices = options.prices()
        self.overhead = self.count(self._input(Excerpt([], earlier=" "))[0]) + REPLY
        if self.window <= self.overhead:
            raise options.wrong("context_window", f"more than {self.overhead}, for this prompt")

    def count(self, text: str) -> int:
        return self._counter.count(text)

    @property
    def counted_by(self) -> str:
        return self._counter.name

    async def summarize(self, excerpt: Excerpt) -> Answer:
        """One summary, in fields or as text."""
        text, nonce = self._input(excerpt)
        try:
            code, output, complaint = await self._run(text)
        except TimeoutError as error:
            raise SummaryError(
                "timeout", f"the program did not end within {self._timeout:.0f} s", retry=True
            ) from error
        self._check(code, complaint)
        if len(output) > LONGEST_OUTPUT:
            raise reply.bad(f"the program printed more than {LONGEST_OUTPUT} bytes")
        printed = output.decode("utf-8", "replace")
        usage = Usage(self.count(text), self.count(printed))
        read = reply.read_summary if self._fields_only else reply.read_any
        return Answer(read(printed, nonce, usage), usage)

    def _input(self, excerpt: Excerpt) -> tuple[str, str]:
        """What the program reads, and the code of the fence in it."""
        if self._bare:
            earlier = [excerpt.earlier] if excerpt.earlier else []
            return encodable("\n\n".join([*earlier, prompts.transcript(excerpt)])) + "\n", ""
        prompt: Prompt = prompts.write(excerpt, self._instructions)
        return f"{prompt.system}\n\n{prompt.user}\n", prompt.nonce

    async def _run(self, text: str) -> tuple[int, bytes, bytes]:
        """The exit code of the program, its output and what it complains of."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise Unavailable(
                f"the program of summarizers.{self.name} cannot be run: {reason}",
                "check its command",
            ) from error
        ended = False
        try:
            async with asyncio.timeout(self._timeout):
                result = await _talk(process, text.encode())
            ended = True
        finally:
            if not ended:
                await _kill(process)
        return result

    def _check(self, code: int, complaint: bytes) -> None:
        if code == 0:
            return
        lines = complaint.decode("utf-8", "replace").strip().splitlines()
        said = one_line(lines[0]) if lines else "it says nothing"
        ending = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        message = f"the program {ending}: {said}"
        if code in CANNOT_RUN:
            raise Unavailable(message, f"check the command of summarizers.{self.name}")
        raise SummaryError("program-failed", message, retry=code == TRY_AGAIN)


async def _talk(process: Process, text: bytes) -> tuple[int, bytes, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    _, output, complaint = await asyncio.gather(
        _feed(process.stdin, text),
        _read(process.stdout, LONGEST_OUTPUT + 1),
        _read(process.stderr, LONGEST_COMPLAINT),
    )
    return await process.wait(), output, complaint


async def _feed(stream: asyncio.StreamWriter, text: bytes) -> None:
    # A program need not read all that it is given.
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(text)
        await stream.drain()
    stream.close()
    with suppress(BrokenPipeError, ConnectionResetError):
        await stream.wait_closed()


async def _read(stream: asyncio.StreamReader, limit: int) -> bytes:
    """The first bytes of the stream, which is read to its end: nobody is to wait for a reader."""
    kept = bytearray()
    while piece := await stream.read(1 << 16):
        kept += piece[: limit - len(kept)]
    return bytes(kept)


async def _kill(process: Process) -> None:
    """Ends the program and all that it has started, and reaps it."""
    with suppress(ProcessLookupError):
        system.kill_group(process.pid)
    # A second cancellation must not leave a zombie.
    await asyncio.shield(process.wait())


def _arguments(options: Options) -> list[str]:
    wanted = "a text for the shell, or a list of texts"
    match options.value("command"):
        case str(text) if text.strip() and not system.POSIX:
            raise options.wrong("command", "a list of texts: this system has no shell for a text")
        case str(text) if text.strip():
            return ["/bin/sh", "-c", text]
        case [str(), *_] as words if all(isinstance(word, str) for word in words):
            return list(words)
        case None:
            raise UsageError(
                f"summarizers.{options.name} has no command", 'write command = "llm -m gpt-4.1"'
            )
    raise options.wrong("command", wanted)
