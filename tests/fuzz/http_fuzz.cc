// libFuzzer: bytes to the running HTTP server over a socket, in one or two writes. It answers HTTP
// or closes, and does so soon.
#include <cstring>

#include "base/check.h"
#include "net/http_server.h"
#include "net/test_socket.h"

namespace {

using namespace espalier;
using namespace espalier::net;

std::unique_ptr<HttpServer> start() {
  Router router;
  ESP_CHECK(router
                .add("GET", "/hello",
                     [](HttpRequest&& q, ResponsePtr r) {
                       r->send(HttpResponse::text(200, q.query_param("q").value_or("hi")));
                     })
                .ok());
  ESP_CHECK(router
                .add("POST", "/echo/{name*}",
                     [](HttpRequest&& q, ResponsePtr r) {
                       r->start_stream(200, {{"X-Name", std::string(q.param("name"))}});
                       r->write(std::move(q.body));
                       r->finish();
                     })
                .ok());
  auto server =
      HttpServer::start({.max_header_bytes = 1024, .max_body_bytes = 2048}, std::move(router));
  ESP_CHECK(server.has_value());
  return std::move(*server);
}

// From many addresses of this machine: those of one run out of ports. One that cannot be used now
// is passed over; an input that no address brings to the server was not tried, and that is told.
TestSocket connect_to(int port) {
  static uint32_t caller = 0;
  for (int attempt = 0; attempt < 100; ++attempt) {
    caller = (caller + 1) % 60'000;
    TestSocket socket(port, 0, 0x7f010000u + caller);
    if (socket.connected()) return socket;
  }
  ESP_CHECK(false, "no address of this machine reaches the server");
  return TestSocket(port);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto server = start();
  TestSocket socket = connect_to(server->port());
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t first = size == 0 ? 0 : data[size - 1] % (size + 1);
  if (socket.write(bytes.substr(0, first))) socket.write(bytes.substr(first));
  socket.shut_sending();
  const std::string answer = socket.read_to_end();
  ESP_CHECK(socket.at_end(), "the server neither answers nor closes");
  ESP_CHECK(answer.empty() || answer.starts_with("HTTP/1.1 "), "the answer is not HTTP");
  return 0;
}
