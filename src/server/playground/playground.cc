#include "server/playground/playground.h"

#include <algorithm>

#include "server/authorize.h"
#include "server/errors.h"

namespace espalier::server {
namespace {

// Of scripts and styles in a page those alone that were built into it, nothing of another server,
// no frame around it and none in it. Pictures of grammars are made in the page, as blobs.
std::string policy(const StaticFile& file) {
  return fmt::format(
      "default-src 'none'; script-src 'self'{}; style-src 'self'{}; img-src 'self' blob:; "
      "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
      file.inline_scripts, file.inline_styles);
}

bool header_has(const net::HttpRequest& request, std::string_view name, std::string_view word) {
  const std::string* value = request.header(name);
  return value != nullptr && value->find(word) != std::string::npos;
}

net::Headers headers_of(const StaticFile& file, const net::HttpRequest& request) {
  net::Headers headers = {
      {"Content-Type", std::string(file.type)},
      {"Content-Security-Policy", policy(file)},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"},
      {"Cache-Control", "no-cache"},  // asked for again with its ETag, and mostly not sent
      {"Vary", "Accept, Accept-Encoding, Sec-Fetch-Site"},
      {"ETag", std::string(file.etag)}};
  if (!header_has(request, "Sec-Fetch-Site", "none"))
    headers.emplace_back("Cross-Origin-Opener-Policy", "same-origin");
  return headers;
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
  net::HttpResponse answer{200, headers_of(*file, request), {}};
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
