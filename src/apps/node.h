// A node of several that is not the leader: it computes until the leader ends.
#pragma once

#include "apps/config.h"

namespace espalier::apps {

// Of `espalier serve --node-rank R` with R above 0; returns the exit code.
int run_follower(AppConfig& config);

}  // namespace espalier::apps
