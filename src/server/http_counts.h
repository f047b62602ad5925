// Counts of HTTP requests by route, which /metrics shows under SGLang's names.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/http.h"

namespace espalier::server {

// Counts what reaches a handler: a request that is refused before its body is read (no key, no such
// route) is not among them. add() is called before the server answers; the rest is thread-safe.
// Answers in progress share it, for they may outlive the server by a moment.
class HttpCounts : public std::enable_shared_from_this<HttpCounts> {
 public:
  // SGLang's router states with this header which requests belong together.
  static constexpr std::string_view kRoutingKeyHeader = "x-smg-routing-key";

  // What is counted of one method of one route. It stays where it is while the counts live.
  class Row {
   public:
    Row(std::string endpoint, std::string method)
        : endpoint(std::move(endpoint)), method(std::move(method)) {}
    const std::string endpoint;  // the route's pattern: "/v1/responses/{id}"
    const std::string method;

   private:
    friend class HttpCounts;
    std::atomic<int64_t> started_{0}, active_{0};
    std::mutex mutex_;
    std::map<int, int64_t> answers_;  // by status
  };
  Row& add(std::string endpoint, std::string method);

  // Counts `request` as begun. The writer returned forwards to `response`; the request counts as
  // active until its answer is complete or nobody holds the writer any more.
  net::ResponsePtr watch(Row& row, const net::HttpRequest& request, net::ResponsePtr response);

  struct Figures {
    std::string endpoint, method;
    int64_t started = 0, active = 0;
    std::map<int, int64_t> answers;  // by status
  };
  std::vector<Figures> read();  // of those rows that were called, in the order of add()
  int64_t num_routing_keys();   // of requests that are active

 private:
  class Watch;
  void begin(Row& row, const std::string& routing_key);
  void end(Row& row, const std::string& routing_key);

  std::deque<Row> rows_;
  std::mutex mutex_;
  std::map<std::string, int64_t, std::less<>> routing_keys_;  // active requests of each
};

}  // namespace espalier::server
