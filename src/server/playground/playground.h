// The playground: a page at `/` that shows what the server does, its files in the program. Constant
// data and pure functions; any thread may call them. Internal to the room.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "net/http.h"
#include "server/server.h"

namespace espalier::server {

// A file of the folder src/server/playground/files, as CMake has put it into the program.
struct StaticFile {
  std::string_view name;   // "main.js"
  std::string_view type;   // of Content-Type
  std::string_view etag;   // of its contents, in quotes
  std::string_view plain;  // its bytes
  std::string_view gzip;   // the same, compressed
  // Of a page: " 'sha256-...'" for each script and each style that stands in it, for the policy.
  std::string_view inline_scripts, inline_styles;
};
std::span<const StaticFile> playground_files();  // by name

// What --enable-playground says; where it says nothing, whether `host` is bound to loopback.
bool serves_playground(const ServerConfig& config);

// The file for a request of it: compressed where the client takes that, 304 where the client has
// it already, 404 for a name that is no file's. The page may load and ask this server alone, and
// another page that opens it gets no hold of its window (Cross-Origin-Opener-Policy); that header
// is left out where the browser says that no page did (Sec-Fetch-Site: none), for it makes a
// browser begin another process.
net::HttpResponse playground_file(const net::HttpRequest& request, std::string_view name);

// The page for a browser that asks for `/`; nothing for a client that does not ask for HTML.
std::optional<net::HttpResponse> playground_page(const net::HttpRequest& request);

}  // namespace espalier::server
