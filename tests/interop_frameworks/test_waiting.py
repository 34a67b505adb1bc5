"""Calls that wait for a person: left alone by ``doctor --repair``, and answered afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memctl.dialects.agentscope1 import AGENTSCOPE1
from memctl.dialects.view import TextBlock, ToolCallBlock, ToolResultBlock
from tests.interop_frameworks.test_doctor import ask
from tests.support.cli import contents, fails, report

pytestmark = pytest.mark.slow

ADK = """
import asyncio, json, sys
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.genai import types

sent = {}

class Played(BaseLlm):
    async def generate_content_async(self, request, stream=False):
        sent[NOW[0]] = [part.model_dump(exclude_none=True)
                        for one in request.contents for part in one.parts]
        said = request.contents[-1].parts[-1].text or ""
        calls = {"Pay": ("pay", {"amount": 200}), "Book": ("book", {"seat": "12A"}),
                 "Ship": ("ship", {})}
        part = types.Part(text="Done.")
        if said.split(" ")[0] in calls:
            name, args = calls[said.split(" ")[0]]
            part = types.Part(function_call=types.FunctionCall(name=name, args=args))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))

NOW = [""]

def pay(amount: int) -> dict:
    return {"paid": amount}

def book(seat: str) -> dict:
    return {"status": "pending"}

def ship() -> None:
    return None

async def main():
    service = DatabaseSessionService("sqlite+aiosqlite:///" + sys.argv[2])
    tools = [FunctionTool(pay, require_confirmation=True), LongRunningFunctionTool(book),
             LongRunningFunctionTool(ship)]
    agent = LlmAgent(name="clerk", model=Played(model="m"), tools=tools)
    runner = Runner(app_name="shop", agent=agent, session_service=service)
    for session, text, answer in (("pays", "Pay 200.", {"confirmed": True}),
                                  ("books", "Book 12A.", {"status": "booked"}),
                                  ("ships", "Ship it.", {"status": "sent"})):
        about = {"app_name": "shop", "user_id": "ada", "session_id": session}
        if sys.argv[1] == "write":
            await service.create_session(**about)
            part = types.Part(text=text)
        else:
            events = (await service.get_session(**about)).events
            call = next(call for event in events for call in event.get_function_calls()
                        if call.id in (event.long_running_tool_ids or ()))
            part = types.Part(function_response=types.FunctionResponse(
                id=call.id, name=call.name, response=answer))
        NOW[0] = session
        more = [types.Part(text="Fine.")] * (session == "ships")
        for one in [part, *more]:
            said = types.Content(role="user", parts=[one])
            async for _ in runner.run_async(user_id="ada", session_id=session, new_message=said):
                pass
    print(json.dumps(sent))

asyncio.run(main())
"""

AGENTS = """
import asyncio, json, sys
from pathlib import Path
from agents import Agent, Runner, RunState, SQLiteSession, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.usage import Usage
from openai.types.responses import (
    ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText)

set_tracing_disabled(True)

class Played(Model):
    async def get_response(self, system_instructions, input, *args, **more):
        call = ResponseFunctionToolCall(type="function_call", call_id="c1", id="fc_1",
                                        name="pay", arguments='{"amount": 200}')
        text = ResponseOutputText(type="output_text", text="Done.", annotations=[])
        said = ResponseOutputMessage(id="m1", type="message", role="assistant",
                                     status="completed", content=[text])
        output = [call if input[-1].get("role") == "user" else said]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args, **more):
        raise NotImplementedError

@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"

async def main():
    agent = Agent(name="clerk", model=Played(), tools=[pay])
    session, state = SQLiteSession("s", sys.argv[2]), Path(sys.argv[2] + ".state")
    if sys.argv[1] == "write":
        state.write_text((await Runner.run(agent, "Pay.", session=session)).to_state().to_string())
    else:
        run = await RunState.from_string(agent, state.read_text())
        for one in run.get_interruptions():
            run.approve(one)
        await Runner.run(agent, run, session=session)
    print(json.dumps([one.get("type", one.get("role")) for one in await session.get_items()]))

asyncio.run(main())
"""


def said(place: Path, session: str) -> list[Any]:
    """Return what the calls, results and texts of a session of AgentScope 1.x say."""
    [found] = [some for key, some in contents(str(place)).items() if key.session == session]
    shown: list[Any] = []
    for one in found:
        for block in AGENTSCOPE1.parse(one.message).blocks:
            match block:
                case ToolCallBlock(_, name, input):
                    shown.append({name: input})
                case ToolResultBlock(output=[TextBlock(text)]) | TextBlock(text):
                    shown.append(text)
    return shown


def test_a_confirmation_of_adk_comes_after_a_repair(run: Any, tmp_path: Path) -> None:
    """A copy has what ADK sends: no request to the user, the last result, behind its call."""
    path, copy = tmp_path / "adk.db", tmp_path / "copy.db"
    ask(ADK, "write", path)
    found = report(run("doctor", path, "--repair", "--yes", "--json"))
    assert [(one["code"], one["session"]) for one in found["findings"]] == [
        ("waiting-call", "pays"),
        ("waiting-call", "ships"),
    ]
    fails(run("migrate", path, copy), 9, "calls that wait", "adk_request_confirmation 1", "ship 1")
    assert run("migrate", path, copy, "--lossy").exit_code == 0
    assert said(copy, "books")[1:3] == [{"book": {"seat": "12A"}}, '{"status":"pending"}']
    sent = ask(ADK, "answer", path)
    assert [one["function_response"]["response"] for one in sent["pays"][2:]] == [{"paid": 200}]
    assert report(run("doctor", path, "--json"))["findings"] == []
    assert run("migrate", path, copy).exit_code == 0
    assert said(copy, "pays") == ["Pay 200.", {"pay": {"amount": 200}}, '{"paid":200}', "Done."]
    assert said(copy, "books")[1:3] == [{"book": {"seat": "12A"}}, '{"status":"booked"}']
    shipped = ["Ship it.", {"ship": {}}, '{"status":"sent"}', "Fine.", "Done.", "Done.", "Fine."]
    assert [next(iter(one)) for one in sent["ships"]] == [
        *("text", "function_call", "function_response"),
        *["text"] * 4,
    ]
    assert said(copy, "ships") == [*shipped, "Done."]
    codes = [one["code"] for one in report(run("doctor", copy, "--json"))["findings"]]
    assert codes == ["no-session-index"]
    back = f"sqlite:///{tmp_path}/back.db?layout=adk&app=shop"
    assert run("migrate", copy, back).exit_code == 0
    assert run("verify", path, back).exit_code == 0


def test_an_approval_of_openai_agents_comes_after_a_repair(run: Any, tmp_path: Path) -> None:
    """The session has only the call: the SDK keeps the request for an approval elsewhere."""
    path, copy = tmp_path / "agents.db", tmp_path / "copy.db"
    assert ask(AGENTS, "write", path) == ["user", "function_call"]
    found = report(run("doctor", path, "--repair", "--yes", "--json"))
    assert [one["code"] for one in found["findings"]] == ["waiting-call"]
    done = run("migrate", path, copy)
    assert (done.exit_code, "no result yet for 1 call" in done.stderr) == (0, True)
    assert said(copy, "s") == ["Pay.", "[pay: waits for an answer]"]
    assert ask(AGENTS, "answer", path) == [
        *("user", "function_call", "function_call_output", "message"),
    ]
    assert run("migrate", path, copy).exit_code == 0
    assert said(copy, "s") == ["Pay.", {"pay": {"amount": 200}}, "paid 200", "Done."]
