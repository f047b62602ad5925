// Bar charts as SVG.
#pragma once

#include <string>
#include <vector>

namespace espalier::workloads {

struct Series {
  std::string name;
  std::vector<double> values;  // one for each group
};

// Groups of bars side by side, with a legend and the values above the bars.
std::string bar_chart(const std::string& title, const std::vector<std::string>& groups,
                      const std::vector<Series>& series);

}  // namespace espalier::workloads
