#include "router/proxy.h"

#include <utility>
#include <vector>

#include "router/forwarding.h"

namespace espalier::router {

Proxy::Proxy(ProxyConfig config, Dispatcher& dispatcher)
    : config_(std::move(config)),
      dispatcher_(dispatcher),
      upstream_(config_.upstream),
      budget_(config_.retry_ratio, config_.retry_reserve) {}
Proxy::~Proxy() = default;

void Proxy::forward(const PassedRoute& route, net::HttpRequest&& request,
                    net::ResponsePtr response) {
  ++requests_;
  std::make_shared<Forwarding>(*this, route, std::move(request), std::move(response))->begin();
}

void Proxy::abandon_worker(uint64_t generation) {
  std::vector<std::shared_ptr<Forwarding>> forwardings;
  {
    std::lock_guard lock(mutex_);
    const auto at = under_way_.find(generation);
    if (at != under_way_.end()) forwardings.assign(at->second.begin(), at->second.end());
  }
  for (const auto& forwarding : forwardings) forwarding->abandon(generation);
}

void Proxy::enter(uint64_t generation, const std::shared_ptr<Forwarding>& forwarding) {
  std::lock_guard lock(mutex_);
  under_way_[generation].insert(forwarding);
}

void Proxy::leave(uint64_t generation, const std::shared_ptr<Forwarding>& forwarding) {
  std::lock_guard lock(mutex_);
  const auto at = under_way_.find(generation);
  if (at == under_way_.end()) return;
  at->second.erase(forwarding);
  if (at->second.empty()) under_way_.erase(at);
}

ProxyStats Proxy::stats() const {
  return {.requests = requests_,
          .retries = retries_,
          .refused = refused_,
          .cut = cut_,
          .clients_gone = clients_gone_,
          .streams_open = open_,
          .connects = upstream_.num_connects_total(),
          .ids_sent = ids_sent_};
}

}  // namespace espalier::router
