#include "read_rate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

namespace espalier::bench {
namespace {

// Compiled for each width of registers; the loader takes the widest that this processor has.
#if defined(__x86_64__)
#define ESP_BENCH_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define ESP_BENCH_CLONES
#endif

// The ways: one stream, four streams side by side, and one with prefetches ahead. Sums of words, so
// that nothing can be left out.
ESP_BENCH_CLONES
uint64_t sum_stream(const uint64_t* words, size_t count) {
  uint64_t sums[32] = {};
  for (size_t i = 0; i + 32 <= count; i += 32) {
    for (size_t j = 0; j < 32; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

ESP_BENCH_CLONES
uint64_t sum_four_streams(const uint64_t* words, size_t count) {
  uint64_t sums[32] = {};
  const size_t quarter = count / 4 / 8 * 8;
  for (size_t i = 0; i + 8 <= quarter; i += 8) {
    for (size_t stream = 0; stream < 4; ++stream) {
      for (size_t j = 0; j < 8; ++j) sums[stream * 8 + j] += words[stream * quarter + i + j];
    }
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

ESP_BENCH_CLONES
uint64_t sum_prefetched(const uint64_t* words, size_t count) {
  constexpr size_t kAhead = 512;  // 4 KiB
  uint64_t sums[32] = {};
  for (size_t i = 0; i + 32 <= count; i += 32) {
    for (size_t line = 0; line < 32; line += 8) __builtin_prefetch(words + i + line + kAhead);
    for (size_t j = 0; j < 32; ++j) sums[j] += words[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

using SumFn = uint64_t (*)(const uint64_t*, size_t);
constexpr SumFn kWays[] = {sum_stream, sum_four_streams, sum_prefetched};

}  // namespace

Result<ReadRate> ReadRate::create(WorkPool& pool, size_t size_bytes) {
  ESP_ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(size_bytes));
  auto* words = buffer.as<uint64_t>();
  const auto count = static_cast<int64_t>(size_bytes / 8);
  pool.parallel_for(count, 1 << 18, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) words[i] = static_cast<uint64_t>(i);
  });
  return ReadRate(pool, std::move(buffer));
}

double ReadRate::measure(int tries) {
  const auto* words = buffer_.as<uint64_t>();
  const size_t share = buffer_.size_bytes() / 8 / static_cast<size_t>(pool_->num_threads());
  double best = 0;
  std::atomic<uint64_t> sink{0};
  for (const SumFn sum : kWays) {
    for (int i = 0; i < tries; ++i) {
      const auto start = std::chrono::steady_clock::now();
      pool_->run(
          [&](int thread) { sink += sum(words + share * static_cast<size_t>(thread), share); });
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      best = std::max(best, static_cast<double>(buffer_.size_bytes()) / seconds.count());
    }
  }
  return best;
}

}  // namespace espalier::bench
