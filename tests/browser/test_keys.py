"""What each key does: in lists, in a conversation, and everywhere."""

from __future__ import annotations

import base64
import re

import pytest

from tests.browser.driver import LARGE, Driver, browsing, make_browser


def here(screen: str) -> str:
    """Return the number of the message under the cursor of a conversation."""
    found = re.search(r"│▌ #(\d+)", screen)
    return found[1] if found else ""


def row(driver: Driver) -> int:
    """Return the row of the list under the cursor."""
    return driver.browser.left.cursor


@pytest.mark.slow
async def test_browser_keys_move_in_lists(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        places = []
        keys = "down j end up k home G g pagedown b space pageup"
        for key in keys.split():
            await driver.press(key)
            places.append(row(driver))
        assert places == [1, 2, 6, 5, 4, 0, 6, 0, 6, 0, 6, 0]


@pytest.mark.slow
async def test_browser_keys_fold_and_unfold_users(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        assert "kyoto" in driver.screen()
        for fold, unfold in (("enter", "enter"), ("escape", "right"), ("left", "enter")):
            screen = await driver.press(fold)
            assert "▸ ada" in screen
            assert "kyoto" not in screen
            assert "kyoto" in await driver.press(unfold)
        assert "▸ ada" in await driver.press("down", "down", "h"), "the user of the memory"


@pytest.mark.slow
async def test_browser_keys_order_and_filter_names(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        for order in ("last message", "messages", "size", "name"):
            assert f"by {order} ─" in await driver.press("o")
        screen = await driver.press("/", "P", "A", "R", "enter")
        assert "parcel" in screen
        assert "kyoto" not in screen
        assert "1 user · 1 memory · by name · filter 'PAR' ─" in screen
        assert "kyoto" in await driver.press("escape")
        screen = await driver.press("/", "b", "o", "b", "escape")
        assert "kyoto" in screen, "Esc gives the filter up"


@pytest.mark.slow
async def test_browser_keys_scroll_a_conversation(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        await driver.press("down", "down", "enter")
        assert here(driver.screen()) == "1234"
        steps = {"g": "1", "j": "2", "k": "1", "end": "1234", "home": "1", "G": "1234"}
        for key, number in steps.items():
            assert here(await driver.press(key)) == number, key
        assert " 1–7 of 1,234" in await driver.press("home")
        assert "#1 " not in await driver.press("down")
        assert "#1 " in await driver.press("up")
        assert " 7–13 of 1,234" in await driver.press("pagedown")
        assert " 1–7 of 1,234" in await driver.press("b")
        assert " 7–13 of 1,234" in await driver.press("space")
        assert " 1–7 of 1,234" in await driver.press("pageup")


@pytest.mark.slow
async def test_browser_keys_go_through_all_pages(agents: str) -> None:
    async with browsing(make_browser(agents), (120, 120)) as driver:
        await driver.press("down", "down", "enter")
        seen = {int(number) for number in re.findall(r"#(\d+) ", driver.screen())}
        for _ in range(12):
            seen |= {int(number) for number in re.findall(r"#(\d+) ", await driver.press("pageup"))}
        assert seen == set(range(min(seen), 1235))
        assert min(seen) < 800, "beyond the pages that were read first"


@pytest.mark.slow
async def test_browser_keys_find_in_a_conversation(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        await driver.press("down", "down", "enter", "g", "/")
        assert here(await driver.answer("age 12")) == "13"
        assert here(await driver.press("n")) == "121"
        assert here(await driver.press("N")) == "13"
        assert "went on from the end" in await driver.press("N")
        await driver.press("/")
        assert "no message with 'nowhere'" in await driver.answer("nowhere")


@pytest.mark.slow
async def test_browser_keys_of_context_tools_and_marks(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        screen = await driver.press("down", "enter")
        assert "context" not in screen.partition("\n")[2].partition("\n")[0]
        assert "tokens: user 19 %" in await driver.press("c")
        assert "c Messages" in driver.screen()
        assert "─ ada / kyoto ─" in await driver.press("c")
        assert "─ ada / kyoto ─" in await driver.press("c", "escape"), "the messages come first"
        assert '  "query":' in await driver.press("t")
        assert '  "query":' not in await driver.press("t")
        await driver.press("g")
        assert here(await driver.press("m")) == "2", "the next message with a mark"
        assert here(await driver.press("m", "m", "m", "m", "m")) == "11"


@pytest.mark.slow
async def test_browser_keys_show_a_message_whole(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        await driver.press("down", "enter", "g", "j", "j", "j")
        screen = await driver.press("enter")
        assert "id Qm4 · 314 B · about 24 tokens · marks: compressed" in screen
        assert '"type": "tool_use"' in await driver.press("v")
        assert '"type": "tool_use"' not in await driver.press("v")
        assert "Ctrl-C" not in await driver.press("escape", "?")
        assert "Ctrl-C" in await driver.press("G"), "a long text scrolls"
        assert "─ ada / kyoto ─" in await driver.press("escape")


@pytest.mark.slow
@pytest.mark.parametrize("back", ["escape", "left", "h"])
async def test_browser_keys_go_back(agents: str, back: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        assert "─ Memories ─" in await driver.press("down", "enter", back)


@pytest.mark.slow
async def test_browser_keys_change_panes(agents: str) -> None:
    async with browsing(make_browser(agents), LARGE) as driver:
        await driver.press("down", "enter")
        assert driver.browser.focused is driver.browser.right
        await driver.press("tab")
        assert driver.browser.focused is driver.browser.left
        await driver.press("tab")
        assert driver.browser.focused is driver.browser.right


@pytest.mark.slow
async def test_browser_keys_copy_names_ids_and_commands(
    agents: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = make_browser(agents)
    written: list[str] = []
    async with browsing(browser) as driver:
        assert browser._driver is not None
        monkeypatch.setattr(browser._driver, "write", written.append)

        def copied() -> str:
            found = re.findall("\x1b]52;c;(.*?)\x07", "".join(written))
            return base64.b64decode(found[-1]).decode()

        await driver.press("y")
        assert copied() == "ada"
        browser._copy("rm -r x\n\x1b[2J")
        assert copied() == "rm -r x\\n\\x1b[2J"
        await driver.press("down", "y")
        assert copied() == "kyoto"
        await driver.press("enter", "y")
        assert copied() == "Qm11"
        screen = await driver.press("x", "down", "enter")
        command = "memctl delete agents.db --user ada --session kyoto --id Qm11 --dry-run"
        assert copied() == command
        assert "copied: memctl delete" in screen
    assert browser.copied == [command], "it is printed at the end"


@pytest.mark.slow
async def test_browser_keys_read_anew(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        screen = await driver.press("down", "down", "enter", "g", "j", "j")
        assert here(screen) == "3"
        assert here(await driver.press("r")) == "3", "it stays where it was"


@pytest.mark.slow
@pytest.mark.parametrize("back", ["q", "?"])
async def test_browser_keys_leave_what_is_shown_over_the_screens(agents: str, back: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        for over in ("?", "x"):
            await driver.press(over, back)
            assert driver.browser.screen_stack == [driver.browser.screen], over
        await driver.press("down", "enter", "enter", back)
        assert driver.browser.screen_stack == [driver.browser.screen], "a message"


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_browser_keys_quit(agents: str, key: str) -> None:
    browser = make_browser(agents)
    async with browsing(browser) as driver:
        await driver.pilot.press(key)
        await driver.pilot.pause()
        assert not browser.is_running


async def test_browser_keys_are_text_while_a_text_is_typed(agents: str) -> None:
    async with browsing(make_browser(agents)) as driver:
        assert "Filter: qx?1" in await driver.press("/", "q", "x", "?", "1")
