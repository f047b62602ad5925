#include "apps/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include "apps/command_line.h"

namespace espalier::apps {
namespace {
constexpr int kWidth = 30;  // characters of the bar
constexpr Duration kRedraw = std::chrono::milliseconds(100);
}  // namespace

ProgressBar::ProgressBar(std::string what, int64_t total, std::string_view unit)
    : what_(std::move(what)),
      total_(total),
      unit_(unit),
      terminal_(isatty(STDERR_FILENO) == 1),
      started_(SteadyClock().now()) {}

ProgressBar::~ProgressBar() {
  if (!terminal_) return;
  draw();
  note("\n");
}

void ProgressBar::advance(int64_t by) {
  std::lock_guard lock(mutex_);
  done_ += by;
  show(SteadyClock().now());
}

void ProgressBar::set(int64_t done) {
  std::lock_guard lock(mutex_);
  done_ = done;
  show(SteadyClock().now());
}

void ProgressBar::show(TimePoint now) {
  if (terminal_ && now - drawn_ >= kRedraw) {
    drawn_ = now;
    draw();
  }
  const int64_t tenths = total_ > 0 ? done_ * 10 / total_ : 10;
  if (!terminal_ && tenths > tenths_shown_) {
    tenths_shown_ = tenths;
    note(fmt::format("{}: {}/{} after {:.1f} s\n", what_, shown(done_), shown(total_),
                     to_seconds(now - started_)));
  }
}

std::string ProgressBar::shown(int64_t count) const {
  if (unit_.empty()) return fmt::format("{}", count);
  const auto value = static_cast<double>(count);
  return total_ < 1'000'000'000 ? fmt::format("{:.1f} M{}", value / 1e6, unit_)
                                : fmt::format("{:.2f} G{}", value / 1e9, unit_);
}

void ProgressBar::draw() {
  const double part = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1.0;
  const double seconds = to_seconds(SteadyClock().now() - started_);
  const auto filled = static_cast<int>(part * kWidth);
  const double left = part > 0 ? seconds / part - seconds : 0;
  note(fmt::format("\r{} [{:#<{}}{:.<{}}] {}/{}  {:.1f} s, {:.0f} s left ", what_, "", filled, "",
                   kWidth - filled, shown(done_), shown(total_), seconds, left));
}

}  // namespace espalier::apps
