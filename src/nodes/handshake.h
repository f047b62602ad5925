// Both sides of greeting.h over a link.
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "nodes/greeting.h"
#include "nodes/link.h"

namespace espalier::nodes {

struct NodeGroupConfig;

// What a caller of the leader has shown of itself.
struct Greeted {
  Status status;            // not ok: it was refused, and knows why
  bool ends_start = false;  // it knows the token, so that it is a node that was started wrongly
  Hello hello;
};
Greeted greet_follower(Link& link, const NodeGroupConfig& config);
void refuse(Link& link, const Status& why);
// Sends the leader's proof.
Status accept(Link& link, const NodeGroupConfig& config, const Hello& hello);

// Until the leader has accepted. The deadline is that of its answer.
Status greet_leader(Link& link, const NodeGroupConfig& config, Channel channel, TimePoint deadline);

}  // namespace espalier::nodes
