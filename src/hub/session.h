// HTTP requests to a hub, by libcurl: proxies, redirects, TLS. Internal to the room.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace espalier::hub {

struct SessionConfig {
  std::string endpoint;  // "https://huggingface.co"
  std::string token;     // sent to the endpoint's host alone; "": none
  std::string ca_file;   // certificates that are trusted, PEM; "": the system's
};

struct HubResponse {
  long status = 0;
  std::map<std::string, std::string> headers;  // of the last answer; names in lower case
  std::string body;                            // empty where a sink took it

  std::string header(const std::string& name) const;  // "" when there is none
};

// One connection, kept alive between requests. Not thread-safe. Paths start with '/' and are
// appended to the endpoint. Any HTTP status is a success; kUnavailable says why there is none, or
// that the answer broke off.
class Session {
 public:
  static Result<Session> create(const SessionConfig& config);
  Session(Session&&) noexcept;
  ~Session();

  Result<HubResponse> get(const std::string& path);
  // Redirects within the endpoint alone are followed: the answer that leads to another host holds
  // the file's size and checksum.
  Result<HubResponse> head(const std::string& path);

  // Hands the bytes from `offset` on to `sink`, from the file's start (restart: true) where the
  // server ignores ranges. The sink returns false to end the transfer (kAborted). Bodies of other
  // statuses than 200 and 206 go to HubResponse::body.
  using Sink = std::function<bool(std::string_view bytes, bool restart)>;
  Result<HubResponse> download(const std::string& path, int64_t offset, const Sink& sink);

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A path with the characters escaped that a URL does not hold; '/' stays.
std::string url_path(std::string_view path);

}  // namespace espalier::hub
