#include "server/test_server.h"

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cmath>

namespace espalier::server {

namespace json = boost::json;

namespace {

json::value normalised(const json::value& value) {
  if (value.is_double()) {
    const double d = value.get_double();
    if (d == std::floor(d) && std::abs(d) < 1e15) return static_cast<int64_t>(d);
  }
  if (value.is_uint64()) return static_cast<int64_t>(value.get_uint64());
  if (value.is_array()) {
    json::array out;
    for (const json::value& element : value.get_array()) out.push_back(normalised(element));
    return out;
  }
  if (value.is_object()) {
    std::vector<std::string> keys;
    for (const auto& member : value.get_object()) keys.emplace_back(member.key());
    std::sort(keys.begin(), keys.end());
    json::object out;
    for (const std::string& key : keys) {
      const bool varies = key == "created" || key == "e2e_latency" || key == "timestamp";
      out[key] = varies ? json::value(0) : normalised(value.get_object().at(key));
    }
    return out;
  }
  return value;
}

}  // namespace

std::string normalise(std::string_view text) {
  json::error_code ec;
  const json::value value = json::parse(json::string_view(text.data(), text.size()), ec);
  return ec ? std::string(text) : json::serialize(normalised(value));
}

void ServerTest::start() {
  auto server = Server::create(config_, engine_);
  ASSERT_TRUE(server) << server.error().to_string();
  server_ = std::move(*server);
  const Status started = server_->start();
  ASSERT_TRUE(started.ok()) << started.to_string();
}

net::HttpClient ServerTest::client(net::Headers headers) const {
  net::HttpClientConfig config;
  config.headers = std::move(headers);
  config.read_timeout = std::chrono::seconds(20);
  auto client =
      net::HttpClient::create(fmt::format("http://127.0.0.1:{}", server_->port()), config);
  EXPECT_TRUE(client);
  return std::move(*client);
}

ServerTest::Answer ServerTest::call(std::string_view method, std::string_view path,
                                    std::string_view body, const net::Headers& headers) const {
  auto response = client(headers).request(method, path, body);
  if (!response) {
    ADD_FAILURE() << method << " " << path << ": " << response.error().to_string();
    return {};
  }
  return {response->status, response->body, response->headers};
}

std::vector<std::string> ServerTest::stream(std::string_view path, std::string_view body,
                                            Answer* answer) const {
  std::vector<std::string> events;
  auto response = client().post_stream(path, body, [&](std::string_view data) {
    events.emplace_back(data);
    return true;
  });
  if (!response) {
    ADD_FAILURE() << path << ": " << response.error().to_string();
    return {};
  }
  if (answer != nullptr) *answer = {response->status, response->body, response->headers};
  return events;
}

void ServerTest::expect(std::string_view path, std::string_view body, int status,
                        std::string_view expected) {
  const Answer answer = post(path, body);
  EXPECT_EQ(answer.status, status) << body << "\n" << answer.body;
  EXPECT_EQ(normalise(answer.body), normalise(expected)) << body;
}

void ServerTest::expect_stream(std::string_view path, std::string_view body,
                               const std::vector<std::string>& expected) {
  Answer answer;
  const std::vector<std::string> events = stream(path, body, &answer);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.header("Content-Type"), "text/event-stream; charset=utf-8");
  ASSERT_EQ(events.size(), expected.size()) << testing::PrintToString(events);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(normalise(events[i]), normalise(expected[i])) << "event " << i;
  }
}

}  // namespace espalier::server
