#!/usr/bin/env python3
"""Traces of a server, held against the published messages of OTLP: what a collector gets is parsed as
an ExportTraceServiceRequest (unknown fields are errors), and a request joins its caller's trace."""
import http.server
import json
import pathlib
import sys
import threading

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
import harness  # noqa: E402

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(http.server.BaseHTTPRequestHandler):
    spans, came = [], threading.Condition()

    def do_POST(self):
        assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        parsed = json_format.Parse(body, ExportTraceServiceRequest())
        raw = json.loads(body)["resourceSpans"][0]["scopeSpans"][0]["spans"]
        with self.came:
            self.spans.extend(zip(parsed.resource_spans[0].scope_spans[0].spans, raw))
            self.came.notify_all()
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def main():
    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    with harness.Server("--otlp-traces-endpoint", endpoint, "--otlp-service-name", "compat") as server:
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0.5}
        status, _, text = server.request("POST", "/v1/chat/completions", chat,
                                         {"traceparent": f"00-{TRACE}-{PARENT}-01"})
        assert status == 200, text
        list(server.stream("/v1/completions", {"prompt": "One", "max_tokens": 4}))
        server.post("/generate", {"text": "Two", "sampling_params": {"max_new_tokens": 1}})
        assert server.stop() == 0
    with Collector.came:
        assert Collector.came.wait_for(lambda: sum(s.kind == s.SPAN_KIND_SERVER for s, _ in Collector.spans) == 3, 30)
    usage = json.loads(text)["usage"]
    servers = [(span, raw) for span, raw in Collector.spans if span.kind == span.SPAN_KIND_SERVER]
    operations = set()
    for span, raw in servers:
        attributes = {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}
        operations.add(attributes["gen_ai.operation.name"])
        inner = [s for s, r in Collector.spans if r.get("parentSpanId") == raw["spanId"]]
        assert [s.name for s in inner] in (["queue", "prefill", "decode"], ["queue", "prefill"]), inner
        assert inner[0].start_time_unix_nano == span.start_time_unix_nano
        assert inner[-1].end_time_unix_nano == span.end_time_unix_nano > span.start_time_unix_nano
        if attributes["gen_ai.operation.name"] == "chat":
            assert (raw["traceId"], raw["parentSpanId"]) == (TRACE, PARENT)
            assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
            assert attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
            assert attributes["gen_ai.request.max_tokens"] == 4 and attributes["gen_ai.request.temperature"] == 0.5
        else:
            assert "parentSpanId" not in raw and raw["traceId"] != TRACE
    assert operations == {"chat", "text_completion"}, operations
    print(f"{len(Collector.spans)} spans of 3 requests")


if __name__ == "__main__":
    main()
