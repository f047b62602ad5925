// Plots as SVG, and as PNG.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace espalier::workloads {

struct Axes {
  std::string title;
  std::string y;  // what the values are, with their unit
  std::string x;  // the same, of lines
};

struct Series {
  std::string name;
  std::vector<double> values;  // one for each group
};

// Groups of bars side by side, with an axis from 0, a legend, and the values above the bars.
std::string bar_chart(const Axes& axes, const std::vector<std::string>& groups,
                      const std::vector<Series>& series);

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // in order of x
};
// Lines from the origin of both axes, points marked.
std::string line_chart(const Axes& axes, const std::vector<Line>& lines);

// Whether PNG files can be made: kUnavailable says what to install.
Status can_write_png();
// Writes NAME.svg and, by librsvg's rsvg-convert, NAME.png into the folder.
Status write_plot(const std::string& svg, const std::filesystem::path& folder,
                  const std::string& name);

}  // namespace espalier::workloads
