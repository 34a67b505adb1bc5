"""An agent of Google's Agent Development Kit with ``DatabaseSessionService``."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.events import Event
from google.adk.models import Gemini
from google.adk.runners import Runner
from google.adk.sessions import DatabaseSessionService
from google.adk.tools import FunctionTool, LongRunningFunctionTool
from google.genai import types

USER, NAME = "ada", "weather"
PICTURE = types.Part(inline_data=types.Blob(data=b"\x89PNG", mime_type="image/png"))


def weather(city: str) -> dict[str, Any]:
    return {"result": f"sunny in {city}"}


def pay(amount: int) -> dict[str, Any]:
    return {"paid": amount}


def book(seat: str) -> dict[str, Any]:
    return {"status": f"pending: {seat}"}


def call(number: int) -> None:
    """Call a person, who answers later."""


class Talk:
    """A session of a user with an agent."""

    def __init__(self, path: str, session: str, model: str) -> None:
        self.session = session
        self.agent = "clerk"
        self.service = DatabaseSessionService(f"sqlite+aiosqlite:///{path}")
        self.model = Gemini(
            model="gemini-2.5-flash", base_url=model, client_kwargs={"api_key": "k"}
        )

    def runner(self, compaction: EventsCompactionConfig | None = None) -> Runner:
        tools = [
            FunctionTool(weather),
            FunctionTool(pay, require_confirmation=True),
            LongRunningFunctionTool(book),
            LongRunningFunctionTool(call),
        ]
        agent = LlmAgent(name=self.agent, model=self.model, tools=tools, instruction="Be brief.")
        app = App(name=NAME, root_agent=agent, events_compaction_config=compaction)
        return Runner(app=app, session_service=self.service)

    async def begin(self) -> None:
        await self.service.create_session(app_name=NAME, user_id=USER, session_id=self.session)

    async def say(self, *parts: Any, runner: Runner | None = None) -> None:
        given = [types.Part(text=part) if isinstance(part, str) else part for part in parts]
        said = types.Content(role="user", parts=given)
        run = (runner or self.runner()).run_async(
            user_id=USER, session_id=self.session, new_message=said
        )
        async for _ in run:
            pass

    async def reply(self, name: str, response: Any) -> None:
        """Answer the last call of a name."""
        calls = [
            call
            for event in await self.events()
            for call in event.get_function_calls()
            if call.name == name
        ]
        result = types.FunctionResponse(id=calls[-1].id, name=name, response=response)
        await self.say(types.Part(function_response=result))

    async def update(self, name: str, response: Any) -> None:
        """Add a further result of the last call of a name, and a reply to it, to its turn."""
        session = await self.service.get_session(
            app_name=NAME, user_id=USER, session_id=self.session
        )
        [*_, last] = [event for event in session.events if event.get_function_responses()]
        result = types.FunctionResponse(
            id=last.get_function_responses()[-1].id, name=name, response=response
        )
        for role, part in (
            ("user", types.Part(function_response=result)),
            ("model", types.Part(text="It is done.")),
        ):
            event = Event(
                author=last.author,
                invocation_id=last.invocation_id,
                content=types.Content(role=role, parts=[part]),
            )
            await self.service.append_event(session, event)

    async def events(self) -> Any:
        found = await self.service.get_session(app_name=NAME, user_id=USER, session_id=self.session)
        return found.events

    async def rewind(self, text: str) -> None:
        """Rewind to before the last turn that begins with a text."""
        turn = [
            event.invocation_id
            for event in await self.events()
            if event.author == "user" and event.content and event.content.parts[0].text == text
        ][-1]
        await self.runner().rewind_async(
            user_id=USER, session_id=self.session, rewind_before_invocation_id=turn
        )


async def write(path: str, session: str, model: str) -> None:
    talk = Talk(path, session, model)
    await talk.begin()
    await talk.say("Hello 会话 😀")
    await talk.say("weather in Kyoto?")
    match session:
        case "plain":
            await talk.say("Look:", PICTURE)
        case "rewound":
            await talk.say("A slip")
            await talk.say("weather again?")
            await talk.rewind("A slip")
            await talk.say("As I meant")
            await talk.say("Another slip")
            await talk.rewind("Another slip")
        case "compacted" | "compacted-rewound":
            summarizer = LlmEventSummarizer(llm=talk.model)
            config = EventsCompactionConfig(
                compaction_interval=2, overlap_size=1, summarizer=summarizer
            )
            for text in ("One", "weather then?", "Three", "Four"):
                await talk.say(text, runner=talk.runner(config))
            if session == "compacted-rewound":
                await talk.rewind("Three")
        case "pending":
            await talk.say("book 12A")
        case "answered":
            await talk.say("book 12A")
            await talk.say("Meanwhile?")
            await talk.reply("book", {"status": "booked"})
        case "updated":
            await talk.say("book 12A")
            await talk.update("book", {"status": "booked"})
        case "confirmed":
            await talk.say("pay 200")
            await talk.reply("adk_request_confirmation", {"confirmed": True})
        case "silent":
            await talk.say("call 7")
        case "stopped":
            await talk.say("pay 200")


async def ask(path: str, session: str, model: str) -> None:
    talk = Talk(path, session, model)
    authors = [event.author for event in await talk.events()]
    # An agent reads as quoted what another one has said.
    talk.agent = next(name for name in reversed(authors) if name not in ("user", "system"))
    await talk.say("And now?")
