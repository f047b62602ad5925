#include "router/tenant_call.h"

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <limits>
#include <utility>

#include "router/error_bodies.h"
#include "tenants/api_key.h"

namespace espalier::router {

namespace {

void add_rate_limits(Tenant& tenant, net::Headers& headers, TimePoint now) {
  for (auto& header : tenant.rate_limit_headers(now)) headers.push_back(std::move(header));
}

int32_t saturated(int64_t priority) {
  using Limits = std::numeric_limits<int32_t>;
  return static_cast<int32_t>(std::clamp<int64_t>(priority, Limits::min(), Limits::max()));
}

}  // namespace

TenantPtr tenant_of(const Tenants* tenants, const net::HttpRequest& request) {
  if (tenants == nullptr) return nullptr;
  return tenants->find(api_key_of(request.header("Authorization"), request.header("X-Api-Key")));
}

TenantCall::TenantCall(TenantPtr tenant, const RequestCost& cost, bool is_limited)
    : tenant_(std::move(tenant)), cost_(cost), is_limited_(is_limited) {}

TenantCall::~TenantCall() { settle(); }

void TenantCall::settle() {
  if (!reservation_) return;
  reservation_->use(used());
  reservation_.reset();
}

void TenantCall::on_end() {
  ended_ = true;
  settle();
}

void TenantCall::on_cut() { settle(); }

void TenantCall::on_refused() {
  refused_ = true;
  settle();
}

std::optional<net::HttpResponse> TenantCall::admit(ErrorStyle errors, TimePoint now) {
  if (tenant_ == nullptr || !is_limited_) return std::nullopt;
  if (const Status may = tenant_->check_priority(saturated(cost_.priority)); !may.ok())
    return error_answer(errors, 400, may.message());
  const int64_t tokens = cost_.prompt_tokens + cost_.answer_tokens;
  const auto wait = tenant_->admit(tokens, now);
  if (!wait) {
    reservation_.emplace(tenant_, tokens);
    return std::nullopt;
  }
  tenant_->count_refusal();
  net::HttpResponse answer = error_answer(
      errors, 429,
      fmt::format("the limits of this key are reached: try again in {:.1f} s", to_seconds(*wait)));
  std::erase_if(answer.headers, [](const auto& header) { return header.first == "Retry-After"; });
  answer.headers.emplace_back(
      "Retry-After", std::to_string(std::chrono::ceil<std::chrono::seconds>(*wait).count()));
  add_rate_limits(*tenant_, answer.headers, now);
  return answer;
}

void TenantCall::state(net::Headers& to_worker) const {
  if (tenant_ == nullptr) return;
  for (auto& header : stated_tenant_headers(*tenant_)) to_worker.push_back(std::move(header));
}

void TenantCall::on_head(int status, std::string_view content_type, net::Headers& headers,
                         TimePoint now) {
  if (tenant_ == nullptr) return;
  status_ = status;
  usage_.begin(content_type, cost_.has_several_prompts);
  std::erase_if(headers, [](const auto& header) {
    return boost::beast::iequals(std::string_view(header.first).substr(0, 12), "x-ratelimit-");
  });
  if (is_limited_) add_rate_limits(*tenant_, headers, now);
}

void TenantCall::on_bytes(std::string_view bytes) {
  if (reservation_) usage_.add(bytes);
}

// An answer that does not state what it took, as when its client left before, is charged what was
// reserved; errors are charged nothing.
int64_t TenantCall::used() const {
  if (refused_ || status_ >= 400) return 0;
  const auto answer = usage_.answer_tokens(), prompt = usage_.prompt_tokens();
  const int64_t prompts = cost_.has_several_prompts
                              ? std::max(prompt.value_or(0), cost_.prompt_tokens)
                              : prompt.value_or(cost_.prompt_tokens);
  if (!answer && prompt && ended_) return prompts;  // an embedding, say
  return prompts + answer.value_or(cost_.answer_tokens);
}

}  // namespace espalier::router
