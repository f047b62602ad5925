// Memory that is given back to the system and taken again, and weights that are compared. A table
// of routes as those in routes.h.
#pragma once

#include <vector>

#include "server/routes.h"

namespace espalier::server {

const std::vector<Route>& memory_routes();  // /release_memory_occupation, /weights_checker

}  // namespace espalier::server
