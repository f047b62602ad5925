// The HTTP face of an engine: native, OpenAI and admin routes over one Engine.
//
//   ESP_ASSIGN_OR_RETURN(auto server, Server::create(config, *engine));
//   ESP_RETURN_IF_ERROR(server->start());   // port() answers from here on
//   ... server->stop(std::chrono::seconds(30));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "net/bound_address.h"
#include "net/tls_files.h"

namespace espalier {

class Engine;

// --kv-events-config with the publisher "zmq": where the prefix cache's events are published over
// ZeroMQ. Addresses as vLLM has them: with "*" they are listened at, without they are a
// subscriber's that listens.
struct KvEventsConfig {
  std::string endpoint;         // empty: not over ZeroMQ
  std::string replay_endpoint;  // always listened at; empty: there is no replay
  std::string topic;
};

// Settings of one server; SGLang's flag of the same meaning stands behind each that has one.
struct ServerConfig {
  std::string host = "127.0.0.1";  // --host
  int port = 30000;                // --port; 0: any free one
  std::string api_key;             // --api-key; empty: open
  std::string admin_api_key;       // --admin-api-key; empty: api_key
  std::string api_keys_file;       // --api-keys-file: keys with names and limits; empty: none
  std::string router_api_key;      // --router-api-key: of a router that states tenants; empty: none
  // --ssl-certfile, --ssl-keyfile, --ssl-keyfile-password, --ssl-ca-certs: https alone is served
  // with this certificate; clients must show one where --ssl-ca-certs is stated. None: plain HTTP.
  net::TlsFiles tls;
  std::string served_model_name;  // --served-model-name; empty: the model path, as it was given
  std::string weight_version = "default";  // --weight-version

  // --chat-template: a file's path, or the template's own text (recognised by "{{" or "{%"). Empty:
  // the model folder's own. Without any, /v1/chat/completions answers 400 with that reason.
  std::string chat_template;

  // --tool-call-parser: the format of tool calls; empty: the one that the chat template speaks.
  // --reasoning-parser: how reasoning is marked; empty: as the chat template marks it; none: it is
  // text like any other.
  std::string tool_call_parser, reasoning_parser;
  // --max-parallel-tool-calls: of one answer whose list of calls a grammar writes; 0: no bound.
  int max_parallel_tool_calls = 16;

  std::string rerank_format = "sglang";  // --rerank-format: of /v1/rerank; or jina
  // --moderation-safe-labels: classes that do not flag a text, separated by commas, in any case.
  std::string moderation_safe_labels = "safe,neutral,ok,none,non-toxic,LABEL_0";

  bool enable_metrics =
      false;  // --enable-metrics: adds timings to meta_info; /metrics is always on
  bool enable_cache_report = false;           // --enable-cache-report: usage.prompt_tokens_details
  bool incremental_streaming_output = false;  // --incremental-streaming-output: deltas in /generate
  int32_t stream_interval = 1;                // --stream-interval: tokens between two stream events
  bool log_requests = false;                  // --log-requests: one line at each request's end
  // --otlp-traces-endpoint: a collector that gets spans of each request; empty: none.
  std::string otlp_traces_endpoint;
  std::string otlp_service_name = "espalier";  // --otlp-service-name
  // --request-log: a file that gets a line of each request; empty: none. --request-log-prompts:
  // with whole bodies; --request-log-max-bytes: a larger file is renamed, 0: never.
  std::string request_log;
  bool request_log_prompts = false;
  int64_t request_log_max_bytes = int64_t{256} << 20;
  std::string profile_dir;  // --profile-dir: the folder of traces of /start_profile; empty: none
  // --cache-file-dir: the folder of files that /cache/export writes and /cache/import reads; empty:
  // none.
  std::string cache_file_dir;
  KvEventsConfig kv_events;
  // --enable-playground: a page for browsers at `/`. Not set: where the host is bound to loopback.
  std::optional<bool> enable_playground;

  int io_threads = 1;
  int worker_threads = 1;  // large bodies and long texts are handled here, away from the sockets
  size_t max_body_bytes = 65ull << 20;  // a part of 64 MiB, as clients cut files, with its form
  int max_connections = 4096;
  // Of one connection, not yet taken by its client; a stream beyond it is dropped.
  size_t max_pending_output_bytes = 8ull << 20;
  // Over all connections: bodies of requests, and what clients have not taken of their answers.
  // 0: a sixteenth of the memory that is free at start, at least 256 MiB and eight bodies.
  size_t max_bodies_bytes = 0, max_outputs_bytes = 0;
  // --max-responses-bytes: of stored answers of /v1/responses; the least recently used are given
  // up.
  size_t max_responses_bytes = 64ull << 20;
  Duration responses_time_to_live = std::chrono::hours(1);  // --responses-time-to-live: unused
  // --storage-path: the folder of uploaded files and batches; empty: this server has none.
  std::string storage_path;
  int64_t max_storage_bytes = int64_t{16} << 30;  // --max-storage-bytes: of all files together
  // --max-batch-requests: lines of batches that run at once; 0: half of max_running_requests.
  int32_t max_batch_requests = 0;
  // Pictures that requests name by URL. --allowed-media-domains: hosts that http(s) pictures are
  // fetched from (empty: none); --allow-private-media-addresses: also where their addresses are not
  // public; --allowed-local-media-path: the folder of file:// pictures (empty: none).
  std::vector<std::string> allowed_media_domains;
  bool allow_private_media_addresses = false;
  std::string allowed_local_media_path;
  Duration media_fetch_timeout = std::chrono::seconds(10);  // --media-fetch-timeout: of a picture
  // --cors-origins: whose pages may read answers; "*" is everyone. Not set: everyone, but nobody
  // where a server without a key is bound beyond loopback.
  std::vector<std::string> cors_origins;
  Duration header_timeout =
      std::chrono::seconds(30);  // from a request's first byte to its last header
  Duration idle_timeout =
      std::chrono::seconds(120);  // between requests, and between a body's bytes
  Duration write_timeout = std::chrono::seconds(60);   // without progress
  Duration health_timeout = std::chrono::seconds(20);  // of /health_generate's one token

  // Paths of the host that /server_info shows to administrators, and null to others.
  std::vector<std::pair<std::string, std::string>> private_paths;
  // What the caller wants to see in /server_info besides these and the engine's settings.
  std::vector<std::pair<std::string, std::string>> extra_info;
};

// Thread-safe. The engine outlives the server.
class Server {
 public:
  // What can be said without an engine, so before a model is loaded: checks the settings, reads and
  // compiles a stated chat template, and binds host and port (connections are refused until
  // start()). A port that is taken fails with kFailedPrecondition and names it.
  static Result<net::BoundAddress> reserve(const ServerConfig& config);

  // Checks the settings and compiles the chat template. Serves at `address`; without one, start()
  // binds host and port.
  static Result<std::unique_ptr<Server>> create(
      ServerConfig config, Engine& engine, std::optional<net::BoundAddress> address = std::nullopt);
  ~Server();  // stop(0) when it still runs

  // Binds, where reserve() has not, and serves. A port that is taken fails with kFailedPrecondition
  // and names it.
  Status start();
  int port() const;  // the bound one; 0 before start()

  // Reads the files again that may change while it serves: --api-keys-file, and the certificate and
  // the keys of TLS, for connections to come. A failure changes nothing.
  Status reload();

  // Refuses new work (503), waits until every answer is out or `timeout` has passed, aborts what is
  // left and closes. Afterwards nothing of the server runs any more. A second call does nothing.
  void stop(Duration timeout);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier
