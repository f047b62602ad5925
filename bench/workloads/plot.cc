#include "bench/workloads/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace espalier::workloads {

namespace {
constexpr std::array<const char*, 8> kColours = {"#1f5a94", "#e08a2e", "#4a9c5d", "#a23b50",
                                                 "#7a68b3", "#6b6b6b", "#2aa1b3", "#c7b23a"};
constexpr double kBar = 26, kGap = 30, kHeight = 260, kTop = 70, kLeft = 50;
}  // namespace

std::string bar_chart(const std::string& title, const std::vector<std::string>& groups,
                      const std::vector<Series>& series) {
  double most = 1e-9;
  for (const Series& s : series)
    for (const double value : s.values) most = std::max(most, value);
  const double group_width = kBar * static_cast<double>(series.size()) + kGap;
  const double width = std::max(kLeft * 2 + group_width * static_cast<double>(groups.size()),
                                120.0 * static_cast<double>(series.size()));
  const double bottom = kTop + kHeight;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n<text x=\"{}\" y=\"24\" font-size=\"16\">{}</text>\n",
      width, bottom + 110, kLeft, title);
  for (size_t s = 0; s < series.size(); ++s) {
    const double x = kLeft + 120.0 * static_cast<double>(s);
    out += fmt::format(
        "<rect x=\"{:.0f}\" y=\"38\" width=\"12\" height=\"12\" fill=\"{}\"/>"
        "<text x=\"{:.0f}\" y=\"48\">{}</text>\n",
        x, kColours[s % kColours.size()], x + 16, series[s].name);
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    const double left = kLeft + group_width * static_cast<double>(g);
    for (size_t s = 0; s < series.size(); ++s) {
      if (g >= series[s].values.size()) continue;
      const double value = series[s].values[g], height = kHeight * value / most;
      const double x = left + kBar * static_cast<double>(s);
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>"
          "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"8\" text-anchor=\"middle\">{:.3g}</text>\n",
          x, bottom - height, kBar - 3, height, kColours[s % kColours.size()], x + kBar / 2,
          bottom - height - 3, value);
    }
    out += fmt::format("<text transform=\"translate({:.1f},{:.1f}) rotate(25)\">{}</text>\n", left,
                       bottom + 16, groups[g]);
  }
  return out + fmt::format(
                   "<line x1=\"{}\" y1=\"{:.0f}\" x2=\"{:.0f}\" y2=\"{:.0f}\" "
                   "stroke=\"black\"/>\n</svg>\n",
                   kLeft - 5, bottom, width - kLeft, bottom);
}

}  // namespace espalier::workloads
