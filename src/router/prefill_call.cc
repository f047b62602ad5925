#include "router/prefill_call.h"

#include <random>
#include <utility>

#include "base/rng.h"

namespace espalier::router {
namespace {

constexpr size_t kErrorBytesMax = 64 << 10;  // of an error's body that is passed on
constexpr int kBatchBits = 16;               // a batch has a room for each prompt

}  // namespace

uint64_t draw_room() {
  thread_local Rng rng(std::random_device{}() | uint64_t{std::random_device{}()} << 32);
  return rng() >> (kBatchBits + 1) << kBatchBits;
}

// The last field of a name counts, so that a client's own does not. A host is an address, which
// needs no escapes.
std::string body_with_room(std::string_view body, std::string_view host, int bootstrap_port,
                           uint64_t room) {
  const size_t end = body.find_last_not_of(" \t\r\n");
  if (end == std::string_view::npos || end == 0 || body[end] != '}') return {};
  const size_t last = body.find_last_not_of(" \t\r\n", end - 1);
  if (last == std::string_view::npos) return {};
  std::string out(body.substr(0, end));
  if (body[last] != '{') out += ',';
  out += fmt::format(R"("bootstrap_host":"{}","bootstrap_port":{},"bootstrap_room":{}}})", host,
                     bootstrap_port, room);
  return out;
}

void PrefillCall::begin(net::Upstream& upstream, const std::shared_ptr<net::IoThread>& io,
                        net::UpstreamRequest request) {
  call_ = upstream.call(io, lease_.endpoint(), std::move(request), shared_from_this());
}

void PrefillCall::cancel() {
  failed_ = nullptr;
  if (call_ != nullptr) std::exchange(call_, nullptr)->cancel();
  lease_.end(WorkerOutcome::kAbandoned);
}

void PrefillCall::on_head(int status, net::Headers headers, std::optional<size_t>) {
  answer_.status = status;
  answer_.headers = std::move(headers);
}

void PrefillCall::on_body(std::string bytes) {
  if (answer_.status >= 400 && answer_.body.size() + bytes.size() <= kErrorBytesMax)
    answer_.body += bytes;
}

void PrefillCall::on_end() {
  const int status = answer_.status;
  end(status == 429 || status == 503 ? WorkerOutcome::kBusy
      : status >= 500                ? WorkerOutcome::kFailure
                                     : WorkerOutcome::kSuccess);
}

void PrefillCall::on_failure(Status why) {
  answer_ = {.why = std::move(why)};
  end(WorkerOutcome::kFailure);
}

void PrefillCall::end(WorkerOutcome outcome) {
  call_ = nullptr;
  lease_.end(outcome);
  const bool succeeded = answer_.status > 0 && answer_.status < 400;
  if (const Failed failed = std::exchange(failed_, nullptr); failed && !succeeded)
    failed(std::move(answer_));
}

}  // namespace espalier::router
