#include "models/load_progress.h"

#include <algorithm>

#include "base/log.h"

namespace espalier {
namespace {
constexpr Duration kReportEvery = std::chrono::milliseconds(100);
constexpr Duration kLogAfter = std::chrono::seconds(1);
}  // namespace

void LoadProgress::set(int64_t done_bytes) {
  const TimePoint now = clock_.now();
  const bool all = done_bytes >= total_bytes_;
  if (finished_ || (!all && now - reported_at_ < kReportEvery)) return;
  finished_ = all;
  reported_at_ = now;
  if (report_)
    report_(done_bytes, total_bytes_);
  else
    log(done_bytes, now);
}

void LoadProgress::log(int64_t done_bytes, TimePoint now) {
  const int64_t tenths = 10 * done_bytes / std::max<int64_t>(1, total_bytes_);
  if (now - started_ < kLogAfter || tenths <= tenths_logged_ || tenths >= 10) return;
  tenths_logged_ = tenths;
  log_info("loading weights percent={} bytes={} seconds={:.1f}", 10 * tenths, done_bytes,
           to_seconds(now - started_));
}

}  // namespace espalier
