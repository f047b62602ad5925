// What a router answers itself: its workers, its health, its metrics. Internal to the room.
#pragma once

#include <string>

#include "net/http.h"
#include "net/router.h"
#include "router/cache_handover.h"
#include "router/dispatcher.h"
#include "router/ext_proc.h"
#include "router/kv_feed.h"
#include "router/proxy.h"
#include "router/worker_sources.h"
#include "tenants/tenants.h"

namespace espalier::router {

// What the handlers use; all of it outlives the server.
struct AdminContext {
  Dispatcher& dispatcher;
  WorkerSources& sources;
  Proxy& proxy;
  const KvFeed* kv_feed = nullptr;    // null: no events of caches are read
  const Tenants* tenants = nullptr;   // null: keys have no names
  const ExtProc* ext_proc = nullptr;  // null: Envoy does not ask for workers
  CacheHandover* handover = nullptr;  // null: caches of draining workers stay with them
};

// `admin`: admits administrators alone; `client`: everyone with a key.
Status add_admin_routes(net::Router& router, const AdminContext& context,
                        const net::Admission& admin, const net::Admission& client);

std::string metrics_text(const AdminContext& context);  // Prometheus' text format
std::string worker_id(const WorkerInfo& worker);        // 16 hexadecimal digits, of its url

}  // namespace espalier::router
