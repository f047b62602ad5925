// The rows of experts that lie on groups of ranks, and of nodes, for the table of settings.
#pragma once

#include "apps/settings.h"
#include "engine/config.h"
#include "engine/nodes/settings.h"

namespace espalier::apps {

void add_expert_rows(SettingTable& table, ComputeSettings& compute);
void add_node_rows(SettingTable& table, NodeSettings& nodes);

}  // namespace espalier::apps
