#!/usr/bin/env python3
"""A stand-in for a Kubernetes API server, with Leases alone: what a cluster's members ask of one, and faults by command.

It answers as Kubernetes 1.30 does: resourceVersions that grow over all objects, compare-and-set, validation, list and
watch with labels, bookmarks and 410, tokens, RBAC's words. What it holds is in a file, so that it may be killed and
started again. `POST /stub` takes commands, a JSON object:

    slow_ms N        each call takes so long (also before a watch begins)
    hang true        calls have no answer until that is undone
    fail [...]       rules; the first that fits answers: verbs, name, status (0: none, and the connection ends), message, retry_after, times;
                     one with touch has another hand write first, one with stall_ms takes so long, and both go on
    conflicts N      before so many writes another hand touches the object
    forget true      the history of changes is lost: watches from before get 410
    end_watches true all watches end, as those do whose time is over
    say TEXT         each watch gets this text as it is
    tokens [...]     only these may ask; null: everybody
    clock_s S        the server's clock is so much later than it should be: in Date, creationTimestamp, ...
    namespaces [...] there are only these
    put {...}, delete NAME    a hand that edits: fields that are merged into a Lease, null deletes
    look true        nothing; the answer has what there is: objects, counts of calls by verb, tokens seen
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import http.server
import json
import os
import re
import ssl
import threading
import time
import urllib.parse
import uuid
from email.utils import formatdate
from pathlib import Path

DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
PATH = re.compile(r"/apis/coordination\.k8s\.io/v1/namespaces/([^/]+)/leases(?:/([^/]+))?")
LONGEST_HISTORY = 1000


class Refused(Exception):
    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None, kind: str = "leases"):
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
        self.body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason,
                     "details": {"group": "coordination.k8s.io", "kind": kind}, "code": status}


class Store:
    """Leases, and all changes of late. One lock."""

    def __init__(self, file: Path | None):
        self.file, self.changed = file, threading.Condition()
        self.objects: dict[str, dict] = {}  # by "NAMESPACE/NAME"
        self.revision = 100
        if file and file.exists():
            held = json.loads(file.read_text())
            self.objects, self.revision = held["objects"], held["revision"]
        self.history: list[tuple[int, dict | None, dict | None]] = []  # revision, before, after
        self.begins = self.revision  # the history has all changes after this one
        self.slow_ms, self.hang, self.conflicts, self.clock_s = 0.0, False, 0, 0.0
        self.rules: list[dict] = []
        self.tokens: list[str] | None = None
        self.namespaces: list[str] | None = None
        self.generation = 0  # of watches: those of an earlier one end
        self.said: list[str] = []
        self.counts = dict.fromkeys(("get", "list", "watch", "create", "update", "delete"), 0)
        self.seen_tokens: list[str] = []

    def stamp(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + self.clock_s))

    def write(self, key: str, after: dict | None) -> dict:
        """With the lock. The object as it is then, or as it was."""
        before = self.objects.get(key)
        self.revision += 1
        if after is None:
            del self.objects[key]
            gone = copy.deepcopy(before)
            gone["metadata"]["resourceVersion"] = str(self.revision)
            self.history.append((self.revision, gone, None))
        else:
            after["metadata"]["resourceVersion"] = str(self.revision)
            after["metadata"]["managedFields"] = [{"manager": "carillon", "operation": "Update", "apiVersion": "coordination.k8s.io/v1",
                                                   "time": self.stamp(), "fieldsType": "FieldsV1",
                                                   "fieldsV1": {"f:metadata": {"f:annotations": {".": {}, "f:carillon/member": {}}}}}]
            self.objects[key] = after
            self.history.append((self.revision, before, after))
        if len(self.history) > LONGEST_HISTORY:
            self.begins = self.history[len(self.history) // 2 - 1][0]
            self.history = self.history[len(self.history) // 2:]
        if self.file:
            new = self.file.with_suffix(".new")
            new.write_text(json.dumps({"objects": self.objects, "revision": self.revision}))
            os.replace(new, self.file)
        self.changed.notify_all()
        return after or before

    def touch(self, key: str) -> None:
        if key in self.objects:
            touched = copy.deepcopy(self.objects[key])
            touched["metadata"].setdefault("annotations", {})["touched"] = str(self.revision)
            self.write(key, touched)


def check(body: dict, name: str | None, namespace: str) -> None:
    """What Kubernetes would refuse."""
    wrong = []
    metadata, spec = body.get("metadata", {}), body.get("spec", {})
    if body.get("apiVersion") != "coordination.k8s.io/v1" or body.get("kind") != "Lease":
        raise Refused(400, "BadRequest", f"{body.get('apiVersion')}, Kind={body.get('kind')} is no Lease")
    if set(body) - {"apiVersion", "kind", "metadata", "spec"} or set(metadata) - {
            "name", "namespace", "labels", "annotations", "resourceVersion", "uid", "creationTimestamp", "managedFields"}:
        wrong.append(f"unknown fields in {sorted(body)} or {sorted(metadata)}")
    if set(spec) - {"holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions"}:
        wrong.append(f"unknown fields in spec: {sorted(spec)}")
    if metadata.get("namespace", namespace) != namespace:
        raise Refused(400, "BadRequest", "the namespace of the provided object does not match the namespace sent on the request")
    if name is not None and metadata.get("name") != name:
        raise Refused(400, "BadRequest", f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({name})")
    if not DNS.fullmatch(metadata.get("name", "")) or len(metadata["name"]) > 253:
        wrong.append("metadata.name: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'")
    for key, value in metadata.get("labels", {}).items():
        if not KEY.fullmatch(key) or not LABEL.fullmatch(value) or len(value) > 63:
            wrong.append(f"metadata.labels: {key}: {value}")
    for key, value in metadata.get("annotations", {}).items():
        if not KEY.fullmatch(key) or not isinstance(value, str):
            wrong.append(f"metadata.annotations: {key}: {value}")
    for field, least in (("leaseDurationSeconds", 1), ("leaseTransitions", 0)):
        value = spec.get(field, least)
        if not isinstance(value, int) or not least <= value < 2**31:
            wrong.append(f"spec.{field}: Invalid value: {value}")
    for field in ("acquireTime", "renewTime"):
        if field in spec and not MICRO_TIME.fullmatch(spec[field]):
            wrong.append(f"spec.{field}: {spec[field]} is no MicroTime")
    if wrong:
        raise Refused(422, "Invalid", f'Lease.coordination.k8s.io "{metadata.get("name")}" is invalid: {"; ".join(wrong)}')


def selected(lease: dict | None, selector: dict[str, str], namespace: str) -> bool:
    return (lease is not None and lease["metadata"]["namespace"] == namespace
            and all(lease["metadata"].get("labels", {}).get(key) == value for key, value in selector.items()))


def merge(into: dict, change: dict) -> None:
    for key, value in change.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {}), value)
        else:
            into[key] = value


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    store: Store

    def log_message(self, *_) -> None:
        pass

    def date_time_string(self, timestamp=None) -> str:
        return formatdate((timestamp or time.time()) + self.store.clock_s, usegmt=True)

    def answer(self, status: int, body: dict, **headers: str) -> None:
        data = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def handle_one(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(size)) if size else {}
        url = urllib.parse.urlsplit(self.path)
        if url.path == "/stub":
            return self.answer(200, command(self.store, body))
        try:
            status, answer = self.obey(url.path, dict(urllib.parse.parse_qsl(url.query)), body)
        except Refused as refused:
            headers = {} if refused.retry_after is None else {"Retry_After": f"{refused.retry_after:g}"}
            return self.answer(refused.status, refused.body, **headers)
        if answer is not None:
            self.answer(status, answer)

    do_GET = do_POST = do_PUT = do_DELETE = handle_one

    def obey(self, path: str, query: dict[str, str], body: dict) -> tuple[int, dict | None]:
        store, method = self.store, self.command
        found = PATH.fullmatch(path)
        if not found:
            raise Refused(404, "NotFound", "the server could not find the requested resource", kind="")
        namespace, name = found.groups()
        verb = {"GET": "get" if name else "watch" if "watch" in query else "list", "POST": "create", "PUT": "update", "DELETE": "delete"}[method]
        about = name or body.get("metadata", {}).get("name", "")
        key = f"{namespace}/{about}"
        if store.slow_ms:
            time.sleep(store.slow_ms / 1000)
        with store.changed:
            store.changed.wait_for(lambda: not store.hang)
            store.counts[verb] += 1
            token = self.headers.get("Authorization", "")
            if token not in store.seen_tokens:
                store.seen_tokens.append(token)
            if store.tokens is not None and token.removeprefix("Bearer ") not in store.tokens:
                raise Refused(401, "Unauthorized", "Unauthorized", kind="")
            for rule in store.rules:
                if verb in rule.get("verbs", [verb]) and re.fullmatch(rule.get("name", ".*"), about) and rule.get("times", 1) > 0:
                    if "times" in rule:
                        rule["times"] -= 1
                    if rule.get("touch"):
                        store.touch(key)
                        there = store.objects.get(key)
                        continue
                    if rule.get("stall_ms"):
                        store.changed.wait_for(lambda: False, rule["stall_ms"] / 1000)
                        there = store.objects.get(key)
                        continue
                    if rule["status"] == 0:
                        self.close_connection = True
                        return 0, None
                    forbidden = (f'leases.coordination.k8s.io {f"{chr(34)}{name}{chr(34)} " if name else ""}is forbidden: User "system:serviceaccount:{namespace}:carillon" '
                                 f'cannot {verb} resource "leases" in API group "coordination.k8s.io" in the namespace "{namespace}"')
                    raise Refused(rule["status"], "Stub", rule.get("message", forbidden if rule["status"] == 403 else "by command"), rule.get("retry_after"))
            there = store.objects.get(key)
            if verb in ("update", "create") and store.conflicts > 0:
                store.conflicts -= 1
                if there is None and verb == "create":
                    other = copy.deepcopy(body)
                    self.create(key, namespace, other)
                store.touch(key)
                there = store.objects.get(key)
            if verb == "list":
                return 200, self.list(namespace, query)
            if verb == "watch":
                start = int(query.get("resourceVersion", store.revision))
                if start > store.revision:
                    raise Refused(504, "Timeout", f"Too large resource version: {start}, current: {store.revision}", 1)
                if start < store.begins:
                    raise Refused(410, "Expired", f"too old resource version: {start} ({store.begins})")
                generation = store.generation
            elif verb == "create":
                if store.namespaces is not None and namespace not in store.namespaces:
                    raise Refused(404, "NotFound", f'namespaces "{namespace}" not found', kind="namespaces")
                check(body, None, namespace)
                if there is not None:
                    raise Refused(409, "AlreadyExists", f'leases.coordination.k8s.io "{about}" already exists')
                return 201, self.create(key, namespace, body)
            elif there is None:
                raise Refused(404, "NotFound", f'leases.coordination.k8s.io "{about}" not found')
            elif verb == "get":
                return 200, there
            elif verb == "update":
                check(body, name, namespace)
                revision = body["metadata"].get("resourceVersion")
                if not revision:
                    raise Refused(422, "Invalid", f'leases.coordination.k8s.io "{name}" is invalid: metadata.resourceVersion: Invalid value: 0x0: must be specified for an update')
                if revision != there["metadata"]["resourceVersion"]:
                    raise Refused(409, "Conflict", f'Operation cannot be fulfilled on leases.coordination.k8s.io "{name}": the object has been modified; please apply your changes to the latest version and try again')
                body["metadata"].update({field: there["metadata"][field] for field in ("uid", "creationTimestamp")})
                body["metadata"].setdefault("namespace", namespace)
                return 200, store.write(key, body)
            else:
                wanted = body.get("preconditions", {}).get("resourceVersion")
                if wanted is not None and wanted != there["metadata"]["resourceVersion"]:
                    raise Refused(409, "Conflict", f'Operation cannot be fulfilled on leases.coordination.k8s.io "{name}": Precondition failed: ResourceVersion in precondition: {wanted}')
                store.write(key, None)
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": {"name": name, "kind": "leases"}}
        self.watch(namespace, query, start, generation)
        return 0, None

    def create(self, key: str, namespace: str, body: dict) -> dict:
        body["metadata"].update(namespace=namespace, uid=str(uuid.uuid4()), creationTimestamp=self.store.stamp())
        return self.store.write(key, body)

    def list(self, namespace: str, query: dict[str, str]) -> dict:
        selector = selector_of(query)
        items = [each for _, each in sorted(self.store.objects.items()) if selected(each, selector, namespace)]
        limit = int(query.get("limit", 0)) or len(items)
        return {"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1",
                "metadata": {"resourceVersion": str(self.store.revision), **({"continue": "more"} if len(items) > limit else {})}, "items": items[:limit]}

    def watch(self, namespace: str, query: dict[str, str], start: int, generation: int) -> None:
        store, selector = self.store, selector_of(query)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        ends = time.monotonic() + float(query.get("timeoutSeconds", 1800))
        place, said, bookmark_at = start, len(store.said), time.monotonic() + 1

        def send(text: str) -> None:
            data = text.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        with contextlib.suppress(OSError):
            while time.monotonic() < ends and generation == store.generation:
                lines = []
                with store.changed:
                    store.changed.wait_for(lambda: store.revision > place or generation != store.generation or len(store.said) > said, 0.5)
                    lines += store.said[said:]
                    said = len(store.said)
                    if place < store.begins:
                        lines.append(json.dumps({"type": "ERROR", "object": Refused(410, "Expired", "too old resource version").body}) + "\n")
                        store_ends = True
                    else:
                        store_ends = False
                        for revision, before, after in store.history:
                            if revision <= place:
                                continue
                            was, is_ = selected(before, selector, namespace), selected(after, selector, namespace)
                            shown = after
                            if was and not is_:
                                shown = copy.deepcopy(before)
                                shown["metadata"]["resourceVersion"] = str(revision)
                            if was or is_:
                                lines.append(json.dumps({"type": "DELETED" if not is_ else "MODIFIED" if was else "ADDED", "object": shown}) + "\n")
                        place = max(place, store.revision)
                for line in lines:
                    send(line)
                if store_ends:
                    break
                if query.get("allowWatchBookmarks") == "true" and time.monotonic() > bookmark_at:
                    bookmark_at = time.monotonic() + 1
                    send(json.dumps({"type": "BOOKMARK", "object": {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
                                                                    "metadata": {"resourceVersion": str(place), "creationTimestamp": None}, "spec": {}}}) + "\n")
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        self.close_connection = True


def selector_of(query: dict[str, str]) -> dict[str, str]:
    return dict(each.split("=", 1) for each in query.get("labelSelector", "").split(",") if each)


def command(store: Store, orders: dict) -> dict:
    with store.changed:
        for order, value in orders.items():
            if order in ("slow_ms", "hang", "conflicts", "tokens", "clock_s", "namespaces"):
                setattr(store, order, value)
            elif order == "fail":
                store.rules = value
            elif order == "forget":
                store.history, store.begins = [], store.revision + 1
                store.revision += 1
            elif order == "end_watches":
                store.generation += 1
            elif order == "say":
                store.said.append(value)
            elif order == "put":
                key = f"{value['metadata']['namespace']}/{value['metadata']['name']}"
                changed = copy.deepcopy(store.objects.get(key) or {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {
                    "uid": str(uuid.uuid4()), "creationTimestamp": store.stamp()}, "spec": {}})
                merge(changed, value)
                store.write(key, changed)
            elif order == "delete":
                store.write(value, None)
            elif order != "look":
                raise ValueError(order)
        store.changed.notify_all()
        return {"objects": store.objects, "revision": store.revision, "counts": store.counts, "tokens": store.seen_tokens}


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    tls: ssl.SSLContext | None = None

    def finish_request(self, request, client_address) -> None:
        if self.tls:
            try:
                request.settimeout(10)
                request = self.tls.wrap_socket(request, server_side=True)
                request.settimeout(None)
            except OSError:
                return
        super().finish_request(request, client_address)

    def handle_error(self, request, client_address) -> None:
        pass  # a client that broke off


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("listen", metavar="HOST:PORT")
    parser.add_argument("--state", type=Path, help="what it holds, over its own end")
    parser.add_argument("--cert", help="PEM; with it and --key it speaks TLS")
    parser.add_argument("--key")
    args = parser.parse_args()
    host, _, port = args.listen.rpartition(":")
    Handler.store = Store(args.state)
    server = Server((host, int(port)), Handler)
    if args.cert:
        server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.tls.load_cert_chain(args.cert, args.key)
    server.serve_forever()


if __name__ == "__main__":
    main()
