// The rows of experts that lie on groups of ranks, for the table of an engine's settings.
#pragma once

#include "apps/settings.h"
#include "engine/config.h"

namespace espalier::apps {

void add_expert_rows(SettingTable& table, ComputeSettings& compute);

}  // namespace espalier::apps
