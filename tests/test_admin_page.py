"""The page at the admin port, in a browser, on a real server: what it shows, who it lets in, and what can do it no harm."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from browser import Browser, chromium
from loopback import ROOT, free_addresses, serving, write_model, write_profile
from test_security import fetch, key_entry, write_keys

# A name that would do something if it ever became HTML. Folders and paths may be called so.
HOSTILE = "<img src=x onerror=window.harmed=1>"
MODELS = ("steady", "spare", HOSTILE)
ADMIN = "administrator-0123456789"
INFER = "only-infers-0123456789"
REQUEST = json.dumps({"parameters": {"timeout": 5_000_000},
                      "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}).encode()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in MODELS:
        value = [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["batch", 4]) for tensor in ("x", "y")]
        write_model(folder, name, [helper.make_node("Mul", ["x", "f"], ["y"])], [value[0]], value[1],
                    [numpy_helper.from_array(np.float32(2), "f")])
    return folder


@contextlib.contextmanager
def administered(program, repository, folder, *options: str):
    """A server with an admin port, whose models are loaded by orders; gives it and the port's address."""
    (admin,) = free_addresses(1)
    profile = write_profile(folder / "profile.json", MODELS, 5)
    with serving(program, repository, folder / "log", "--device", f"emulated:{profile}*2", "--profile", str(profile),
                 "--admin-port", admin, "--model-control-mode", "explicit", "--load-model", "steady",
                 "--load-model", HOSTILE, *options) as server:
        yield server, admin


@pytest.fixture(scope="module")
def open_server(program, repository, tmp_path_factory):
    with administered(program, repository, tmp_path_factory.mktemp("open")) as (server, admin):
        yield server, admin


@pytest.fixture
def browser(tmp_path):
    with Browser(tmp_path) as page:
        yield page


def infer(server, model: str, secret: str | None = None) -> int:
    name = urllib.request.quote(model, safe="")
    return fetch(server.http, f"/v2/models/{name}/infer", secret, data=REQUEST)[0]


@contextlib.contextmanager
def load(server, *models: str, secret: str | None = None, most: int = 3000):
    """Requests, one after the other, as long as the block lasts; `most` of them."""
    ended = threading.Event()

    def send() -> None:
        for count in range(most):
            if ended.is_set():
                return
            infer(server, models[count % len(models)], secret)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


def row(model: str) -> str:
    """An expression: the table's row of the model."""
    return f"[...document.querySelectorAll('#model-table tbody tr')].find(r => r.querySelector('b').textContent === {json.dumps(model)})"


def press_order(page: Browser, model: str) -> None:
    page.run(f"{row(model)}.querySelector('button').click()")
    page.wait("document.getElementById('confirm').open")


def mark_of(page: Browser) -> str:
    """What the canvas shows."""
    return page.run("document.getElementById('timeline').toDataURL()")


# -- The endpoints, without a browser


def test_status_and_timeline_tell_what_the_server_does(open_server):
    server, admin = open_server
    assert infer(server, "steady") == 200

    def status() -> dict:
        return json.loads(fetch(admin, "/v2/carillon/status")[2])

    limit = time.monotonic() + 60
    while True:  # a look a second
        steady = next((m for m in status()["models"] if m["name"] == "steady"), None)
        if steady and steady["total"]["on_time"] + steady["total"]["late"] >= 1 and steady["rate"] is not None:
            break
        assert time.monotonic() < limit
        time.sleep(0.1)
    told = status()
    assert told["server"]["state"] == "ready" and told["server"]["model_control"] == "explicit"
    assert told["server"]["policy"] == "carillon" and told["server"]["uptime_s"] > 0
    assert [d["alive"] for d in told["devices"]] == [True, True]
    assert any(d["pages_used"] > 0 for d in told["devices"])
    assert {m["name"]: m["state"] for m in told["models"]} == {"steady": "ready", "spare": "left_out", HOSTILE: "ready"}
    assert steady["loaded_on"], "its weights are somewhere"

    first = json.loads(fetch(admin, "/v2/carillon/timeline")[2])
    assert {a["device"] for a in first["actions"]} <= {0, 1}
    runs = [a for a in first["actions"] if "exec" in a and first["models"][a["model"]]["name"] == "steady"]
    assert runs and all(a["exec"][0] <= a["exec"][1] and a["predicted_us"] > 0 for a in runs)
    assert any("load" in a for a in first["actions"])
    assert infer(server, "steady") == 200
    after = json.loads(fetch(admin, f"/v2/carillon/timeline?since={first['next']}")[2])
    assert [a for a in after["actions"] if "exec" in a]
    assert not {a["action"] for a in after["actions"]} & {a["action"] for a in first["actions"]}
    assert fetch(admin, "/v2/carillon/timeline?since=yesterday")[0] == 400


def test_a_status_is_of_the_models_that_are_asked_for(open_server):
    _, admin = open_server

    def names(query: str) -> list[str]:
        return [m["name"] for m in json.loads(fetch(admin, f"/v2/carillon/status?{query}")[2])["models"]]

    assert names("sort=name") == sorted(MODELS)
    assert names("sort=name&offset=1&limit=1") == sorted(MODELS)[1:2]
    assert names("name=SPA") == ["spare"]
    assert names(f"name={urllib.request.quote(HOSTILE, safe='')}") == [HOSTILE]
    assert fetch(admin, "/v2/carillon/status?sort=age")[0] == 400
    counts = json.loads(fetch(admin, "/v2/carillon/status?limit=0")[2])["model_counts"]
    assert counts == {"all": 3, "ready": 2, "broken": 0, "found": 3}


def test_the_trend_goes_on_where_it_was_left(open_server):
    _, admin = open_server

    def trend(since: str = "") -> dict:
        return json.loads(fetch(admin, f"/v2/carillon/trend?since={since}")[2])

    limit = time.monotonic() + 60
    while not (first := trend())["samples"]:
        assert time.monotonic() < limit, "ten seconds are a sample"
        time.sleep(0.5)
    sample = dict(zip(first["fields"], first["samples"][-1], strict=True))
    assert sample["seconds"] >= 10 and sample["end_s"] <= first["now_s"]
    assert sample["resident_bytes"] > 2**20
    assert len(trend(first["next"])["samples"]) <= 1
    assert fetch(admin, "/v2/carillon/trend?since=yesterday")[0] == 400


def test_the_page_is_at_the_admin_port_alone(open_server):
    server, admin = open_server
    for path in ("/", "/admin"):
        status, headers, body = fetch(admin, path)
        assert status == 200 and headers["Content-Type"].startswith("text/html") and b"<!doctype html>" in body
        assert "script-src 'sha256-" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"] and headers["X-Frame-Options"] == "DENY"
        assert "Set-Cookie" not in headers
        assert fetch(server.http, path)[0] == 404
        assert fetch(server.metrics, path)[0] == 404
    assert fetch(server.http, "/v2/carillon/status")[0] == 403


def test_the_committed_page_is_what_the_source_builds_to():
    npm = shutil.which("node")
    if not npm or not (ROOT / "web/node_modules/esbuild").is_dir():
        pytest.skip("no Node, or no esbuild (npm --prefix web ci)")
    for command in (["web/build.mjs", "--check"], ["--test", "web/test/"]):
        ran = subprocess.run([npm, *command], cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr


# -- In a browser


def test_it_shows_models_and_devices_and_asks_nobody_else(open_server, browser):
    server, admin = open_server
    with load(server, "steady", HOSTILE):
        browser.open(f"http://{admin}/")
        browser.wait("document.getElementById('state').textContent === 'ready'")
        browser.wait(f"{row('steady')} && {row(HOSTILE)} && {row('spare')}")
        browser.wait("document.querySelectorAll('#devices tbody tr').length === 2")
        assert "not loaded" in browser.run(f"{row('spare')}.innerText")
        # Rates and latencies come with the second look.
        browser.wait(f"Number({row('steady')}.querySelector('td.num span').textContent) > 0")
        browser.wait(f"/\\d ms/.test({row('steady')}.querySelector('.measured').innerText)")
        # The timeline moves, and stands still when it is told to.
        browser.wait("document.querySelectorAll('#legend li').length >= 1")
        before = mark_of(browser)
        limit = time.monotonic() + 60
        while mark_of(browser) == before:
            assert time.monotonic() < limit, "the timeline does not move"
        browser.click("#pause")
        browser.wait("document.getElementById('pause').getAttribute('aria-pressed') === 'true'")
        browser.run("new Promise(r => setTimeout(() => requestAnimationFrame(r), 500))")  # a question that was under way
        before = mark_of(browser)
        for _ in range(5):
            browser.run("new Promise(requestAnimationFrame)")
        assert mark_of(browser) == before
        # By keys: one bar after the other is told.
        browser.run("document.getElementById('timeline').focus()")
        browser.press("ArrowLeft")
        browser.wait("/expected/.test(document.getElementById('told').textContent)")
        first = browser.text("#told")
        browser.press("ArrowLeft")
        browser.wait(f"document.getElementById('told').textContent !== {json.dumps(first)}")
        # As a table.
        browser.run("document.getElementById('actions-box').open = true")
        browser.wait("document.querySelectorAll('#actions tbody tr').length > 0")
    browser.settle()
    assert browser.console == []
    outside = [address for address in browser.requested if not address.startswith((f"http://{admin}/", "data:"))]
    assert outside == []
    assert browser.run("window.harmed") is None, "a model's name was taken for HTML"
    assert browser.run("document.querySelector('main img')") is None
    assert browser.run("document.cookie") == ""


def test_it_opens_with_what_became_of_requests(open_server, browser):
    """A refusal leads to the requests that were refused so, and they to their explanations."""
    server, admin = open_server
    with load(server, "steady"):
        for _ in range(3):
            hurried = json.dumps({**json.loads(REQUEST), "parameters": {"timeout": 1}}).encode()
            assert fetch(server.http, "/v2/models/steady/infer", data=hurried)[0] == 504
        browser.open(f"http://{admin}/")
        browser.wait("/\\d\\/s/.test(document.querySelector('#tiles').innerText)")
        browser.wait("document.querySelector('#reasons li')")
        reason = browser.text("#reasons li a")  # that it cannot finish, or was too near for a decision
        assert "%" in browser.text("#tiles dd")
        browser.wait("/EXEC/.test(document.getElementById('time-parts').innerText)")
        assert "way back" in browser.text("#time-parts") and "%" in browser.text("#device-time")
        browser.wait("/Margin that the policy keeps/.test(document.getElementById('margin-text').textContent)")
        assert "resident" in browser.text("#memory-text") and "limit" in browser.text("#memory-text")
        browser.wait("/requests\\/s/.test(document.getElementById('trend-told').textContent)")
        assert browser.run("document.querySelector('#trend-rates .on-time').getAttribute('d')").startswith("M")
        browser.run("document.getElementById('trend-box').open = true")
        browser.wait("document.querySelectorAll('#trend-table tbody tr').length >= 1")
    browser.run(f"[...document.querySelectorAll('#reasons a')].find(a => a.textContent === {json.dumps(reason)}).click()")
    browser.wait("document.querySelectorAll('#requests tbody tr').length >= 1")
    assert set(browser.run("[...document.querySelectorAll('#requests tbody .pill')].map(p => p.textContent)")) == \
        {f"refused: {reason}"}
    browser.click("#requests tbody a")
    browser.wait("/^Request \\d+: steady/.test(document.querySelector('#explained h3')?.textContent)")
    place = browser.run("location.hash")
    assert place.startswith("#request=")
    # The place has an address.
    browser.open("about:blank#")
    browser.open(f"http://{admin}/{place}")
    browser.wait("document.querySelectorAll('#explained .step').length > 0")
    # What a model lost leads there, too.
    browser.run(f"{row('steady')}.querySelector('a.wrap').click()")
    browser.wait("/of steady/.test(document.getElementById('listed').textContent)")
    browser.settle()
    assert browser.console == []


def test_other_scripts_do_not_run(open_server, browser):
    _, admin = open_server
    browser.open(f"http://{admin}/")
    browser.run("""(() => {
        const s = document.createElement('script'); s.textContent = 'window.harmed = 2'; document.body.append(s);
        const d = document.createElement('div'); d.innerHTML = '<img src="/x" onerror="window.harmed = 3">'; document.body.append(d);
    })()""")
    browser.run("new Promise(r => setTimeout(r, 300))")
    browser.settle()
    assert browser.run("window.harmed") is None
    assert any("Content Security Policy" in said for said in browser.console)


def test_orders_load_and_unload_and_failures_are_told(open_server, browser, repository):
    server, admin = open_server
    browser.open(f"http://{admin}/")
    browser.wait(f"{row('spare')}")
    press_order(browser, "spare")
    assert browser.text("#confirm-text").startswith("Load spare?")
    browser.run("document.querySelector('#confirm button[value=no]').click()")
    browser.wait("!document.getElementById('confirm').open")
    press_order(browser, "spare")
    browser.press("Escape")
    browser.wait("!document.getElementById('confirm').open")
    assert fetch(server.http, "/v2/models/spare/ready")[0] == 503, "it was not confirmed"
    press_order(browser, "spare")
    browser.click("#confirm-yes")
    browser.wait(f"{row('spare')}.querySelector('.pill').textContent === 'ready'")
    assert fetch(server.http, "/v2/models/spare/ready")[0] == 200
    press_order(browser, "spare")
    assert browser.text("#confirm-text").startswith("Unload spare?")
    browser.click("#confirm-yes")
    browser.wait(f"{row('spare')}.querySelector('.pill').textContent !== 'ready'")
    assert fetch(server.http, "/v2/models/spare/ready")[0] == 503
    # Whose file has gone cannot be loaded.
    hidden = repository / "spare" / "1" / "hidden"
    (repository / "spare" / "1" / "model.onnx").rename(hidden)
    try:
        press_order(browser, "spare")
        browser.click("#confirm-yes")
        browser.wait("/could not be loaded/.test(document.getElementById('notes').innerText)")
    finally:
        hidden.rename(repository / "spare" / "1" / "model.onnx")
    for order in ("load", "unload"):  # one that is broken would leave the server not ready
        assert fetch(admin, f"/v2/repository/models/spare/{order}", data=b"{}")[0] == 200


def test_keys(program, repository, tmp_path):
    keys = write_keys(tmp_path / "keys.toml", key_entry("boss", ADMIN, roles=["admin", "infer"]),
                      key_entry("team", INFER))
    with administered(program, repository, tmp_path, "--keys", str(keys)) as (server, admin), \
            Browser(tmp_path / "browser") as page:
        page.open(f"http://{admin}/")
        page.wait("!document.getElementById('key-form').hidden")
        assert "wants a key" in page.text("#key-text")
        assert page.run("document.querySelectorAll('#model-table tbody tr').length") == 0
        page.type("#key", "not-a-key-of-anybody")
        page.press("Enter", text="\r")
        page.wait("/does not know the key/.test(document.getElementById('key-text').textContent)")
        page.run("document.getElementById('key').value = ''")
        page.type("#key", INFER)
        page.press("Enter", text="\r")
        page.wait("/'admin'/.test(document.getElementById('key-text').textContent)")
        page.run("document.getElementById('key').value = ''")
        page.type("#key", ADMIN)
        page.press("Enter", text="\r")
        page.wait(f"document.getElementById('key-form').hidden && {row('steady')}")
        assert page.run("sessionStorage.length + localStorage.length") == 0, "nobody asked to keep it"
        assert ADMIN not in page.run("document.documentElement.outerHTML")
        press_order(page, "spare")
        page.click("#confirm-yes")
        page.wait(f"{row('spare')}.querySelector('.pill').textContent === 'ready'")
        # Kept for the tab where that is wanted, and only then.
        page.open(f"http://{admin}/")
        page.wait("!document.getElementById('key-form').hidden")
        page.run("document.getElementById('key-keep').click()")
        page.type("#key", ADMIN)
        page.press("Enter", text="\r")
        page.wait(f"document.getElementById('key-form').hidden && {row('steady')}")
        page.open(f"http://{admin}/admin")
        page.wait(f"document.getElementById('key-form').hidden && {row('steady')}")


def test_a_server_that_is_gone_is_told_of(program, repository, tmp_path):
    with Browser(tmp_path / "browser") as page:
        with administered(program, repository, tmp_path) as (_, admin):
            page.open(f"http://{admin}/")
            page.wait("document.getElementById('state').textContent === 'ready'")
        page.wait("!document.getElementById('gone').hidden")
        assert "does not answer since" in page.text("#gone")
        assert page.text("#state") == "gone"


def test_requests_that_are_not_kept_are_told_so(open_server, browser):
    """With the journal of requests it shows them; without, or for one that is unknown, it says so."""
    server, admin = open_server
    assert infer(server, "steady") == 200
    browser.open(f"http://{admin}/")
    browser.wait("document.getElementById('state').textContent === 'ready'")
    browser.type("#request", "no-such-request")
    browser.press("Enter", text="\r")
    browser.wait("/Nothing is kept of a request no-such-request/.test(document.getElementById('explained').innerText)")
    kept = fetch(admin, "/v2/carillon/requests?limit=1")[0] == 200
    browser.click("#list")
    if not kept:
        browser.wait("/keeps no requests/.test(document.getElementById('explained').innerText)")
        return
    browser.wait("document.querySelectorAll('#requests tbody tr').length > 0")
    browser.click("#requests tbody a")
    browser.wait("document.querySelectorAll('#explained .step').length > 0")
    assert browser.text("#explained h3").startswith("Request ")


def test_a_request_is_explained_and_its_texts_do_no_harm(open_server, browser):
    """What the journal would say, as docs/explain.md has it, with texts that a client or a model chose."""
    _, admin = open_server
    request = {"number": 7, "id": HOSTILE, "model": HOSTILE, "version": 1, "class": "real_time", "application": HOSTILE,
               "arrived_unix_us": 1764000000123456, "deadline_us": 30000, "outcome": "refused", "reason": "cannot_finish",
               "would_take_us": 41000, "took_us": 210, "device": 1, "batch": 4, "predicted_us": 11800, "story": [HOSTILE],
               "steps": [{"what": "wait", "begin_us": 0, "end_us": 9000, "device": None, "note": HOSTILE},
                         {"what": "exec", "begin_us": 9000, "end_us": 21000, "device": 1, "note": ""}]}
    browser.call("Page.addScriptToEvaluateOnNewDocument", source=f"""
        const real = window.fetch, request = {json.dumps(request)};
        window.fetch = (path, options) => {{
            const answer = path.includes('/requests/') ? request : path.includes('/requests') ? {{requests: Array(80).fill(request)}} : null;
            window.asked = answer ? [path, options.headers.Authorization] : window.asked;
            return answer ? Promise.resolve(new Response(JSON.stringify(answer))) : real(path, options);
        }};""")
    browser.open(f"http://{admin}/")
    browser.wait("document.getElementById('state').textContent === 'ready'")
    browser.click("#list")
    browser.wait("document.querySelectorAll('#requests tbody tr').length === 50")
    browser.click("#requests tbody a")
    browser.wait("document.querySelectorAll('#explained .step').length === 2")
    said = browser.text("#explained")
    for told in ("Request 7", "could not be on time", "30 ms", "41.0 ms", "real-time", "device 1"):
        assert told in said, said
    browser.run("document.getElementById('request').value = '../a b?c'")
    browser.run("document.querySelector('#explain-form button').click()")
    browser.wait("window.asked[0] === '/v2/carillon/requests/..%2Fa%20b%3Fc'")
    browser.settle()
    assert browser.run("window.harmed") is None and browser.console == []


@pytest.mark.parametrize("dark", [False, True])
def test_a_narrow_screen_has_all_of_it(open_server, tmp_path, dark):
    server, admin = open_server
    with Browser(tmp_path, 360, 740, dark) as page:
        page.open(f"http://{admin}/")
        page.wait(f"{row('steady')}")
        page.wait("document.querySelectorAll('#devices tbody tr').length === 2")
        assert page.run("document.documentElement.scrollWidth") <= 360, "it must not be scrolled sideways"
        for selector in ("#timeline", "#pause", "#list", "#model-table tbody tr", "#request"):
            left, right = page.run(f"(() => {{ const r = document.querySelector('{selector}').getBoundingClientRect(); return [r.left, r.right]; }})()")
            assert 0 <= left < right <= 360, selector
        # Ink and ground differ enough to be read (WCAG: 4.5).
        assert page.run("""(() => {
            const rgb = (v) => getComputedStyle(document.body).getPropertyValue(v);
            const light = (text) => { const m = text.match(/[0-9a-f]{2}/gi).map((h) => parseInt(h, 16) / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4); return 0.2126 * m[0] + 0.7152 * m[1] + 0.0722 * m[2]; };
            const ratio = (a, b) => { const [x, y] = [light(rgb(a)), light(rgb(b))].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
            return Math.min(ratio('--ink', '--panel'), ratio('--quiet', '--panel'), ratio('--quiet', '--ground'), ratio('--bad', '--bad-soft'), ratio('--good', '--good-soft'));
        })()""") >= 4.5


def test_everything_has_a_name_for_who_cannot_see_it(open_server, browser):
    _, admin = open_server
    browser.open(f"http://{admin}/")
    browser.wait(f"{row('steady')}")
    tree = browser.call("Accessibility.getFullAXTree")["nodes"]
    for node in tree:
        role = node.get("role", {}).get("value")
        if node.get("ignored") or role not in ("button", "textbox", "searchbox", "slider", "image", "img", "meter", "table", "checkbox", "link"):
            continue
        name = node.get("name", {}).get("value", "")
        assert name or role == "table", f"a {role} without a name: {node}"
    assert browser.run("document.querySelectorAll('table th:not([scope])').length") == 0
    assert browser.run("document.documentElement.lang") == "en"


TABLE_ROWS = 50  # of the table of actions: tableRows in web/src/main.js


def settled(browser: Browser) -> dict:
    """Nodes and listeners that are held on to: collected until two collections in a row find no fewer of either."""
    least, kept = None, 0
    while kept < 2:
        browser.call("HeapProfiler.collectGarbage")
        told = {m["name"]: m["value"] for m in browser.call("Performance.getMetrics")["metrics"]}
        now = {name: told[name] for name in ("Nodes", "JSEventListeners")}
        kept = kept + 1 if least and all(now[name] >= least[name] for name in now) else 0
        least = {name: min(now[name], least[name]) for name in now} if least else now
    return least


def let_poll(browser: Browser, polls: int) -> None:
    until = len(browser.requested) + polls
    while len(browser.requested) < until:
        browser.run("new Promise(r => setTimeout(r, 200))")


def test_it_does_not_grow(open_server, browser):
    """Once every table is as long as it gets, asking again holds on to nothing: not a node for each answer."""
    server, admin = open_server
    polls = 40
    with load(server, "steady", HOSTILE, most=100_000):
        browser.open(f"http://{admin}/")
        browser.wait("document.querySelectorAll('#legend li').length === 2")
        browser.run("document.getElementById('actions-box').open = true")
        browser.wait(f"document.querySelectorAll('#actions tbody tr').length === {TABLE_ROWS}")
        browser.wait("document.querySelectorAll('#devices tbody tr').length === 2")
        browser.wait(f"document.querySelectorAll('#model-table tbody tr').length === {len(MODELS)}")
        browser.call("Performance.enable")
        let_poll(browser, 10)
        before = settled(browser)
        first = browser.run("window.firstRow = document.querySelector('#actions tbody tr'); firstRow.innerText")
        let_poll(browser, polls)
        after = settled(browser)
        assert browser.run("document.querySelectorAll('#actions tbody tr').length") == TABLE_ROWS
        assert browser.run("firstRow === document.querySelector('#actions tbody tr')"), "rows are used again"
        assert browser.run("firstRow.innerText") != first, "nothing was told meanwhile"
    # Half of them: texts that come and go with what is told, such as reasons, are a few.
    assert after["Nodes"] < before["Nodes"] + polls / 2, (before, after)
    assert after["JSEventListeners"] <= before["JSEventListeners"], (before, after)


# -- Many models, and none

MANY = 500


def name_of(number: int) -> str:
    return HOSTILE if number == 250 else f"model_{number:03}"


@pytest.fixture(scope="module")
def many(program, tmp_path_factory):
    """500 models on one device that is emulated; gives the server and its admin port."""
    folder = tmp_path_factory.mktemp("many")
    names = [name_of(number) for number in range(MANY)]
    value = [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["batch", 4]) for tensor in ("x", "y")]
    for name in names:
        write_model(folder / "models", name, [helper.make_node("Mul", ["x", "f"], ["y"])], [value[0]], value[1],
                    [numpy_helper.from_array(np.float32(2), "f")])
    profile = write_profile(folder / "profile.json", names, 1)
    (admin,) = free_addresses(1)
    with serving(program, folder / "models", folder / "log", "--device", f"emulated:{profile}", "--profile", str(profile),
                 "--admin-port", admin, "--log-level", "info", page_cache="1 GiB") as server:
        yield server, admin, folder / "log"


def shown(page: Browser) -> list[str]:
    return page.run("[...document.querySelectorAll('#model-table tbody tr b')].map(b => b.textContent)")


def choose(page: Browser, selector: str, value: str) -> None:
    page.run(f"""(() => {{ const s = document.querySelector('{selector}'); s.value = '{value}';
                 s.dispatchEvent(new Event('change')); }})()""")


def test_many_models_have_pages_and_an_order(many, browser):
    server, admin, _ = many
    everyone = sorted(name_of(number) for number in range(MANY))
    busy = ["model_490", "model_017", "model_333"]
    for times, model in enumerate(busy, 1):
        for _ in range(5 * times):
            assert infer(server, model) == 200
    hurried = json.dumps({**json.loads(REQUEST), "parameters": {"timeout": 1}}).encode()
    for _ in range(4):
        assert fetch(server.http, "/v2/models/model_123/infer", data=hurried)[0] == 504
    browser.open(f"http://{admin}/")
    browser.wait("document.querySelectorAll('#model-table tbody tr').length === 15")
    assert browser.text("#models-count") == "500 of 500 ready"
    assert browser.run("document.getElementById('sort').value") == "trouble"
    browser.wait("document.querySelector('#model-table tbody b').textContent === 'model_123'")
    choose(browser, "#sort", "rate")
    browser.wait("[...document.querySelectorAll('#model-table tbody b')].slice(0, 3).map(b => b.textContent).join() === "
                 f"'{','.join(reversed(busy))}'")
    choose(browser, "#sort", "name")
    browser.wait(f"document.querySelector('#model-table tbody b').textContent === {json.dumps(everyone[0])}")
    # All of them, page by page.
    choose(browser, "#page-size", "100")
    seen = []
    for page in range(5):
        browser.wait(f"document.getElementById('page-text').textContent === '{page * 100 + 1} to {page * 100 + 100} of 500'")
        assert browser.run("document.getElementById('page-before').disabled") == (page == 0)
        assert browser.run("document.getElementById('page-after').disabled") == (page == 4)
        seen += shown(browser)
        if page < 4:
            browser.click("#page-after")
    assert seen == everyone
    browser.click("#page-before")
    browser.wait("document.getElementById('page-text').textContent === '301 to 400 of 500'")
    # Those that are looked for; from a page that they do not have.
    browser.type("#filter", "MODEL_49")
    browser.wait("document.querySelectorAll('#model-table tbody tr').length === 10")
    assert shown(browser) == [f"model_49{i}" for i in range(10)]
    assert "10 found" in browser.text("#models-count")
    browser.run("(() => { const f = document.getElementById('filter'); f.value = 'nobody'; f.dispatchEvent(new Event('input')); })()")
    browser.wait("document.getElementById('model-table').hidden")
    browser.run("(() => { const f = document.getElementById('filter'); f.value = '<IMG'; f.dispatchEvent(new Event('input')); })()")
    browser.wait(f"document.querySelector('#model-table tbody b')?.textContent === {json.dumps(HOSTILE)}")
    browser.settle()
    assert browser.run("window.harmed") is None and browser.run("document.querySelector('main img')") is None
    assert browser.console == []


def test_a_poll_of_many_models_is_small(many):
    _, admin, _ = many
    whole = len(fetch(admin, "/v2/carillon/status")[2])
    page = len(fetch(admin, "/v2/carillon/status?sort=trouble&offset=0&limit=15")[2])
    assert whole > 150_000 and page < 16_000, (whole, page)
    assert len(fetch(admin, "/v2/carillon/trend")[2]) < 40_000


def test_many_models_start_with_few_lines(many):
    """At level info no line is of one model, and metrics have histograms of models with requests alone."""
    server, _, log = many
    said = log.read_text()
    assert "model_" not in said and len(said.splitlines()) < 15, said
    lines = server.scrape().splitlines()
    assert len(lines) < 32 * MANY
    quiet = [line for line in lines if '"model_400"' in line]
    assert len(quiet) < 32 and not [line for line in quiet if "_bucket{" in line]


@pytest.mark.parametrize("dark", [False, True])
def test_many_models_on_a_narrow_screen(many, tmp_path, dark):
    _, admin, _ = many
    with Browser(tmp_path, 400, 800, dark) as page:
        page.open(f"http://{admin}/")
        page.wait("document.querySelectorAll('#model-table tbody tr').length === 15")
        assert page.run("document.documentElement.scrollWidth") <= 400
        for selector in ("#tiles", "#trend", "#time-bar", "#memory-bar", "#sort", "#pager", "#page-size"):
            left, right = page.run(f"(() => {{ const r = document.querySelector('{selector}').getBoundingClientRect(); return [r.left, r.right]; }})()")
            assert 0 <= left < right <= 400, selector
        assert page.console == []


def test_a_server_without_models(program, browser, tmp_path):
    (tmp_path / "none").mkdir()
    http, admin, metrics = free_addresses(3)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([str(program), "serve", "--models", str(tmp_path / "none"), "--http", http, "--grpc", "", "--metrics", metrics,
                                    "--admin-port", admin, "--model-control-mode", "explicit", "--page-cache", "64 MiB"],
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        limit = time.monotonic() + 60
        while True:
            with contextlib.suppress(urllib.error.URLError, OSError):
                if fetch(admin, "/v2/carillon/status")[0] == 200:
                    break
            assert process.poll() is None and time.monotonic() < limit, (tmp_path / "log").read_text()
            time.sleep(0.05)
        browser.open(f"http://{admin}/")
        browser.wait("document.getElementById('models-count').textContent === 'this server has none'")
        assert browser.run("document.getElementById('model-table').hidden && document.getElementById('pager').hidden")
        assert "no requests" in browser.text("#tiles")
        browser.wait("/none yet|requests\\/s/.test(document.getElementById('trend-told').textContent)")
        browser.settle()
        assert browser.console == []
    finally:
        process.terminate()
        process.wait(30)
