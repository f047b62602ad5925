#include "server/playground/playground.h"

#include <algorithm>

#include "server/authorize.h"
#include "server/errors.h"

namespace espalier::server {
namespace {

// No inline script or style, nothing of another server, no frame around it and none in it. Pictures
// of grammars are made in the page, as blobs.
constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

bool header_has(const net::HttpRequest& request, std::string_view name, std::string_view word) {
  const std::string* value = request.header(name);
  return value != nullptr && value->find(word) != std::string::npos;
}

net::Headers headers_of(const StaticFile& file) {
  return {{"Content-Type", std::string(file.type)},
          {"Content-Security-Policy", std::string(kPolicy)},
          {"X-Content-Type-Options", "nosniff"},
          {"Referrer-Policy", "no-referrer"},
          {"Cross-Origin-Opener-Policy", "same-origin"},
          {"Cache-Control", "no-cache"},  // asked for again with its ETag, and mostly not sent
          {"Vary", "Accept, Accept-Encoding"},
          {"ETag", std::string(file.etag)}};
}

}  // namespace

bool serves_playground(const ServerConfig& config) {
  return config.enable_playground.value_or(is_loopback(config.host));
}

net::HttpResponse playground_file(const net::HttpRequest& request, std::string_view name) {
  const std::span<const StaticFile> files = playground_files();
  const auto file = std::ranges::find(files, name, &StaticFile::name);
  if (file == files.end())
    return http_error(404, fmt::format("the playground has no file '{}'", name));
  net::HttpResponse answer{200, headers_of(*file), {}};
  if (header_has(request, "If-None-Match", file->etag)) {
    answer.status = 304;
  } else if (header_has(request, "Accept-Encoding", "gzip")) {
    answer.headers.emplace_back("Content-Encoding", "gzip");
    answer.body = file->gzip;
  } else {
    answer.body = file->plain;
  }
  return answer;
}

std::optional<net::HttpResponse> playground_page(const net::HttpRequest& request) {
  if (!header_has(request, "Accept", "text/html")) return std::nullopt;
  return playground_file(request, "index.html");
}

}  // namespace espalier::server
