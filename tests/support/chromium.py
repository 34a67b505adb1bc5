"""Chromium, which opens a page as people do: without a window and without a network."""

from __future__ import annotations

import json
import os
import shutil
import sys
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pypdf import PdfReader
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.support.servers import Missing

AXE = Path(sys.prefix, "axe", "node_modules", "axe-core", "axe.min.js")
_NEEDED = "is not installed: scripts/get-servers installs it"


@contextmanager
def started() -> Iterator[Chromium]:
    """Start a browser.

    Raises:
        Missing: Chromium or its driver is not installed.
    """
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        raise Missing(f"Chromium {_NEEDED}")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    options.add_argument("--headless=new")
    options.add_argument("--hide-scrollbars")
    options.add_argument("--proxy-server=127.0.0.1:9")  # nothing listens there
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Chromium leaves folders behind.
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        service = Service(driver, env={**os.environ, "TMPDIR": folder})
        opened = webdriver.Chrome(options=options, service=service)
        try:
            yield Chromium(opened)
        finally:
            opened.quit()


class Chromium:
    """A browser with one page, of ``open``."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(
        self,
        path: Path,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
        media: str = "screen",
    ) -> None:
        """Open a file from an empty page, in a window of this size."""
        self.driver.get("about:blank")
        self.requests()
        self.console()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self.command("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.show(dark=dark, media=media)
        self.driver.get(path.as_uri())

    def show(self, *, dark: bool = False, media: str = "screen", **features: str) -> None:
        """Show the page as a light or dark system does; on paper if ``media`` is ``print``.

        ``features`` are further features of the system: ``forced_colors="active"``.
        """
        features["prefers_color_scheme"] = "dark" if dark else "light"
        named = [{"name": name.replace("_", "-"), "value": features[name]} for name in features]
        self.command("Emulation.setEmulatedMedia", media=media, features=named)

    def printed(self) -> str:
        """Return the text of the page on paper."""
        self.command("Emulation.setEmulatedMedia", media="")
        data = b64decode(self.command("Page.printToPDF")["data"])
        return "\n".join(page.extract_text() for page in PdfReader(BytesIO(data)).pages)

    def command(self, name: str, **parameters: Any) -> Any:
        """Run a command of the Chrome DevTools Protocol."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function with this body returns in the page; its CSP does not stop it."""
        return self.driver.execute_script(script, *arguments)

    def requests(self) -> list[str]:
        """Return the URLs that were requested since ``open``, once."""
        events = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def console(self) -> list[str]:
        """Return what the console says since ``open``, once: errors, and reports of the CSP."""
        return [entry["message"] for entry in self._log("browser")]

    def opening(self) -> float:
        """Return the seconds that it took to open the page."""
        milliseconds: float = self.run(
            "return performance.getEntriesByType('navigation')[0].loadEventEnd"
        )
        return milliseconds / 1000

    def names(self, role: str) -> list[str]:
        """Return the names by which a screen reader announces all elements with a role."""
        nodes = self.command("Accessibility.getFullAXTree")["nodes"]
        return [
            node.get("name", {}).get("value", "")
            for node in nodes
            if not node["ignored"] and node["role"]["value"] == role
        ]

    def sideways(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        wider: int = self.run(
            "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
        )
        return wider

    def violations(self) -> list[str]:
        """Return the rules of accessibility that the page breaks, as axe-core finds them.

        Raises:
            Missing: axe-core is not installed.
        """
        if not AXE.exists():
            raise Missing(f"axe-core {_NEEDED}, by npm")
        self.run(AXE.read_text("utf-8"))
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run().then(found => done(found.violations))"
        )
        return [
            f"{one['impact']}: {one['id']}: {one['help']}: {one['nodes'][0]['html']}"
            for one in found
        ]

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page as PNG."""
        taken = self.command("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(b64decode(taken["data"]))

    def _log(self, name: str) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.driver.get_log(name)
        return entries
