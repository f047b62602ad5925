// Settings of one server, in the parts that use them. The flag of `espalier serve` that sets a
// field has its name with hyphens, unless the comment states another; docs/flags.md has them all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "net/tls_files.h"

namespace espalier {

// --kv-events-config with the publisher "zmq": where the prefix cache's events are published over
// ZeroMQ. Addresses as vLLM has them: with "*" they are listened at, without they are a
// subscriber's that listens.
struct KvEventsConfig {
  std::string endpoint;         // empty: not over ZeroMQ
  std::string replay_endpoint;  // always listened at; empty: there is no replay
  std::string topic;
};

// Who may call, and from where.
struct AccessConfig {
  std::string api_key;         // empty: open
  std::string admin_api_key;   // empty: api_key
  std::string api_keys_file;   // keys with names and limits; empty: none
  std::string router_api_key;  // of a router that states tenants; empty: none
  // --ssl-certfile, --ssl-keyfile, --ssl-keyfile-password, --ssl-ca-certs: https alone is served
  // with this certificate; clients must show one where --ssl-ca-certs is stated. None: plain HTTP.
  net::TlsFiles tls;
  // Whose pages may read answers; "*" is everyone. Not set: everyone, but nobody where a server
  // without a key is bound beyond loopback.
  std::vector<std::string> cors_origins;
};

// What answers look like.
struct AnswerConfig {
  std::string served_model_name;  // empty: the model path, as it was given
  std::string weight_version = "default";

  // A file's path, or the template's own text (recognised by "{{" or "{%"). Empty: the model
  // folder's own. Without any, /v1/chat/completions answers 400 with that reason.
  std::string chat_template;

  // The format of tool calls; empty: the one that the chat template speaks.
  std::string tool_call_parser;
  // How reasoning is marked; empty: as the chat template marks it; none: it is text like any other.
  std::string reasoning_parser;
  // Of one answer whose list of calls a grammar writes; 0: no bound.
  int max_parallel_tool_calls = 16;

  std::string rerank_format = "sglang";  // of /v1/rerank; or jina
  // Classes that do not flag a text, separated by commas, in any case.
  std::string moderation_safe_labels = "safe,neutral,ok,none,non-toxic,LABEL_0";

  bool enable_metrics = false;                // adds timings to meta_info; /metrics is always on
  bool enable_cache_report = false;           // usage.prompt_tokens_details
  bool incremental_streaming_output = false;  // deltas in /generate
  int32_t stream_interval = 1;                // tokens between two stream events
};

// What is recorded of requests: logs, traces, events.
struct TelemetryConfig {
  bool log_requests = false;         // one line at each request's end
  std::string otlp_traces_endpoint;  // a collector that gets spans of each request; empty: none
  std::string otlp_service_name = "espalier";
  std::string request_log;           // a file that gets a line of each request; empty: none
  bool request_log_prompts = false;  // with whole bodies
  int64_t request_log_max_bytes = int64_t{256} << 20;  // a larger file is renamed; 0: never
  std::string profile_dir;  // the folder of traces of /start_profile; empty: none
  KvEventsConfig kv_events;
};

// What a server keeps for its callers.
struct StorageConfig {
  // Of stored answers of /v1/responses; the least recently used are given up.
  size_t max_responses_bytes = 64ull << 20;
  Duration responses_time_to_live = std::chrono::hours(1);  // unused
  std::string storage_path;  // the folder of uploaded files and batches; empty: there are none
  int64_t max_storage_bytes = int64_t{16} << 30;  // of all files together
  // Lines of batches that run at once; 0: half of max_running_requests.
  int32_t max_batch_requests = 0;
  // The folder of files that /cache/export writes and /cache/import reads; empty: none.
  std::string cache_file_dir;
};

// Pictures that requests name by URL.
struct MediaSourceConfig {
  std::vector<std::string> allowed_media_domains;  // hosts of http(s) pictures; empty: none
  bool allow_private_media_addresses = false;      // also where the hosts' addresses are not public
  std::string allowed_local_media_path;            // the folder of file:// pictures; empty: none
  Duration media_fetch_timeout = std::chrono::seconds(10);  // of a picture
};

// What connections and their requests may take.
struct LimitConfig {
  int io_threads = 1;
  int worker_threads = 1;  // large bodies and long texts are handled here, away from the sockets
  size_t max_body_bytes = 65ull << 20;  // a part of 64 MiB, as clients cut files, with its form
  int max_connections = 4096;
  // Of one connection, not yet taken by its client; a stream beyond it is dropped.
  size_t max_pending_output_bytes = 8ull << 20;
  // Over all connections: bodies of requests, and what clients have not taken of their answers.
  // 0: a sixteenth of the memory that is free at start, at least 256 MiB and eight bodies.
  size_t max_bodies_bytes = 0, max_outputs_bytes = 0;
  Duration header_timeout =
      std::chrono::seconds(30);  // from a request's first byte to its last header
  Duration idle_timeout =
      std::chrono::seconds(120);  // between requests, and between a body's bytes
  Duration write_timeout = std::chrono::seconds(60);   // without progress
  Duration health_timeout = std::chrono::seconds(20);  // of /health_generate's one token
};

struct ServerConfig {
  std::string host = "127.0.0.1";
  int port = 30000;  // 0: any free one
  AccessConfig access;
  AnswerConfig answers;
  TelemetryConfig telemetry;
  StorageConfig storage;
  MediaSourceConfig media;
  LimitConfig limits;
  // A page for browsers at `/`. Not set: where the host is bound to loopback.
  std::optional<bool> enable_playground;

  // Paths of the host that /server_info shows to administrators, and null to others.
  std::vector<std::pair<std::string, std::string>> private_paths;
  // What the caller wants to see in /server_info besides these and the engine's settings.
  std::vector<std::pair<std::string, std::string>> extra_info;
};

}  // namespace espalier
