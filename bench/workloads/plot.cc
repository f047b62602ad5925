#include "bench/workloads/plot.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>

extern char** environ;

namespace espalier::workloads {

namespace {

// Colours that are distinct in print and to readers with red-green blindness (after Okabe and Ito).
constexpr std::array<const char*, 12> kColours = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                                  "#56b4e9", "#d55e00", "#7f7f7f", "#b8a800",
                                                  "#8c564b", "#9467bd", "#000000", "#117733"};
constexpr double kHeight = 300, kLeft = 64, kRight = 24, kTitle = 30, kLegendRow = 20;
constexpr double kCharacter = 6.8;  // mean width at font size 12

const char* colour(size_t i) { return kColours[i % kColours.size()]; }

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else
      out += c;
  }
  return out;
}

double text_width(const std::string& text) { return kCharacter * static_cast<double>(text.size()); }

// A round step that cuts `most` into four to eight parts.
double step_of(double most) {
  const double power = std::pow(10, std::floor(std::log10(most)));
  for (const double step : {0.1, 0.2, 0.25, 0.5, 1.0, 2.0})
    if (most / (step * power) <= 8) return step * power;
  return power;
}

// A value in a form that is short enough to fit above a bar.
std::string label_of(double value) {
  if (value >= 99.95) return fmt::format("{:.0f}", value);
  return value >= 9.995 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}

// The frame of a plot: what is common to all kinds.
class Canvas {
 public:
  Canvas(const Axes& axes, double plot_width, const std::vector<std::string>& names, double most,
         double below)
      : width_(std::max(kLeft + plot_width + kRight, kLeft + text_width(axes.title) * 1.3)),
        plot_width_(width_ - kLeft - kRight) {
    const double legend_end = legend(names, kTitle + 14);
    top_ = legend_end + 18;
    bottom_ = top_ + kHeight;
    step_ = step_of(std::max(most, 1e-9));
    most_ = std::ceil(most / step_ - 1e-9) * step_;
    height_ = bottom_ + below;
    body_ = fmt::format("<text x=\"{}\" y=\"22\" font-size=\"16\">{}</text>\n", kLeft,
                        escaped(axes.title)) +
            body_;
    grid(axes.y);
  }

  double x(double share) const { return kLeft + share * plot_width_; }
  double y(double value) const { return bottom_ - kHeight * value / most_; }
  double bottom() const { return bottom_; }
  double plot_width() const { return plot_width_; }
  void add(std::string element) { body_ += element + "\n"; }

  std::string done() const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"DejaVu Sans, sans-serif\" "
        "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{2}</svg>\n",
        width_, height_, body_);
  }

 private:
  // In rows as wide as the plot; returns where the last one ends.
  double legend(const std::vector<std::string>& names, double y) {
    double x = kLeft;
    for (size_t i = 0; i < names.size(); ++i) {
      const double width = 34 + text_width(names[i]);
      if (x > kLeft && x + width > width_ - kRight) x = kLeft, y += kLegendRow;
      add(
          fmt::format("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"12\" height=\"12\" fill=\"{}\"/>"
                      "<text x=\"{:.0f}\" y=\"{:.0f}\">{}</text>",
                      x, y - 10, colour(i), x + 17, y, escaped(names[i])));
      x += width;
    }
    return y;
  }

  void grid(const std::string& label) {
    for (double value = 0; value <= most_ + step_ / 2; value += step_) {
      add(
          fmt::format("<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>"
                      "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>",
                      kLeft, y(value), kLeft + plot_width_, y(value),
                      value == 0 ? "black" : "#dddddd", kLeft - 6, y(value) + 4, value));
    }
    add(
        fmt::format("<text transform=\"translate(16,{:.1f}) rotate(-90)\" "
                    "text-anchor=\"middle\">{}</text>",
                    bottom_ - kHeight / 2, escaped(label)));
  }

  const double width_, plot_width_;
  double top_ = 0, bottom_ = 0, height_ = 0, most_ = 1, step_ = 1;
  std::string body_;
};

}  // namespace

std::string bar_chart(const Axes& axes, const std::vector<std::string>& groups,
                      const std::vector<Series>& series) {
  constexpr double kBar = 22, kGap = 18;
  double most = 1e-9, longest = 0;
  std::vector<std::string> names;
  for (const Series& s : series) {
    names.push_back(s.name);
    for (const double value : s.values) most = std::max(most, value);
  }
  for (const std::string& group : groups) longest = std::max(longest, text_width(group));
  // Two bars leave no room for names side by side, so names slope and end below their group.
  const double group_width = kBar * static_cast<double>(series.size()) + kGap;
  const double below = 24 + 0.6 * longest;
  Canvas canvas(axes, group_width * static_cast<double>(groups.size()) + kGap, names, most * 1.05,
                below);
  for (size_t g = 0; g < groups.size(); ++g) {
    const double left = kLeft + kGap + group_width * static_cast<double>(g);
    for (size_t s = 0; s < series.size(); ++s) {
      if (g >= series[s].values.size()) continue;
      const double value = series[s].values[g];
      const double x = left + kBar * static_cast<double>(s);
      canvas.add(fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>"
          "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"8.5\" text-anchor=\"middle\">{}</text>",
          x, canvas.y(value), kBar - 2, canvas.bottom() - canvas.y(value), colour(s),
          x + kBar / 2 - 1, canvas.y(value) - 3, label_of(value)));
    }
    canvas.add(
        fmt::format("<text transform=\"translate({:.1f},{:.1f}) rotate(-35)\" "
                    "text-anchor=\"end\">{}</text>",
                    left + (group_width - kGap) / 2 + 6, canvas.bottom() + 14, escaped(groups[g])));
  }
  return canvas.done();
}

std::string line_chart(const Axes& axes, const std::vector<Line>& lines) {
  double most_x = 1e-9, most_y = 1e-9;
  std::vector<std::string> names;
  for (const Line& line : lines) {
    names.push_back(line.name);
    for (const auto& [x, y] : line.points) {
      most_x = std::max(most_x, x);
      most_y = std::max(most_y, y);
    }
  }
  const double step = step_of(most_x), end = std::ceil(most_x / step - 1e-9) * step;
  Canvas canvas(axes, 620, names, most_y, 52);
  for (double value = 0; value <= end + step / 2; value += step)
    canvas.add(fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.4g}</text>",
                           canvas.x(value / end), canvas.bottom() + 16, value));
  canvas.add(fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                         canvas.x(0.5), canvas.bottom() + 38, escaped(axes.x)));
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string path;
    for (const auto& [x, y] : lines[i].points) {
      path +=
          fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", canvas.x(x / end), canvas.y(y));
      canvas.add(fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"/>",
                             canvas.x(x / end), canvas.y(y), colour(i)));
    }
    canvas.add(
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" "
                    "stroke-width=\"1.6\"{}/>",
                    path, colour(i), i < kColours.size() ? "" : " stroke-dasharray=\"5 3\""));
  }
  return canvas.done();
}

namespace {

// The exit status of a program found in PATH; -1: it could not be started.
int run(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1 /* O_WRONLY */, 0);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (failed != 0 || waitpid(pid, &status, 0) != pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

Status can_write_png() {
  if (run({"rsvg-convert", "--version"}) == 0) return {};
  return error(StatusCode::kUnavailable,
               "PNG plots are made by rsvg-convert, which is not in PATH: install librsvg2-bin "
               "(tools/setup --plots)");
}

Status write_plot(const std::string& svg, const std::filesystem::path& folder,
                  const std::string& name) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  const std::string path = (folder / (name + ".svg")).string();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << svg;
  file.close();
  if (!file) return error(StatusCode::kUnavailable, "{} could not be written", path);
  const std::string png = (folder / (name + ".png")).string();
  if (run({"rsvg-convert", "--zoom", "1.1", "--output", png, path}) != 0)
    return error(StatusCode::kUnavailable, "{} could not be made of {}", png, path);
  return {};
}

}  // namespace espalier::workloads
