// The prefill server's half of a request that a pair of servers answers: what it answers is
// dropped, and only that it failed is of interest, for then the decode server waits until its
// timeout. Internal to the room.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "net/upstream.h"
#include "router/dispatcher.h"

namespace espalier::router {

// The body of a request for both halves: the client's JSON object with the prefill server's address
// and a room that is drawn (below 2^63, with room for the prompts of a batch). Empty where the body
// is no object that a field can be added to.
std::string body_with_room(std::string_view body, std::string_view host, int bootstrap_port,
                           uint64_t room);
uint64_t draw_room();

// Belongs to the I/O thread of its client's connection.
class PrefillCall final : public net::UpstreamHandler,
                          public std::enable_shared_from_this<PrefillCall> {
 public:
  // What became of it, where it is no success: the answer of an error's status, or why there is
  // none (status 0).
  struct Failure {
    int status = 0;
    net::Headers headers;
    std::string body;
    Status why;
  };
  using Failed = std::function<void(Failure)>;

  // `failed` is called at most once, and not after cancel().
  PrefillCall(Lease lease, Failed failed) : lease_(std::move(lease)), failed_(std::move(failed)) {}

  WorkerSlot slot() const { return lease_.slot(); }
  void begin(net::Upstream& upstream, const std::shared_ptr<net::IoThread>& io,
             net::UpstreamRequest request);
  void cancel();

  void on_head(int status, net::Headers headers, std::optional<size_t> length) override;
  void on_body(std::string bytes) override;
  void on_end() override;
  void on_failure(Status why) override;

 private:
  void end(WorkerOutcome outcome);

  Lease lease_;
  Failed failed_;
  std::shared_ptr<net::UpstreamCall> call_;
  Failure answer_;
};

}  // namespace espalier::router
