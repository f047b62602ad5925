#include "server/http_counts.h"

#include <utility>

namespace espalier::server {

// Forwards every call. The handler's thread and the connection's thread may hold it at once; the
// first of them to end the answer counts its end.
class HttpCounts::Watch final : public net::ResponseWriter {
 public:
  Watch(std::shared_ptr<HttpCounts> counts, Row& row, std::string routing_key,
        net::ResponsePtr response)
      : counts_(std::move(counts)),
        row_(row),
        routing_key_(std::move(routing_key)),
        response_(std::move(response)) {}
  ~Watch() override { end(); }

  void send(net::HttpResponse response) override {
    count(response.status);
    end();
    response_->send(std::move(response));
  }
  void start_stream(int status, net::Headers headers) override {
    count(status);
    response_->start_stream(status, std::move(headers));
  }
  void write(std::string bytes) override { response_->write(std::move(bytes)); }
  size_t pending_output() const override { return response_->pending_output(); }
  void finish() override {
    end();
    response_->finish();
  }
  void on_disconnect(std::function<void()> callback) override {
    response_->on_disconnect(std::move(callback));
  }
  void post(std::function<void()> task) override { response_->post(std::move(task)); }
  void post_after(Duration delay, std::function<void()> task) override {
    response_->post_after(delay, std::move(task));
  }
  bool closed() const override { return response_->closed(); }

 private:
  void count(int status) {
    if (counted_.exchange(true)) return;
    const std::lock_guard lock(row_.mutex_);
    ++row_.answers_[status];
  }
  void end() {
    if (!ended_.exchange(true)) counts_->end(row_, routing_key_);
  }

  const std::shared_ptr<HttpCounts> counts_;  // keeps the row alive
  Row& row_;
  const std::string routing_key_;  // empty: none
  const net::ResponsePtr response_;
  std::atomic<bool> counted_{false}, ended_{false};
};

HttpCounts::Row& HttpCounts::add(std::string endpoint, std::string method) {
  return rows_.emplace_back(std::move(endpoint), std::move(method));
}

net::ResponsePtr HttpCounts::watch(Row& row, const net::HttpRequest& request,
                                   net::ResponsePtr response) {
  const std::string* const header = request.header(kRoutingKeyHeader);
  std::string key = header != nullptr ? *header : std::string();
  begin(row, key);
  return std::make_shared<Watch>(shared_from_this(), row, std::move(key), std::move(response));
}

void HttpCounts::begin(Row& row, const std::string& routing_key) {
  ++row.started_;
  ++row.active_;
  if (routing_key.empty()) return;
  const std::lock_guard lock(mutex_);
  ++routing_keys_[routing_key];
}

void HttpCounts::end(Row& row, const std::string& routing_key) {
  --row.active_;
  if (routing_key.empty()) return;
  const std::lock_guard lock(mutex_);
  if (const auto found = routing_keys_.find(routing_key); --found->second == 0)
    routing_keys_.erase(found);
}

std::vector<HttpCounts::Figures> HttpCounts::read() {
  std::vector<Figures> out;
  for (Row& row : rows_) {
    if (row.started_ == 0) continue;
    const std::lock_guard lock(row.mutex_);
    out.push_back({.endpoint = row.endpoint,
                   .method = row.method,
                   .started = row.started_,
                   .active = row.active_,
                   .answers = row.answers_});
  }
  return out;
}

int64_t HttpCounts::num_routing_keys() {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(routing_keys_.size());
}

}  // namespace espalier::server
