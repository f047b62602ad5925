// The plots of espalier_bench workloads, drawn from its JSON, so that kept results can be drawn
// again.
#pragma once

#include <boost/json/fwd.hpp>
#include <filesystem>

#include "base/status.h"

namespace espalier::bench {

// workloads: the JSON's array of that name. Writes workloads_throughput, workloads_hit_rate and,
// where the run had them, workloads_ablations and workloads_by_hit_rate_*, each as SVG and PNG.
// kInvalidArgument for JSON of another shape.
Status plot_workloads(const boost::json::array& workloads, const std::filesystem::path& folder);

}  // namespace espalier::bench
