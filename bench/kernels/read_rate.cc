#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "kernels/cpu/table.h"
#include "peaks.h"

namespace espalier::kernels::bench {
namespace {

constexpr size_t kChunk = size_t{256} << 10;

// Sums of a chunk as kStreams streams of 8-byte words, asking for lines `ahead` bytes on.
template <size_t kStreams, size_t kAhead>
uint64_t sum_chunk(const std::byte* from) {
  constexpr size_t kWords = kChunk / sizeof(uint64_t) / kStreams;
  const auto* words = reinterpret_cast<const uint64_t*>(from);
  uint64_t sums[kStreams][8] = {};
  for (size_t i = 0; i < kWords; i += 8) {
    for (size_t s = 0; s < kStreams; ++s) {
      const uint64_t* line = words + s * kWords + i;
      if constexpr (kAhead > 0) __builtin_prefetch(reinterpret_cast<const char*>(line) + kAhead);
      for (size_t j = 0; j < 8; ++j) sums[s][j] += line[j];
    }
  }
  uint64_t sum = 0;
  for (const auto& stream : sums) {
    for (uint64_t part : stream) sum += part;
  }
  return sum;
}

template <typename Fn>
double rate_of(CpuBackend& backend, const Stopwatch& watch, const Buffer& buffer, const Fn& read) {
  const auto chunks = static_cast<int64_t>(buffer.size_bytes() / kChunk);
  std::atomic<uint64_t> total{0};
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const double begin = watch.now_seconds();
    backend.pool().parallel_for(chunks, 4, [&](int64_t first, int64_t last) {
      uint64_t sum = 0;
      for (int64_t i = first; i < last; ++i) {
        sum += read(buffer.data() + static_cast<size_t>(i) * kChunk);
      }
      total.fetch_add(sum, std::memory_order_relaxed);  // keeps the reads
    });
    const double seconds = watch.now_seconds() - begin;
    best = std::max(best, static_cast<double>(chunks) * kChunk / seconds);
  }
  return best;
}

}  // namespace

double measure_read_rate(CpuBackend& backend, const Stopwatch& watch, size_t bytes) {
  auto buffer = Buffer::allocate(bytes);
  ESP_CHECK(buffer.has_value(), "{}", buffer.error().message());
  backend.pool().parallel_for(
      static_cast<int64_t>(bytes / kChunk), 16, [&](int64_t begin, int64_t end) {
        std::fill(buffer->data() + static_cast<size_t>(begin) * kChunk,
                  buffer->data() + static_cast<size_t>(end) * kChunk, std::byte{1});
      });
  const auto vectors = [&](const std::byte* from) {
    return static_cast<uint64_t>(
        backend.table().max(reinterpret_cast<const float*>(from), kChunk / sizeof(float)) > 0);
  };
  return std::max({rate_of(backend, watch, *buffer, sum_chunk<1, 0>),
                   rate_of(backend, watch, *buffer, sum_chunk<4, 0>),
                   rate_of(backend, watch, *buffer, sum_chunk<1, 2048>),
                   rate_of(backend, watch, *buffer, sum_chunk<2, 1024>),
                   rate_of(backend, watch, *buffer, vectors)});
}

}  // namespace espalier::kernels::bench
